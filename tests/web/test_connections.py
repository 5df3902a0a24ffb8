"""What connections may take: their number, the time of their requests, and how long a stream may go on."""

import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta

import anyio
import httpx
import pytest
from msgspec.structs import replace

from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.queries import users
from asynsched.queries.context import QueryContext
from asynsched.queries.listening import start_feed
from asynsched.settings import WebSettings
from asynsched.web import connection_limits, loop_server, streams
from asynsched.web.app import make_app
from asynsched.web.loop_server import LoopServer
from asynsched.web.stored_access import StoredAccess
from tests.support.authority import Authority
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tests.web.conftest import Known, Site
from tests.web.filling import RUN_ID

WAITING = f"/dags/asks/dagRuns/{RUN_ID}"
STREAMS = {
    "the wait for a run": f"/api/v2{WAITING}/wait?interval=60",
    "the events": "/api/asynsched/v1/events",
    "a log that follows": f"/dags/asks/runs/{RUN_ID}/tasks/approve/log/follow?try_number=1&start=0",
}


@asynccontextmanager
async def served(app, settings: WebSettings | None = None) -> AsyncIterator[tuple[str, int]]:
    """Serve an application on a real port, and give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(LoopServer(app, settings or WebSettings(), Clock()).serve_until_cancelled, listener)
        yield listener.getsockname()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def with_events(site: Site, **settings: int) -> AsyncIterator[QueryContext]:
    """Give a context of the site, with events and these settings of the web."""
    chosen = replace(site.settings, web=WebSettings(**settings))
    async with anyio.create_task_group() as tasks:
        feed = await start_feed(tasks, chosen, site.database, Clock())
        yield QueryContext(site.database, chosen.home_path, chosen, Clock(), feed)
        tasks.cancel_scope.cancel()


async def hello(scope, receive, send) -> None:
    """Answer any request."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def answer_to(address: tuple[str, int], sent: bytes) -> bytes:
    """Return everything that the server sends on a connection until it closes that."""
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(sent)
        parts = []
        with anyio.fail_after(DEADLINE_SECONDS):
            try:
                while True:
                    parts.append(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return b"".join(parts)


async def test_a_request_that_never_gets_complete_loses_its_connection(monkeypatch):
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(connection_limits, "BODY_SECONDS", 0.1)
    whole = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with served(hello) as address:
        assert (await answer_to(address, b"")).startswith(b"HTTP/1.1 408 ")
        assert (await answer_to(address, whole[:-2])).startswith(b"HTTP/1.1 408 ")
        second = await answer_to(address, whole + whole[:-2])
        assert second.startswith(b"HTTP/1.1 200 ")
        body = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nabc"
        assert await answer_to(address, body) == b""


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture(params=["http", "https"])
def web(request: pytest.FixtureRequest, authority: Authority) -> WebSettings:
    """The settings of a server, with and without TLS."""
    if request.param == "http":
        return WebSettings()
    certificate, key = authority.certify("127.0.0.1")
    return WebSettings(tls_certificate=str(certificate), tls_key=str(key))


async def test_a_client_loses_its_connection_once_it_no_longer_reads_its_answer(web, authority, monkeypatch):
    monkeypatch.setattr(connection_limits, "READ_SECONDS", 1.0)
    gone = anyio.Event()

    async def endless(scope, receive, send) -> None:
        """Answer without end, until the client is gone."""
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill, send)
            assert (await receive())["type"] == "http.disconnect"
            tasks.cancel_scope.cancel()
        gone.set()

    async def fill(send) -> None:
        while True:
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
            await anyio.lowlevel.checkpoint()

    trusted = None if web.tls_certificate is None else ssl.create_default_context(cafile=str(authority.file))
    async with (
        served(endless, web) as (host, port),
        await anyio.connect_tcp(host, port, ssl_context=trusted, tls_standard_compatible=False) as stream,
    ):
        await stream.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with anyio.move_on_after(3.0):
            while True:
                await stream.receive()
        assert not gone.is_set()
        with anyio.fail_after(DEADLINE_SECONDS):
            await gone.wait()


async def test_a_handshake_of_tls_that_does_not_end_loses_its_connection(authority, monkeypatch):
    monkeypatch.setattr(loop_server, "HEAD_SECONDS", 0.1)
    certificate, key = authority.certify("127.0.0.1")
    async with served(hello, WebSettings(tls_certificate=str(certificate), tls_key=str(key))) as address:
        assert await answer_to(address, b"") == b""


async def test_the_head_of_a_request_has_a_largest_size():
    async with served(hello) as address:
        for name in (b"/" + b"a" * 100_000, b"/ HTTP/1.1\r\nx: " + b"a" * 100_000):
            assert (await answer_to(address, b"GET " + name)).startswith(b"HTTP/1.1 400 ")


async def test_a_connection_above_the_largest_number_is_refused_until_another_ends():
    async with served(hello, WebSettings(max_connections=2)) as address:
        with closing(socket.create_connection(address)), closing(socket.create_connection(address)):
            refused = await answer_to(address, b"")
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"web.max_connections" in refused
        # The server learns of their end by its event loop.
        with anyio.fail_after(DEADLINE_SECONDS):
            while not (await answer_to(address, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"ok"):
                await anyio.lowlevel.checkpoint()


async def test_streams_leave_half_of_the_connections_to_requests(site: Site):
    async with (
        with_events(site, max_connections=4) as context,
        served(make_app(context, Known()), context.settings.web) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_SECONDS) as client,
        AsyncExitStack() as open_streams,
    ):
        read = []  # a reader that is dropped ends its stream
        for _ in range(2):
            answer = await open_streams.enter_async_context(client.stream("GET", STREAMS["the wait for a run"]))
            read.append(answer.aiter_lines())
            assert json.loads(await anext(read[-1])) == {"state": "running"}
        refused = await client.get(STREAMS["the wait for a run"])
        assert (refused.status_code, "Too many streams" in refused.text) == (503, True)
        assert (await client.get(f"/api/v2{WAITING}")).status_code == 200


async def _end_session(context: QueryContext, _: httpx.AsyncClient) -> None:
    wanted = users.TokenFilter(now=context.clock.now(), owner="otto")
    [session] = (await context.ask(users.list_sessions, wanted)).items
    await context.act("anna", users.end_session, session.id)


async def _sign_out(_: QueryContext, client: httpx.AsyncClient) -> None:
    assert (await client.post("/logout", headers={"Origin": str(client.base_url)})).status_code == 303


LOSSES: dict[str, Callable] = {
    "the session is ended": _end_session,
    "the user signs out": _sign_out,
    "the user is deleted": lambda context, _: context.act("anna", users.delete_user, "otto"),
    "the user is disabled": lambda context, _: context.act("anna", users.disable_user, "otto"),
    "the role is lowered": lambda context, _: context.act("anna", users.set_roles, "otto", ["viewer"]),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_stream_ends_soon_after_its_reader_has_lost_a_right(site: Site, loss: str, monkeypatch):
    monkeypatch.setattr(streams, "RENEWAL", timedelta(milliseconds=50))
    begun, ended = set(), set()

    async def read(client: httpx.AsyncClient, what: str) -> None:
        async with client.stream("GET", STREAMS[what]) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            begun.add(what)
            async for _ in lines:
                pass
        ended.add(what)

    async with with_events(site) as context, served(make_app(context, StoredAccess(context))) as (host, port):
        now, secret = Clock().now(), users.new_secret()
        await context.act("anna", users.create_user, "otto", ["operator"], password=None, now=now)
        user = await context.ask(users.store.get_user, "otto")
        lasts = timedelta(hours=1)
        await context.act("otto", users.sign_in, secret, "otto", user_id=user.id, now=now, lasts=lasts)
        async with (
            httpx.AsyncClient(
                base_url=f"http://{host}:{port}", cookies={f"asynsched_{port}": secret}, timeout=DEADLINE_SECONDS
            ) as client,
            anyio.create_task_group() as readers,
        ):
            for what in STREAMS:
                readers.start_soon(read, client, what)
            await eventually(lambda: begun == set(STREAMS), "all streams have begun")
            assert ended == set()
            await LOSSES[loss](context, client)
            await eventually(lambda: ended == set(STREAMS), "all streams have ended")


async def _until_it_ends(client: httpx.AsyncClient, path: str, then: Callable) -> None:
    """Read a stream until it ends, and do something when it has begun."""
    async with client.stream("GET", path) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await then()
        async for _ in lines:
            pass


@pytest.mark.parametrize("what", STREAMS)
async def test_a_stream_ends_soon_after_its_readers_token_is_revoked(site: Site, what: str, monkeypatch):
    monkeypatch.setattr(streams, "RENEWAL", timedelta(milliseconds=50))
    async with with_events(site) as context, served(make_app(context, StoredAccess(context))) as (host, port):
        now, lasts = Clock().now(), timedelta(hours=1)
        await context.act("anna", users.create_user, "otto", ["operator"], password=None, now=now)
        made = await context.act(
            "otto", users.create_token_of, "otto", "nightly", scope="view", dag_ids=None, now=now, lasts=lasts
        )
        headers = {"Authorization": f"Bearer {made.secret}"}
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}", headers=headers, timeout=DEADLINE_SECONDS
        ) as client:
            await _until_it_ends(client, STREAMS[what], lambda: context.act("otto", users.delete_token, made.info.id))


@pytest.mark.parametrize("failure", [StoreUnavailable("no answer"), None], ids=["database away", "no answer"])
async def test_a_stream_ends_when_the_rights_of_its_reader_cannot_be_read_in_time(site: Site, failure, monkeypatch):
    for name in ("RENEWAL", "LOOK", "RETRY"):
        monkeypatch.setattr(streams, name, timedelta(milliseconds=50))
    access = Known()

    async def fail(request) -> None:
        if failure is not None:
            raise failure
        await anyio.sleep_forever()

    async def lose() -> None:
        access.identify = fail

    async with (
        with_events(site) as context,
        served(make_app(context, access)) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_SECONDS) as client,
    ):
        await _until_it_ends(client, STREAMS["the wait for a run"], lose)


def test_a_stream_ends_within_15_seconds_of_the_loss_of_a_right():
    longest = streams.RENEWAL + streams.LOOK
    assert longest.total_seconds() <= 15
