"""The triggerer: the test plays its hosts, which start, ask, end and fall silent, and lose messages."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asynsched.channels import (
    Channels,
    OutcomeStored,
    TaskReady,
    TriggerFired,
    TriggerUnwanted,
    TriggerWanted,
    TryReported,
    TryUnwanted,
)
from asynsched.clock import VirtualClock
from asynsched.executors.base import Held
from asynsched.executors.tokens import watcher_id
from asynsched.protocol.messages import CodeVersion, Ended, Request, SourceRef, Started, TriggerOutcome, TriggerSpec
from asynsched.scheduling.triggerer import (
    FIRST_PAUSE,
    LINGER,
    LONGEST_QUESTION,
    LONGEST_SILENCE,
    MAX_FAILURES,
    MAX_STARTS,
    HostWork,
    Triggerer,
)
from asynsched.simulation.simulation import run_virtual
from tests.support.runs import NOON
from tests.support.set_clock import SetVirtualClock

SECOND = timedelta(seconds=1)


def code(name: str = "a") -> CodeVersion:
    return CodeVersion(name * 64, "/dags", (SourceRef(f"{name}.py", f"module_{name}", name * 64),))


def spec(name: str, classpath: str = "module.Trigger") -> TriggerSpec:
    return TriggerSpec(name, classpath, {}, "d", "r", name, -1, 1)


class Bench:
    """A triggerer on a virtual clock, and its requests to the executor."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.channels = Channels()
        self.triggerer = Triggerer(channels=self.channels, clock=clock, block_timeout=10.0)
        self.told: list[Any] = []

    async def tick(self, *messages: Any) -> list[Any]:
        """Give the triggerer messages, and return its messages to the executor."""
        for message in messages:
            self.channels.triggers.put_nowait(message)
        await self.triggerer.tick(self.clock.now())
        return self.channels.ready.take()

    async def launched(self, *messages: Any) -> list[str]:
        """Return the tokens of the hosts that are launched for these messages."""
        return [told.launch.token for told in await self.tick(*messages) if isinstance(told, TaskReady)]

    async def ask(self, token: str, session: str = "", number: int = 0, **arguments: Any) -> dict[str, Any]:
        """Ask as a host for triggers to run."""
        values = {"session": session, "number": number, **arguments}
        reply = await self.triggerer.answer(Request(token, 1, "trigger_work", values))
        assert not reply.error
        return reply.value

    async def running(self, token: str) -> set[str]:
        """Ask as a new host, and return its triggers."""
        known = await self.ask(token)
        if known.get("end"):
            return {"end"}
        work = await self.ask(token, known["session"], running=[])
        return {started["id"] for started in work.get("start", ())}

    def fired(self) -> list[TriggerOutcome]:
        return [message.outcome for message in self.channels.reports.take() if isinstance(message, TriggerFired)]


def virtual(test: Callable[[Bench], Any]) -> Callable[[], None]:
    """Run a test on a loop whose time passes only when everything waits."""

    def wrapped() -> None:
        clock = SetVirtualClock(NOON)
        run_virtual(lambda: test(Bench(clock)), clock)

    wrapped.__name__ = test.__name__
    return wrapped


def failed(token: str, *, cause: str = "task", begun: bool = True) -> TryReported:
    return TryReported(Ended(token, "failed", NOON, NOON if begun else None, "it crashed", cause=cause))


@virtual
async def test_each_version_has_a_host_and_so_have_asynscheds_own_triggers(bench):
    own = "asynsched.authoring.triggers.temporal.DateTimeTrigger"
    wanted = [(spec("t1"), "a"), (spec("t2"), "a"), (spec("t3"), "b"), (spec("t4", own), "a"), (spec("t5", own), "b")]
    tokens = await bench.launched(*(TriggerWanted(trigger, code(name)) for trigger, name in wanted))
    assert [await bench.running(token) for token in tokens] == [{"t1", "t2"}, {"t3"}, {"t4", "t5"}]


@virtual
async def test_a_question_is_answered_on_news_or_after_the_longest_wait(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    session = (await bench.ask(token))["session"]
    assert [s["id"] for s in (await bench.ask(token, session))["start"]] == ["t1"]
    question = asyncio.create_task(bench.ask(token, session, 1))
    await asyncio.sleep(1)
    await bench.tick(TriggerUnwanted("t1"))
    assert list((await question)["stop"]) == ["t1"]
    assert bench.clock.now() == NOON + SECOND
    assert (await bench.ask(token, session, 2)).get("start") is None
    assert bench.clock.now() == NOON + SECOND + LONGEST_QUESTION


@virtual
async def test_an_outcome_is_kept_for_its_runs_next_takeover_until_stored(bench):
    wanted = TriggerWanted(spec("t1"), code())
    [token] = await bench.launched(wanted)
    outcome = TriggerOutcome("t1", "event", payload=1)
    arguments = {"outcomes": [{"id": "t1", "kind": "event", "payload": 1}]}
    told = asyncio.create_task(bench.triggerer.answer(Request(token, 1, "trigger_outcomes", arguments)))
    await asyncio.sleep(1)
    assert bench.fired() == [outcome]
    await bench.tick(TriggerUnwanted("t1"), wanted)
    await asyncio.sleep(1)
    assert bench.fired() == [outcome]
    assert not told.done()
    await bench.tick(TriggerUnwanted("t1"))
    assert not (await told).error


@virtual
async def test_an_event_of_a_watcher_whose_code_has_changed_counts_from_its_old_host_too(bench):
    name = watcher_id(7)
    [old] = await bench.launched(TriggerWanted(spec(name), code("a")))
    [new] = await bench.launched(TriggerUnwanted(name), TriggerWanted(spec(name), code("b")))
    told = []
    for token, kind, event_id in [(old, "event", "e1"), (new, "event", "e2"), (old, "error", "e3")]:
        arguments = {"outcomes": [{"id": name, "kind": kind, "event_id": event_id}]}
        told.append(asyncio.create_task(bench.triggerer.answer(Request(token, 1, "trigger_outcomes", arguments))))
    await asyncio.sleep(1)
    passed_on = [message.outcome.event_id for message in bench.channels.asset_watchers.take()]
    assert passed_on == ["e1", "e2"], "an error of the old code says nothing of the new code"
    assert [each.done() for each in told] == [False, False, True]
    for stored, are_answered in [("e2", [False, True, True]), ("e1", [True, True, True])]:
        await bench.tick(OutcomeStored(name, stored))
        await asyncio.sleep(1)
        assert [each.done() for each in told] == are_answered, "each is answered once it is stored"


@virtual
async def test_a_host_reports_nothing_for_triggers_that_it_was_never_given(bench):
    [_] = await bench.launched(TriggerWanted(spec("t1"), code("a")))
    [other] = await bench.launched(TriggerWanted(spec("t2"), code("b")))
    outcomes = [{"id": name, "kind": "event", "event_id": "e"} for name in ("t1", watcher_id(7), "watcher-x")]
    await bench.triggerer.answer(Request(other, 1, "trigger_outcomes", {"outcomes": outcomes}))
    assert bench.fired() == []
    assert not bench.channels.asset_watchers.take()


@virtual
async def test_a_trigger_that_crashes_its_host_repeatedly_fails_alone(bench):
    names = [f"t{number}" for number in range(5)]
    tokens = await bench.launched(*(TriggerWanted(spec(name), code()) for name in names))
    failures = []
    while not failures:
        for token in tokens:
            # The trigger t3 kills its process; the others only run.
            if "t3" in await bench.running(token):
                assert await bench.launched(failed(token)) == []
        await asyncio.sleep(60)
        tokens = await bench.launched()
        failures = bench.fired()
    assert [(found.id, found.kind) for found in failures] == [("t3", "error")]
    assert f"ended {MAX_FAILURES} times, most recently because: it crashed" in failures[0].detail


@virtual
async def test_triggers_whose_code_cannot_be_loaded_fail_together(bench):
    tokens = await bench.launched(*(TriggerWanted(spec(name), code()) for name in ("t1", "t2")))
    for _ in range(MAX_FAILURES):
        await bench.tick(failed(tokens[0], begun=False))
        await asyncio.sleep(60)
        tokens = await bench.launched()
    assert [found.id for found in bench.fired()] == ["t1", "t2"]


@virtual
async def test_an_interrupted_host_has_not_failed(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    for _ in range(2 * MAX_FAILURES):
        assert await bench.launched(failed(token, cause="interrupted")) == []
        await asyncio.sleep(1)
        [token] = await bench.launched()
    assert bench.fired() == []


@virtual
async def test_a_silent_host_is_ended_but_not_one_with_an_open_question(bench):
    silent, asking = await bench.launched(TriggerWanted(spec("t1"), code("a")), TriggerWanted(spec("t2"), code("b")))
    await bench.tick(TryReported(Started(silent, NOON, 1)))
    session = (await bench.ask(asking))["session"]
    number = 0
    while bench.clock.now() <= NOON + LONGEST_SILENCE:
        number = (await bench.ask(asking, session, number))["number"]
    [told] = await bench.tick()
    assert told.token == silent
    assert "hangs" in told.reason


@virtual
async def test_a_host_without_triggers_is_told_to_end_after_a_while(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    await bench.tick(TriggerUnwanted("t1"))
    await asyncio.sleep(LINGER.total_seconds())
    await bench.tick()
    assert await bench.running(token) != {"end"}
    await asyncio.sleep(1)
    await bench.tick()
    assert await bench.running(token) == {"end"}
    [acknowledged] = await bench.tick(TryReported(Ended(token, "success", NOON, NOON)))
    assert acknowledged.tokens == (token,)


@virtual
async def test_a_silent_host_is_ended_soon_though_the_clock_is_set_back(bench):
    [silent] = await bench.launched(TriggerWanted(spec("t1"), code("a")))
    await bench.tick(TryReported(Started(silent, NOON, 1)))
    bench.clock.off_by = -timedelta(hours=1)
    assert await bench.tick() == []
    await asyncio.sleep(LONGEST_SILENCE.total_seconds() + 1)
    [told] = await bench.tick()
    assert told.token == silent


@virtual
async def test_a_silent_host_without_triggers_is_ended(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    await bench.tick(TryReported(Started(token, NOON, 1)), TriggerUnwanted("t1"))
    await asyncio.sleep(max(LINGER, LONGEST_SILENCE).total_seconds() + 1)
    [told] = [*await bench.tick(), *await bench.tick()]
    assert told == TryUnwanted(token, told.reason)
    await bench.tick(failed(token))
    assert bench.triggerer.interval is None, "nothing is left to look after"


@virtual
async def test_a_silent_host_is_ended_after_one_that_died_while_asking(bench):
    [died] = await bench.launched(TriggerWanted(spec("t1"), code()))
    session = (await bench.ask(died))["session"]
    number = (await bench.ask(died, session))["number"]
    question = asyncio.create_task(bench.ask(died, session, number))
    await asyncio.sleep(1)
    await bench.tick(failed(died))
    assert (await question)["end"]
    await asyncio.sleep(FIRST_PAUSE.total_seconds())
    [token] = await bench.launched()
    await bench.ask(token)
    await asyncio.sleep(LONGEST_SILENCE.total_seconds() + 1)
    [told] = await bench.tick()
    assert told == TryUnwanted(token, told.reason)


@virtual
async def test_a_stopping_scheduler_ends_its_hosts_and_launches_none(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    session = (await bench.ask(token))["session"]
    number = (await bench.ask(token, session))["number"]
    question = asyncio.create_task(bench.ask(token, session, number))
    await asyncio.sleep(1)
    bench.triggerer.stop()
    assert (await question)["end"]
    assert await bench.launched(TryReported(Ended(token, "success", NOON, NOON))) == []


@virtual
async def test_a_stopping_scheduler_does_not_wait_to_launch_a_host(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    bench.triggerer.stop()
    await bench.tick(failed(token))
    assert bench.triggerer.due_at is None, "else it would be woken again and again once the pause is over"


@virtual
async def test_the_next_scheduler_takes_a_host_back_with_its_triggers(bench):
    wanted = [TriggerWanted(spec(name), code()) for name in ("t1", "t2")]
    [token] = await bench.launched(*wanted)
    known = await bench.ask(token)
    following = Bench(bench.clock)
    following.triggerer.recover(Held(running=frozenset({token, "a-try"})), bench.clock.now())
    question = asyncio.create_task(following.ask(token, known["session"], 1))
    assert await following.launched(wanted[1], TriggerWanted(spec("t3"), code())) == [token]
    answer = await question
    assert answer["tell_all"]
    work = await following.ask(token, answer["session"], running=["t1", "t2"])
    assert ([started["id"] for started in work["start"]], list(work["stop"])) == (["t3"], ["t1"])


@virtual
async def test_a_killed_trigger_is_told_from_one_that_is_stopped(bench):
    [token] = await bench.launched(*(TriggerWanted(spec(name), code()) for name in ("t1", "t2")))
    session = (await bench.ask(token))["session"]
    await bench.ask(token, session)
    await bench.tick(TriggerUnwanted("t1"), TriggerUnwanted("t2", is_killed=True), TriggerUnwanted("t2"))
    told = await bench.ask(token, session, 1)
    assert (set(told["stop"]), list(told["kill"])) == ({"t1", "t2"}, ["t2"])


@virtual
async def test_a_host_that_is_taken_back_learns_which_triggers_were_killed_meanwhile(bench):
    [token] = await bench.launched(*(TriggerWanted(spec(name), code()) for name in ("t1", "t2")))
    following = Bench(bench.clock)
    following.channels.triggers.put_nowait(TriggerUnwanted("t2", is_killed=True))
    following.triggerer.recover(Held(running=frozenset({token})), bench.clock.now())
    session = (await following.ask(token))["session"]
    told = await following.ask(token, session, running=["t1", "t2"])
    assert (set(told["stop"]), list(told["kill"])) == ({"t1", "t2"}, ["t2"])


@virtual
async def test_two_hosts_of_a_version_keep_their_triggers_when_taken_back(bench):
    wanted = [TriggerWanted(spec(name), code()) for name in ("t1", "t2")]
    [first] = await bench.launched(wanted[0])
    await bench.tick(failed(first))
    [second] = await bench.launched(wanted[1])
    await asyncio.sleep(1)
    [first] = await bench.launched()
    tokens = {"t1": first, "t2": second}
    assert [await bench.running(token) for token in tokens.values()] == [{"t1"}, {"t2"}]
    for name, other in (("t1", "t2"), ("t2", "t1")):
        successor = Bench(bench.clock)
        for message in wanted:
            successor.channels.triggers.put_nowait(message)
        successor.triggerer.recover(Held(running=frozenset(tokens.values())), bench.clock.now())
        outcome = {"outcomes": [{"id": name, "kind": "event"}]}
        reply = asyncio.create_task(successor.triggerer.answer(Request(tokens[name], 1, "trigger_outcomes", outcome)))
        await asyncio.sleep(1)
        assert [fired.id for fired in successor.fired()] == [name], "whichever host has run it, it has fired"
        assert not reply.done(), "and the host keeps that until it is stored"
        session = (await successor.ask(tokens[other]))["session"]
        told = await successor.ask(tokens[other], session, running=[other])
        assert (told.get("start", ()), told.get("stop", ())) == ((), ()), "existing hosts go on"
        await successor.tick(TriggerUnwanted(name))
        await reply


@pytest.mark.parametrize("cause", ["task", "machine"])
def test_a_host_without_triggers_is_not_launched_again(cause):
    async def test(bench):
        [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
        await bench.tick(TriggerUnwanted("t1"))
        assert await bench.launched(failed(token, cause=cause)) == []
        await asyncio.sleep(60)
        assert await bench.tick() == []

    virtual(test)()


@virtual
async def test_a_question_of_an_ended_process_is_closed(bench):
    [token] = await bench.launched(TriggerWanted(spec("t1"), code()))
    outcomes = {"outcomes": [{"id": "t1", "kind": "event"}]}
    async with asyncio.timeout(60), asyncio.TaskGroup() as questions:
        questions.create_task(bench.triggerer.answer(Request(token, 1, "trigger_outcomes", outcomes)))
        await asyncio.sleep(1)
        await bench.tick(failed(token))
    assert [outcome.id for outcome in bench.fired()] == ["t1"]


IDS = st.sampled_from([f"t{number}" for number in range(6)])


class SimulatedHost:
    """The host's side: its triggers, and its knowledge of the last answer."""

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
def test_a_host_runs_the_wanted_triggers_whatever_messages_are_lost(steps):
    work, host, sessions = HostWork("s0"), SimulatedHost(), 0
    for what, name in steps:
        if what == "want":
            work.want(spec(name))
        elif what == "unwant":
            work.unwant(name)
        elif what == "new host":
            host = SimulatedHost()
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
    work, host = HostWork("s"), SimulatedHost()
    for number in range(2 * MAX_STARTS + 1):
        work.want(spec(str(number)))
    sizes = []
    while host.ask(work):
        sizes.append(len(host.running))
    assert sizes == [0, MAX_STARTS, 2 * MAX_STARTS, 2 * MAX_STARTS + 1]


def test_a_trigger_that_is_wanted_twice_and_then_unwanted_is_stopped():
    work, host = HostWork("s"), SimulatedHost()
    work.want(spec("t"))
    while host.ask(work):
        pass
    work.unwant("t")
    work.want(spec("t"))
    work.unwant("t")
    while host.ask(work):
        pass
    assert host.running == set()
