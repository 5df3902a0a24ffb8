"""The simulated network between workers and schedulers: the requests of the production client, to the production API.

A request may be late or lost, and so may its answer. One that is late has an effect even if its sender does not wait
any more.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from asynsched.errors import AsynschedError
from asynsched.protocol.worker_messages import PREFIX
from asynsched.web.errors import HANDLERS
from asynsched.web.workers import WorkerApi
from tests.faults.simulated.site import Site

LONGEST_DELAY = 25.0
"""Virtual seconds that a late message takes; a worker waits for ten."""
TASK = "answer a worker"
Answered = tuple[int, list[tuple[bytes, bytes]], bytes]


def address_of(home: Path) -> str:
    """Return the address of the scheduler of a home, as tickets name it."""
    return f"http://{home.name}"


class Network(httpx.AsyncBaseTransport):
    """The way of one worker to all schedulers."""

    def __init__(self, world: Any, machine: Any) -> None:
        self._world = world
        self._machine = machine
        self._apps: dict[int, Starlette] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and wait for its answer. Raises TransportError."""
        chance = self._world.chance
        patience: float = request.extensions["timeout"]["read"]
        answered: asyncio.Future[Answered | BaseException] = asyncio.get_running_loop().create_future()
        if self._is_lost("to", "lost_request"):
            self._machine.note_trouble(patience)
            if chance.ways.random() < 0.5:
                raise self._failure(httpx.ConnectError("the connection was refused"))
        else:
            delay = chance.latency() + self._delay("late_request")
            self._world.later(delay, self._arrive, request, answered)
        await asyncio.wait({answered}, timeout=patience)
        if not answered.done():
            answered.cancel()
            raise self._failure(httpx.ReadTimeout("no answer has come"))
        if isinstance(answer := answered.result(), BaseException):
            raise self._failure(answer)
        status, headers, content = answer
        if status >= 500:
            self._machine.note_trouble()
        return httpx.Response(status, headers=headers, content=content)

    def _failure(self, error: BaseException) -> BaseException:
        self._machine.note_trouble()
        return error

    def _is_lost(self, way: str, fault: str) -> bool:
        return way in self._machine.cut_off or self._world.chance.happens(fault)

    def _delay(self, fault: str) -> float:
        """Return how much longer a message takes: seconds."""
        if not self._world.chance.happens(fault):
            return 0.0
        self._machine.note_trouble(LONGEST_DELAY)
        return self._world.chance.between(0.5, LONGEST_DELAY)

    def _arrive(self, request: httpx.Request, answered: "asyncio.Future[Answered | BaseException]") -> None:
        """Send a request to a scheduler, if there is one; one that is stopped answers later."""
        site = next(site for site in self._world.sites.values() if site.home.name == request.url.host)
        process, scheduler = site.process, site.scheduler
        is_there = scheduler is not None and scheduler.started.is_set() and process is not None and not process.is_dead
        if not is_there:
            _fail(answered, httpx.ConnectError("nobody listens"))
            return
        task = process.start(self._answer(site, request), TASK)
        task.add_done_callback(lambda task: self._return(site, task, answered))

    async def _answer(self, site: Site, request: httpx.Request) -> Answered:
        """Answer a request, as the web server of a scheduler does."""
        url = request.url
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": url.scheme, "path": url.path, "raw_path": url.raw_path, "query_string": url.query,
            "root_path": "", "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (url.host, 80), "client": (self._machine.name, 0),
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(site)(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], list(sent[0]["headers"]), body

    def _app(self, site: Site) -> Starlette:
        """Return the part of a scheduler's application that workers use."""
        scheduler, key = site.scheduler, id(site.scheduler)
        if key not in self._apps:
            routes = [Mount(PREFIX, routes=WorkerApi(site.settings, scheduler._find_desk()).routes)]
            self._apps = {key: Starlette(routes=routes, exception_handlers=HANDLERS)}
        return self._apps[key]

    def _return(
        self, site: Site, task: "asyncio.Task[Answered]", answered: "asyncio.Future[Answered | BaseException]"
    ) -> None:
        """Carry an answer back; that of a process that has died meanwhile is none."""
        site.database.failed.discard(TASK)  # the next request is another one's
        if task.cancelled() or answered.done():
            _fail(answered, httpx.ReadError("the scheduler hung up"))
        elif (error := task.exception()) is not None:
            self._note_error(site, error)
            _fail(answered, httpx.ReadError("the scheduler hung up"))
        elif not self._is_lost("from", "lost_answer"):
            delay = self._world.chance.latency() + self._delay("late_answer")
            self._world.later(delay, _succeed, answered, task.result())
        else:
            self._machine.note_trouble(LONGEST_DELAY)
            if self._world.chance.ways.random() < 0.5:
                _fail(answered, httpx.ReadError("the connection broke"))

    def _note_error(self, site: Site, error: BaseException) -> None:
        """An error that no handler knows is a bug, unless the scheduler stops meanwhile."""
        if not isinstance(error, AsynschedError) and not site.is_stopping:
            self._world.fail(error)


def _succeed(answered: "asyncio.Future[Answered | BaseException]", answer: Answered) -> None:
    if not answered.done():
        answered.set_result(answer)


def _fail(answered: "asyncio.Future[Answered | BaseException]", error: BaseException) -> None:
    if not answered.done():
        answered.set_result(error)
