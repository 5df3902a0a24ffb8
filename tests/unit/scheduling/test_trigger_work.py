"""What a trigger host is told: whatever is lost or repeated on the way, it comes to run what is wanted."""

from hypothesis import example, given
from hypothesis import strategies as st

from asynsched.protocol.messages import TriggerSpec
from asynsched.scheduling.triggerer.trigger_hosts import MAX_STARTS, HostWork

IDS = st.sampled_from([f"t{number}" for number in range(6)])


def spec(name: str) -> TriggerSpec:
    return TriggerSpec(name, "module.Trigger", {}, "d", "r", "t", -1, 1)


class Host:
    """The host's side: what it runs, and what it knows of the last answer."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.session, self.number, self.tells_all = "", 0, False

    def ask(self, work: HostWork, *, answer_is_lost: bool = False) -> bool:
        """Ask once, and return whether there was anything to do."""
        answer = work.answer(self.session, self.number, [*self.running] if self.tells_all else None)
        if answer is None:
            # The triggerer says so in the end, with nothing to do.
            self.tells_all = self.tells_all and answer_is_lost
            return False
        if not answer_is_lost:
            self.session, self.number, self.tells_all = answer.session, answer.number, answer.tell_all
            self.running -= set(answer.stop)
            self.running |= {spec.id for spec in answer.start}
        return True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), IDS),
        st.tuples(st.just("unwant"), IDS),
        st.tuples(st.sampled_from(["ask", "lose the answer", "new host", "new scheduler", "ends"]), st.just("")),
    ),
    max_size=30,
)


@given(STEPS)
@example([("ask", ""), ("ask", ""), ("want", "t1"), ("lose the answer", "")])
@example([("ask", ""), ("want", "t1"), ("ask", ""), ("unwant", "t1"), ("lose the answer", ""), ("want", "t1")])
def test_a_host_comes_to_run_what_is_wanted(steps):
    work, host, sessions = HostWork("s0"), Host(), 0
    for what, name in steps:
        if what == "want":
            work.want(spec(name))
        elif what == "unwant":
            work.unwant(name)
        elif what == "new host":
            host = Host()
            work.forget_host()
        elif what == "new scheduler":
            sessions += 1
            wanted, work = work.wanted, HostWork(f"s{sessions}")
            for kept in wanted.values():
                work.want(kept)
        elif what in ("ask", "lose the answer"):
            host.ask(work, answer_is_lost=what == "lose the answer")
    while host.ask(work):
        pass
    assert host.running == work.wanted.keys()


def test_many_triggers_are_told_in_parts():
    work, host = HostWork("s"), Host()
    for number in range(2 * MAX_STARTS + 1):
        work.want(spec(str(number)))
    sizes = []
    while host.ask(work):
        sizes.append(len(host.running))
    assert sizes == [0, MAX_STARTS, 2 * MAX_STARTS, 2 * MAX_STARTS + 1]


def test_a_trigger_that_was_wanted_again_and_is_wanted_no_more_is_stopped():
    work, host = HostWork("s"), Host()
    work.want(spec("t"))
    while host.ask(work):
        pass
    work.unwant("t")
    work.want(spec("t"))
    work.unwant("t")
    while host.ask(work):
        pass
    assert host.running == set()
