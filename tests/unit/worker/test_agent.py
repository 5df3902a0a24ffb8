"""The agent of a worker, with schedulers that a test answers for."""

import httpx
import msgspec

from asynsched.clock import Clock
from asynsched.protocol.home_files import KEEPER_SOCKET
from asynsched.protocol.messages import Ended
from asynsched.protocol.worker_messages import Claimed, Renewed, Report, Ticket
from asynsched.settings import Settings
from asynsched.worker.agent import Agent
from asynsched.worker.schedulers import Schedulers
from tests.store.test_tickets import TERMS, launch_of

UNWANTED = "a user has cancelled it"


async def test_a_try_that_is_unwanted_when_its_claim_is_answered_ends_without_a_start(tmp_path):
    reports = []

    def answer(request: httpx.Request) -> httpx.Response:
        answers = {"claim": Claimed(launch_of("one"), TERMS, end=UNWANTED), "renew": Renewed(()), "report": None}
        kind = request.url.path.rpartition("/")[2]
        if kind == "report":
            reports.append(msgspec.json.decode(request.content, type=Report))
        return httpx.Response(200, content=msgspec.json.encode(answers[kind]))

    clock = Clock()
    schedulers = Schedulers(clock, httpx.MockTransport(answer))
    agent = Agent(Settings(home=str(tmp_path)), "w1", clock, schedulers)
    async with agent.serving():
        assert await agent.work(Ticket("one", "secret", ("http://here:1",))) == f"failed: {UNWANTED}"
    (report,) = reports
    assert isinstance(report.event, Ended)
    assert (report.event.reason, report.event.started_at, report.started) == (UNWANTED, None, None)
    assert not (tmp_path / KEEPER_SOCKET).exists(), "it needs no process"
