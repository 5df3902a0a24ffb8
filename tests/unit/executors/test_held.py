"""What executors hold of earlier launches, found one after another."""

from asynsched.executors.base import Held


def test_a_try_that_has_ended_since_it_was_found_does_not_go_on():
    found = Held(starting=frozenset({"a", "b"}), running=frozenset({"c"}))
    adopted = Held(running=frozenset({"b"}), ended=frozenset({"a", "c"}))
    assert found.joined(adopted) == Held(
        starting=frozenset({"b"}), running=frozenset({"b"}), ended=frozenset({"a", "c"})
    )
