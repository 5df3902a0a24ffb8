"""Which tasks a clear or a mark selects, and how many tries a cleared task instance has had."""

import pytest

from asynsched.scheduling.rules.clearing import TaskSelection, tries_after_clear
from asynsched.states import TaskInstanceState
from tests.support.runs import task

State = TaskInstanceState
EARLIER = {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("state", "try_number", "token", "earlier", "n_tries"),
    [
        (State.SUCCESS, 3, "third", EARLIER, 3),
        (State.RUNNING, 3, "third", EARLIER, 3),
        (State.UP_FOR_RETRY, 2, "second", EARLIER, 2),
        (State.UPSTREAM_FAILED, 0, None, {}, 0),
        # A clear or a skip uses up the number of a paused try: no two tries share a number.
        (State.DEFERRED, 0, "first", {}, 1),
        (State.UP_FOR_RESCHEDULE, 2, "third", EARLIER, 3),
        (State.SKIPPED, 2, "third", EARLIER, 3),
        # An interrupted try starts again under the same number.
        (State.SCHEDULED, 2, "third", EARLIER, 2),
    ],
)
def test_each_try_of_a_cleared_task_has_a_number_of_its_own(state, try_number, token, earlier, n_tries):
    assert tries_after_clear(state, try_number, token, earlier) == n_tries


# first -> su -> work -> check -> td -> last, and su is torn down by td; side has nothing to do with them.
CHAIN = TaskSelection(
    [
        task("first", "su"),
        task("su", "work", "td", is_setup=True),
        task("work", "check"),
        task("check", "td"),
        task("td", "last", is_teardown=True),
        task("last"),
        task("side"),
    ]
)


@pytest.mark.parametrize(
    ("task_id", "upstream", "downstream", "selected"),
    [
        ("side", False, False, {"side"}),
        ("work", False, False, {"work", "su", "td"}),
        ("check", False, True, {"check", "su", "td", "last"}),
        ("work", True, False, {"first", "su", "work", "td"}),
        ("su", False, False, {"su", "td"}),
        ("td", False, False, {"td"}),
        ("last", True, False, {"first", "su", "work", "check", "td", "last"}),
        ("first", False, True, {"first", "su", "work", "check", "td", "last"}),
    ],
)
def test_clearing_a_task_includes_its_setups_and_teardowns(task_id, upstream, downstream, selected):
    assert CHAIN.to_clear([task_id], upstream=upstream, downstream=downstream) == selected


def test_a_task_is_marked_without_its_setups():
    assert CHAIN.to_mark(["work"]) == {"work"}
    assert CHAIN.to_mark(["work"], upstream=True, downstream=True) == {"first", "su", "work", "check", "last"}
