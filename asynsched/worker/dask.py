"""A Dask worker as a worker of ours: the plugin that schedulers register with their cluster, and its task.

    Dask scheduler ──task──▶ Dask worker ──ticket──▶ agent (in the worker's event loop) ──▶ keeper

A worker of a name has a home of its own, so that the worker which follows it after a crash goes on with its tries.
"""

import asyncio
import getpass
import os
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from anyio.to_thread import run_sync
from distributed import WorkerPlugin, get_worker
from msgspec import Struct
from msgspec.structs import replace

from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.loggers import get_logger
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import LeaseSettings, LogSettings, ParseSettings, Settings, WorkersSettings
from asynsched.worker.agent import Agent, Outcome
from asynsched.worker.schedulers import Schedulers
from sandbox.confine import close_memory

log = get_logger(__name__)

PLUGIN = "asynsched"
LAST_SECONDS = 20.0
"""Longest that the stop of a worker waits for the ends of tries; the next worker of the name reports the rest."""


class Terms(Struct, frozen=True):
    """The settings of schedulers that count on workers, too.

    Attributes:
        homes: Folder of the homes; empty: below that of temporary files.
    """

    homes: str
    airflow: Literal["ours", "installed", "off"]
    default_timezone: str
    shutdown_grace: float
    lease: LeaseSettings
    log: LogSettings
    parse: ParseSettings
    workers: WorkersSettings


def terms_of(settings: Settings) -> Terms:
    """Return the terms that a scheduler's settings mean for its workers."""
    return Terms(
        homes=settings.dask.worker_homes, airflow=settings.airflow, default_timezone=settings.default_timezone,
        shutdown_grace=settings.shutdown_grace, lease=settings.lease, parse=settings.parse, workers=settings.workers,
        log=replace(settings.log, file=None, store="", store_options=""),
    )  # fmt: skip


class TryPlugin(WorkerPlugin):  # type: ignore[misc]
    """Serves an agent for as long as its Dask worker lives."""

    name = PLUGIN
    idempotent = True

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._worker: Any
        self._agent: Agent
        self._starting: asyncio.Task[asyncio.Task[None]]
        self._working: set[asyncio.Task[Outcome]] = set()

    async def setup(self, worker: Any) -> None:
        """Start the agent. An error ends the worker's start."""
        self._worker = worker
        self._stopping = asyncio.Event()
        self._starting = asyncio.create_task(self._start(worker))
        await self._starting

    async def _start(self, worker: Any) -> "asyncio.Task[None]":
        """Return the task that serves the agent, once it does."""
        close_memory()  # tickets hold secrets, and tasks are processes of the same user
        clock, terms, name = Clock(), self._terms, str(worker.name)
        folder = folder_of(terms)
        settings = Settings(
            home=str(folder / quote(name, safe="")), airflow=terms.airflow, default_timezone=terms.default_timezone,
            shutdown_grace=terms.shutdown_grace, lease=terms.lease, log=terms.log, parse=terms.parse,
            workers=terms.workers,
        )  # fmt: skip
        await run_sync(partial(make_folder, folder, is_shared=not terms.homes))
        self._agent, ready = Agent(settings, name, clock, Schedulers(clock)), asyncio.Event()
        serving = asyncio.create_task(self._serve(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([waiting, serving], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            waiting.cancel()
            await serving  # raises its error
        serving.add_done_callback(lambda serving: _close_failed(worker, serving))
        return serving

    async def _serve(self, ready: asyncio.Event) -> None:
        async with self._agent.serving():
            ready.set()
            await self._stopping.wait()

    async def teardown(self, worker: Any) -> None:
        """Give running tries the setting `shutdown_grace`, interrupt the rest, and report all ends."""
        self._stopping.set()
        serving = await self._starting
        await asyncio.wait([serving], timeout=LAST_SECONDS)
        serving.cancel()

    async def work(self, ticket: Ticket) -> Outcome:
        """Run the try of a ticket, and return what became of it."""
        await asyncio.shield(self._starting)
        working = asyncio.create_task(self._work(ticket))
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        return await asyncio.shield(working)  # a worker that closes cancels its tasks, and only then its plugins

    async def _work(self, ticket: Ticket) -> Outcome:
        """Work on a ticket, once the tries of an agent before this one have left it a thread."""
        await self._agent.until_fewer(self._worker.state.nthreads)
        try:
            return await self._agent.work(ticket)
        except Exception as exc:
            # As if this worker had died: Dask gives its tasks to others.
            log.exception("worker.failed")
            _close(self._worker, exc)
            return await asyncio.Future[Outcome]()


def folder_of(terms: Terms) -> Path:
    """Return the folder of the homes of this machine's workers."""
    if terms.homes:
        return Path(terms.homes).expanduser()
    return Path(tempfile.gettempdir()) / f"asynsched-dask-{getpass.getuser()}"


def make_folder(folder: Path, *, is_shared: bool) -> None:
    """Make a folder for the homes of workers.

    Args:
        is_shared: It is among folders of other users, one of whom may have made it first.

    Raises:
        SettingsError: Others can write in such a folder.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    if not is_shared:
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SettingsError(
            f"{folder} is not a folder of this user alone, so others could change tickets in it: set dask.worker_homes"
        )


def _close_failed(worker: Any, serving: "asyncio.Task[None]") -> None:
    """Close a worker whose agent has failed."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        log.error("worker.failed", error=str(error))
        _close(worker, error)


def _close(worker: Any, error: BaseException) -> None:
    """Close a worker for an error of its own: its nanny starts another one."""
    worker.loop.add_callback(worker.close, nanny=False, reason=f"asynsched: {error}")


async def work_on(ticket: Ticket, terms: Terms) -> str:
    """Run the try of a ticket on the worker that calls this, and return what became of it, in one line."""
    worker: Any = get_worker()
    if PLUGIN not in worker.plugins:  # the Dask scheduler has started again since ours has registered it
        await worker.plugin_add(TryPlugin(terms), name=PLUGIN, catch_errors=False)
    plugin = worker.plugins[PLUGIN]
    assert isinstance(plugin, TryPlugin)
    return (await plugin.work(ticket)).text
