"""What a scheduler passes on between its executor and its tries."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from asynsched.channels import Channels, TaskReady, TriesReported
from asynsched.clock import Clock, VirtualClock
from asynsched.executors import client as module
from asynsched.executors.base import Executor, ExecutorContext, Held, TryEvent
from asynsched.executors.client import ExecutorClient
from asynsched.executors.registry import SeveralExecutors
from asynsched.executors.requests import RequestAnswerer
from asynsched.protocol.messages import CodeVersion, Ended, Launch, Reply, Request, RunContext
from asynsched.settings import Settings
from asynsched.simulation.simulation import run_virtual
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON


class Running:
    async def launch(self, launches):
        """Start nothing: these tries run already."""


async def answer(request, ready):
    return Reply(request.token, request.request_id, value="answered")


def test_a_request_waits_for_its_try_however_long_the_start_takes():
    clock, channels = VirtualClock(NOON), Channels()
    client = ExecutorClient(
        channels=channels, clock=clock, answerer=RequestAnswerer(PassingDatabase(None), clock, {"ask": answer})
    )
    client.executor = Running()

    async def ask_while_it_starts():
        taken_up, unknown = (asyncio.create_task(client.answer(Request(token, 1, "ask", {}))) for token in "ab")
        await asyncio.sleep(100 * module.LONGEST_UNKNOWN.total_seconds())
        launch = Launch("a", "t", -1, 1, 0, RunContext("d", "r", "manual", NOON), CodeVersion("", ""), "log")
        channels.ready.put_nowait(TaskReady(1, launch))
        serving = asyncio.create_task(client.run())
        assert (await taken_up).value == "answered"
        began_at = clock.now()
        assert "not known" in (await unknown).error
        assert timedelta() < clock.now() - began_at <= module.LONGEST_UNKNOWN
        serving.cancel()

    run_virtual(ask_while_it_starts, clock)


class Looking(Executor):
    """An executor of a package of its own, which only looks."""

    parallelism = 1

    def __init__(self, context):
        super().__init__(context)
        self.n_looks = 0

    async def start(self, lease_epoch):
        return Held()

    async def launch(self, launches):
        """Start nothing."""

    async def kill(self, token, reason):
        """End nothing."""

    async def acknowledge(self, tokens):
        """Forget nothing."""

    async def drain(self, deadline):
        """Nothing runs."""

    async def close(self):
        """Nothing is open."""

    def look(self) -> None:
        self.n_looks += 1


class Hearing(Looking):
    def __init__(self, context):
        super().__init__(context)
        self.heard = []

    def hear(self, events: Sequence[TryEvent]) -> None:
        self.heard.append(events)


async def test_an_executor_hears_what_workers_report_or_looks(tmp_path):
    clock, channels = Clock(), Channels()
    client = ExecutorClient(
        channels=channels, clock=clock, answerer=RequestAnswerer(PassingDatabase(None), clock, {"ask": answer})
    )
    context = ExecutorContext(tmp_path, Settings(), clock, "me", client.report, client.answer)
    made: list[Looking] = []

    def making(kind: type[Looking]):
        return lambda context: made.append(kind(context)) or made[-1]

    client.executor = SeveralExecutors(context, {"looking": making(Looking), "hearing": making(Hearing)})
    events = (Ended("one", "success", NOON),)
    for reported in (events, ()):
        channels.ready.put_nowait(TriesReported(reported))
        await client.tick(NOON)
    looking, hearing = made
    assert looking.n_looks == 2, "it reads from the database what it does not hear"
    assert (hearing.n_looks, hearing.heard) == (1, [events])
