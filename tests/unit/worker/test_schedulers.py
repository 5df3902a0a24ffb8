"""The messages of a worker to schedulers, which a small server stands for."""

import asyncio
from functools import partial

import anyio
import httpx
import msgspec
import pytest

from asynsched.clock import Clock
from asynsched.protocol.messages import Reply, Request
from asynsched.protocol.worker_messages import Ask, LogSize, Proof, Renew, Renewed, Ticket
from asynsched.worker.schedulers import PATIENT, Schedulers, Unreachable
from tests.support.waiting import DEADLINE_SECONDS

N_WAITING = 150
PROOF = Proof("one", "secret")


class Desk:
    """A scheduler that keeps requests of tries waiting, and answers everything else."""

    def __init__(self) -> None:
        self.n_waiting = 0
        self.all_wait, self.goes_on = anyio.Event(), anyio.Event()
        self.heads: list[bytes] = []
        self.address = ""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        await reader.readexactly(int(lines[b"content-length"]))
        answer: msgspec.Struct = Renewed(()) if b"/renew" in head else LogSize(1)
        if b"/request" in head:
            answer = Reply("one", 1)
            self.n_waiting += 1
            if self.n_waiting == N_WAITING:
                self.all_wait.set()
            await self.goes_on.wait()
        data = msgspec.json.encode(answer)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        await writer.drain()
        writer.close()


@pytest.fixture
async def desk():
    desk = Desk()
    server = await asyncio.start_server(desk.take, "127.0.0.1")
    desk.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield desk
    server.close()


async def test_requests_that_wait_do_not_keep_a_renewal_waiting(desk):
    schedulers = Schedulers(Clock())
    ask = Ask(PROOF, Request("one", 1, "variable_get", {"key": "k"}))
    with anyio.fail_after(DEADLINE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(N_WAITING):
                tasks.start_soon(partial(schedulers.send, [desk.address], "/request", ask, Reply, patience=PATIENT))
            await desk.all_wait.wait()
            assert await schedulers.send([desk.address], "/renew", Renew((PROOF,)), Renewed) == Renewed(())
            desk.goes_on.set()
    await schedulers.close()


async def test_passwords_of_the_workers_user_do_not_take_the_place_of_a_tickets_secret(desk, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    schedulers = Schedulers(Clock())
    await schedulers.send_log(Ticket("one", "secret", (desk.address,)), 0, b"x")
    await schedulers.close()
    (head,) = desk.heads
    assert b"Authorization: Bearer secret\r\n" in head


async def test_a_dead_address_of_each_database_is_asked_once():
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host.startswith("dead"):
            raise httpx.ConnectError("no answer", request=request)
        return httpx.Response(200, content=msgspec.json.encode(Renewed(())))

    schedulers = Schedulers(Clock(), httpx.MockTransport(answer))
    for others in (("", "-spare"), ("", "-spare"), ("-spare", "")):  # schedulers of later tickets may start elsewhere
        for name in ("a", "b"):
            hosts = [f"dead-{name}", *(name + other for other in others)]
            await schedulers.send([f"http://{host}" for host in hosts], "/renew", Renew((PROOF,)), Renewed)
    await schedulers.close()
    assert asked == ["dead-a", "a", "dead-b", "b", "a", "b", "a", "b"]


async def test_an_answer_that_cannot_be_decoded_counts_as_none():
    broken = httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-encoding": "gzip"}, content=b"no"))
    schedulers = Schedulers(Clock(), broken)
    with pytest.raises(Unreachable, match="http://here:1"):
        await schedulers.send(["http://here:1"], "/renew", Renew((PROOF,)), Renewed)
    await schedulers.close()
