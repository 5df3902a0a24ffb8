"""Requests of tries that a scheduler does not know yet, or does not know at all."""

import asyncio
from datetime import timedelta

from asynsched.channels import Channels, TaskReady
from asynsched.clock import VirtualClock
from asynsched.executors import client as module
from asynsched.executors.client import ExecutorClient
from asynsched.executors.requests import RequestAnswerer
from asynsched.protocol.messages import CodeVersion, Launch, Reply, Request, RunContext
from asynsched.simulation.simulation import run_virtual
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON


class Executor:
    async def launch(self, launches):
        """Start nothing: these tries run already."""


async def answer(request, ready):
    return Reply(request.token, request.request_id, value="answered")


def test_a_request_waits_for_its_try_however_long_the_start_takes():
    clock, channels = VirtualClock(NOON), Channels()
    client = ExecutorClient(
        channels=channels, clock=clock, answerer=RequestAnswerer(PassingDatabase(None), clock, {"ask": answer})
    )
    client.executor = Executor()

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
