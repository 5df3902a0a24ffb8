"""The page inside another program, and beside a scheduler that nobody looks at."""

import asyncio
import socket
import subprocess
import sys
from unittest.mock import AsyncMock

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from asynsched import Scheduler
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.settings import WebSettings
from asynsched.store.database import AnnouncingDatabase, Database
from asynsched.store.engines.opening import open_as_set
from asynsched.web import hosting, server
from asynsched.web.access import Access, Identity, Permission
from tests.support.embedding import HANGS, Program

ONE = """
    from asynsched import DAG, task

    with DAG("one"):

        @task
        def one():
            return 1

        one()
"""
PATH = "/asynsched/api/v2/dags/one"


@pytest.fixture
def program(tmp_path, monkeypatch) -> Program:
    made = Program(tmp_path)
    monkeypatch.setenv(HANGS, str(made.hangs))
    made.write(ONE)
    return made


class OfHost(Access):
    """The users of the program."""

    async def identify(self, request) -> Identity:
        return Identity(request.headers["x-of-host"], Permission.ADMINISTER)


def mounted(app) -> httpx.AsyncClient:
    host = Starlette(routes=[Route("/", lambda _: PlainTextResponse("the host's")), Mount("/asynsched", app)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://any.name.example")


async def test_a_program_mounts_the_page_and_it_answers_while_the_scheduler_serves(program):
    scheduler = Scheduler(**program.options())
    app = scheduler.web()
    app.offer_link("a secret of a link", "the owner")
    async with mounted(app) as client:
        answer = await client.get(PATH)
        assert (answer.status_code, answer.json()["detail"]) == (503, "The scheduler is not serving.")
        async with anyio.create_task_group() as tasks:
            await tasks.start(scheduler.serve)
            await scheduler.wait_idle()
            page = await client.get(PATH, headers={"accept": "text/html"})
            assert (page.status_code, page.headers["location"]) == (303, f"/asynsched/login?next={PATH}")
            signed_in = await client.get("/asynsched/login", params={"key": "a secret of a link", "next": PATH})
            assert signed_in.headers["location"] == PATH
            assert "Path=/asynsched;" in signed_in.headers["set-cookie"]
            assert (await client.get(PATH)).json()["dag_id"] == "one"
            paused = await client.patch(PATH, json={"is_paused": True}, headers={"sec-fetch-site": "same-origin"})
            assert paused.json()["is_paused"] is True
            scheduler.request_stop()
        assert (await client.get(PATH)).status_code == 503
        assert (await client.get("/")).text == "the host's"


async def test_a_program_may_tell_itself_who_asks(program):
    scheduler = Scheduler(**program.options())
    async with mounted(scheduler.web(OfHost())) as client, anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        answer = await client.get(PATH, headers={"x-of-host": "ada"})
        assert answer.json()["dag_id"] == "one"
        assert (await client.post("/asynsched/login", data={"username": "ada"})).status_code in (404, 405)
        scheduler.request_stop()


class Slow(AnnouncingDatabase):
    """A database that answers once it may."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner, lambda: None)
        self.asked, self.may_answer, self.is_closed = anyio.Event(), anyio.Event(), False

    async def read(self, query, *args, **kwargs):
        self.asked.set()
        await self.may_answer.wait()
        return await super().read(query, *args, **kwargs)

    async def close(self) -> None:
        self.is_closed = True
        await super().close()


async def test_a_request_during_a_stop_has_its_answer(program, monkeypatch):
    async with Scheduler(**program.options()) as scheduler:
        settings = scheduler.settings
    slow = Slow(await open_as_set(settings))
    monkeypatch.setattr(hosting, "open_as_set", AsyncMock(return_value=slow))
    app = hosting.WebApp(settings, Clock(), is_ready=lambda: True, access=OfHost())
    async with mounted(app) as client, anyio.create_task_group() as tasks:
        answer = asyncio.create_task(client.get("/asynsched/api/v2/dags/two", headers={"x-of-host": "ada"}))
        await slow.asked.wait()
        tasks.start_soon(app.aclose)
        await anyio.wait_all_tasks_blocked()
        assert not slow.is_closed
        slow.may_answer.set()
        assert (await answer).status_code == 404
    assert slow.is_closed


def test_a_scheduler_loads_no_web_server_before_somebody_looks():
    program = "import sys, asynsched.cli.serving; print({'starlette', 'uvicorn', 'argon2'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_a_free_port_is_taken_if_another_program_has_the_usual_one(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        monkeypatch.setattr(server, "USUAL_PORT", holder.getsockname()[1])
        listener = server.open_listener(WebSettings())
        with listener.socket:
            assert listener.taken == f"127.0.0.1:{holder.getsockname()[1]}"
            assert listener.url == f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
            assert listener.is_local
    assert server.open_listener(WebSettings(listen="off")) is None
    with server.open_listener(WebSettings(listen="0.0.0.0:0")).socket as everywhere:
        # asyncio sets TCP_NODELAY only for these: else an answer in two parts takes 40 ms.
        assert everywhere.proto == socket.IPPROTO_TCP
        assert everywhere.getsockname()[0] == "0.0.0.0"


WRONG = {
    "listen": ({"listen": "8080"}, "neither HOST:PORT nor off"),
    "half of a certificate": ({"tls_certificate": "a.pem"}, "must be set together"),
    "no certificate": ({"tls_certificate": "none.pem", "tls_key": "none.key"}, "none.pem and none.key cannot be used"),
    "a base URL without a scheme": ({"base_url": "example.org"}, "must be a URL such as"),
    "a header that anybody may send": ({"user_header": "X-User"}, "needs web.trusted_proxies"),
    "a proxy that is no address": ({"trusted_proxies": ("proxy",)}, "'proxy' is no IP address or network"),
    "a provider that knows us not": ({"oidc_issuer": "https://login.example"}, "needs web.oidc_client_id"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_of_the_page_is_told_with_its_name(what):
    values, message = WRONG[what]
    with pytest.raises(SettingsError, match=r"^web\.") as caught:
        server.open_listener(WebSettings(**values))
    assert message in str(caught.value)
