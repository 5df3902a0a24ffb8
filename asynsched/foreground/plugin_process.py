"""The process that loads plugins: how it is started, what it answers, and how it accompanies a scheduler.

    scheduler ──REQUEST──▶ process ──plugins and policies──▶ log
              ──a line, at the stop──▶     ──errors of listeners──▶ log

It stays while a listener hears of the scheduler's start or stop, and ends at once otherwise.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from subprocess import DEVNULL

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asynsched.airflow.installation import entry_points_of_packages, options_of_processes
from asynsched.executors.base import user_environment
from asynsched.foreground.plugins import MOST_LATE, ComponentFacts, ListenerErrors, PluginRow, PluginsRequest
from asynsched.home import LOGS
from asynsched.loggers import get_logger
from asynsched.protocol.frames import UNDECODABLE
from asynsched.settings import Settings
from asynsched.store.engines.urls import is_postgresql

log = get_logger(__name__)
STOPPING_SECONDS = 10.0
"""Longest that listeners may take for `before_stopping`."""
START_SECONDS = 10.0
"""Longest that the process may take until it loads plugins."""
LONGEST_ANSWER = 1 << 20
"""Bytes of a line that the process answers."""


def longest_loading(settings: Settings) -> float:
    """Return the longest time that the list of plugins may take, seconds: the process itself ends plugins that hang."""
    return (MOST_LATE + 1) * settings.parse.import_timeout + START_SECONDS


def has_any(settings: Settings) -> bool:
    """Return whether the installation may have code of its own. Blocks: reads the metadata of packages."""
    return settings.airflow == "ours" and bool(settings.installation_folders or entry_points_of_packages())


@asynccontextmanager
async def plugin_process(settings: Settings, component: ComponentFacts | None = None) -> AsyncIterator[Process]:
    """Run the process that loads plugins in the block, and kill it after that with all that it has started."""
    arguments, environment = await anyio.to_thread.run_sync(process_of_plugins, settings, component)
    process = await anyio.open_process(arguments, env=environment, stderr=DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        _end(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def answers_of(process: Process) -> AsyncIterator[bytes]:
    """Yield the lines that the process answers: its plugins, then the errors of each hook."""
    assert process.stdout is not None
    stream = BufferedByteReceiveStream(process.stdout)
    while True:
        try:
            yield await stream.receive_until(b"\n", LONGEST_ANSWER)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
            return


def process_of_plugins(settings: Settings, component: ComponentFacts | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of that process."""
    options = options_of_processes(settings.airflow_options, settings.airflow_cfg_path)
    request = PluginsRequest(
        str(settings.dags_path), settings.default_timezone, settings.airflow, options, settings.parse.import_timeout,
        component,
    )  # fmt: skip
    arguments = [sys.executable, "-P", "-m", "asynsched.foreground.plugins", msgspec.json.encode(request).decode()]
    return arguments, user_environment(os.environ, is_postgresql=is_postgresql(settings.database_url))


def read_plugins(answer: bytes) -> list[PluginRow] | None:
    """Return the plugins that the process has listed; None if it has listed none."""
    try:
        return msgspec.json.decode(answer, type=list[PluginRow])
    except UNDECODABLE:
        return None


class PluginProcess:
    """Logs once which plugins and policies there are, and tells listeners of a scheduler's start and stop.

    Their code runs in a process of its own, which is gone when `run` has ended.
    """

    def __init__(self, settings: Settings, scheduler_id: str, started_at: datetime) -> None:
        self._settings = settings
        folder = settings.home_path / LOGS / "listeners"
        self._component = ComponentFacts(os.getpid(), scheduler_id, socket.gethostname(), started_at, str(folder))
        self.ended = anyio.Event()

    async def run(self, stopping: anyio.Event, hurried: anyio.Event) -> None:
        """Accompany the scheduler until it is `stopping`, and listeners have been told: not for long if `hurried`."""
        try:
            if await anyio.to_thread.run_sync(has_any, self._settings):
                await self._accompany(stopping, hurried)
        except OSError as exc:
            log.warning("plugins.not_loaded", reason=str(exc))
        finally:
            self.ended.set()

    async def _accompany(self, stopping: anyio.Event, hurried: anyio.Event) -> None:
        async with plugin_process(self._settings, self._component) as process, anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_when, stopping, hurried, process)
            await self._log_answers(answers_of(process))
            tasks.cancel_scope.cancel()

    async def _log_answers(self, answers: AsyncIterator[bytes]) -> None:
        with anyio.move_on_after(longest_loading(self._settings)) as loading:
            _log_plugins(read_plugins(await anext(answers, b"")) or ())
        if loading.cancelled_caught:
            log.warning("plugins.not_loaded", reason="their process does not answer")
            return
        async for answer in answers:
            _log_errors(answer)


async def _tell_when(stopping: anyio.Event, hurried: anyio.Event, process: Process) -> None:
    """Wait while the process calls `before_stopping` at the scheduler's stop, and kill it if it does not end soon."""
    await stopping.wait()
    assert process.stdin is not None
    try:
        await process.stdin.send(b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it has ended: no listener hears of a stop
    with anyio.move_on_after(STOPPING_SECONDS):
        await hurried.wait()
    log.warning("plugins.killed", reason="the scheduler has stopped, and does not wait for before_stopping any longer")
    _end(process)


def _end(process: Process) -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return


def _log_plugins(rows: list[PluginRow] | tuple[()]) -> None:
    for row in rows:
        about = {name: getattr(row, name) for name in ("plugin", "source", "adds", "ignored", "error")}
        about = {name: value for name, value in about.items() if value}
        (log.warning if row.error else log.info)("plugin.failed" if row.error else "plugin.loaded", **about)


def _log_errors(answer: bytes) -> None:
    try:
        told = msgspec.json.decode(answer, type=ListenerErrors)
    except UNDECODABLE:
        return  # user code wrote to a descriptor that it guessed
    for error in told.errors:
        log.warning("listener.failed", hook=told.hook, error=error)
