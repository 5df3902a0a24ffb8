"""The simulated process of a trigger host, and the triggers that it runs.

Both ends of its talk with the scheduler are the program's own: the host's `TriggerRunner` here, the triggerer there.
Simulated are the process, which dies or hangs, its connection, and the events that the triggers wait for.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import msgspec

from asynsched.authoring.triggers.base import (
    BaseTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    TriggerEvent,
)
from asynsched.protocol.messages import Ended, Launch, Reply, Request, Started
from sandbox.run import answer_of
from sandbox.trigger_host import TriggerRunner
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.loop import NOBODY, Process

ENDS = {"success": TaskSuccessEvent, "failed": TaskFailedEvent, "skipped": TaskSkippedEvent}
"""The event that a trigger fires to end its task, by the intended state of the task."""


class SimulatedHost:
    """One process: it runs triggers until it is told to end, is killed, hangs, or dies with its keeper.

    Attributes:
        started: The report that it began; None before that.
        questions: Its requests that were not answered yet.
    """

    def __init__(self, world: Any, keeper: Any, launch: Launch) -> None:
        self.world = world
        self.launch = launch
        self.started: Started | None = None
        self.questions: dict[int, Request] = {}
        self.process = Process(f"host {launch.token[-12:]}", self._die)
        self.process.context.run(HOST.set, self)
        self._keeper = keeper
        self._runner = TriggerRunner(self)
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._n_questions = 0
        self._ending: tuple[str, str] | None = None
        self._is_over = False

    @property
    def triggers(self) -> set[str]:
        """The triggers that run."""
        return set(self._runner._running)

    @property
    def outcomes(self) -> set[str]:
        """The triggers that have come to something which may not be stored yet."""
        return set(self._runner._outcomes)

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end."""
        return self._ending is not None

    def get_ready(self) -> None:
        """Begin its process some time later."""
        self.world.later(self.world.chance.latency(), self._begin)

    def end(self, reason: str, cause: str, grace: float) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        if self._is_over:
            return
        is_first = self._ending is None
        self._ending = self._ending or (reason, cause)
        if self.started is None:
            self._gone(*self._ending)
        elif is_first:
            if (handler := self.process.signal_handlers.get(signal.SIGTERM)) is not None:
                self.world.later(0, handler, process=self.process)
            self.world.later(self.world.chance.between(0, grace), self._killed)

    def die_with_keeper(self) -> None:
        """Kill it as its keeper dies, without a report."""
        self._over("killed")

    def answered(self, reply: Reply) -> None:
        """The scheduler has answered one of its questions."""
        if self.questions.pop(reply.request_id, None) is not None:
            answer = self._answers.pop(reply.request_id)
            if not answer.done():
                self.world.later(0, _set, answer, reply, process=self.process)

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask the scheduler, in place of the host's link."""
        self._n_questions += 1
        number = self._n_questions
        self.questions[number] = request = Request(
            self.launch.token, number, operation, msgspec.json.decode(msgspec.json.encode(arguments))
        )
        self._answers[number] = asyncio.get_running_loop().create_future()
        NOBODY.run(self._keeper.report, request)
        value = answer_of(operation, await self._answers[number])
        if operation == "trigger_outcomes":
            self.world.invariants.check_acknowledged([outcome.id for outcome in arguments["outcomes"]])
        return value

    def hang(self) -> None:
        """Run no more, and be there still."""
        self.world.say("fault", f"{self.process.name} hangs")
        self.process.is_stopped = True

    def die(self) -> None:
        """Die without a word."""
        self.world.later(0, self._die, "by its trigger")

    def _begin(self) -> None:
        if self._is_over:
            return
        self.started = Started(self.launch.token, self._keeper.clock.now(), 1)
        self.world.say("host", f"{self.launch.token} begins")
        self._keeper.report(self.started)
        if not self._is_over:
            self.process.start(self._serve(), "trigger host")
            if self.world.chance.happens("host_death"):
                self.world.later(self.world.chance.between(0, 10), self._die, "by a fault")

    async def _serve(self) -> None:
        try:
            await self._runner.serve()
        except Violation as exc:
            self.world.fail(exc)
            return
        self.world.later(0, self._finish)

    def _finish(self) -> None:
        if self._is_over:
            return
        if self._ending is not None:
            self._gone(*self._ending)
            return
        self._over("has ended")
        assert self.started is not None
        ended = Ended(self.launch.token, "success", self._keeper.clock.now(), self.started.started_at)
        self._keeper.ended(self, ended)

    def _die(self, when: str) -> None:
        if not self._is_over:
            self.world.say("fault", f"{self.process.name} dies {when}")
            self._gone("killed by signal 9 (SIGKILL)", "machine")

    def _killed(self) -> None:
        if not self._is_over and self._ending is not None:
            self._gone(*self._ending)

    def _gone(self, reason: str, cause: Any) -> None:
        self._over(reason)
        started_at = None if self.started is None else self.started.started_at
        now = self._keeper.clock.now()
        self._keeper.ended(self, Ended(self.launch.token, "failed", now, started_at, reason, cause=cause))

    def _over(self, why: str) -> None:
        self._is_over = True
        self.world.ledger.host_deaths.append(self.world.clock.monotonic())
        self.world.say("host", f"{self.launch.token} {why}")
        self.process.kill()


class ScriptedTrigger(BaseTrigger):
    """A trigger that acts, after some seconds, as its task has told it.

    Args:
        does: `fires`, `raises`, `never`, `crashes` or `hangs` (its host), or the state that it ends its task in.
        seconds: After how long.
    """

    def __init__(self, does: str, seconds: float) -> None:
        super().__init__()
        self.does = does
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"<{self.does} after {self.seconds:g} s>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        host = HOST.get()
        waits = host.world.ledger.deferrals[self.trigger_id]
        await asyncio.sleep(self.seconds)
        match self.does:
            case "never":
                await asyncio.Event().wait()
            case "crashes":
                host.die()
                await asyncio.Event().wait()
            case "hangs" if not waits.has_hung:
                waits.has_hung = True
                host.hang()
                await asyncio.sleep(0)
            case "raises":
                waits.n_errors += 1
                raise RuntimeError("it fails as planned")
        if self.does in ENDS:
            waits.ends.add(self.does)
            yield ENDS[self.does]()
        waits.n_events += 1
        yield TriggerEvent({"of": self.trigger_id, "number": waits.n_events})


HOST: ContextVar[SimulatedHost] = ContextVar("host")


def log_of(world: Any) -> Any:
    """Return the stand-in for the log of hosts: it writes warnings and errors into the trace."""

    def note(text: str, *args: Any) -> None:
        world.say(HOST.get().process.name, (text % args).splitlines()[0])

    return SimpleNamespace(info=lambda *_: None, warning=note, error=note)


def _set(answer: "asyncio.Future[Reply]", reply: Reply) -> None:
    if not answer.done():
        answer.set_result(reply)
