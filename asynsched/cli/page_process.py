"""The page of `asynsched up` in a process of its own: what people read takes no time of the scheduler's event loop.

The scheduler binds the address, and starts the process when somebody first connects: a page that nobody opens costs
nothing. The process inherits the socket, and reads from standard input what it serves, because tasks of the same user
can read arguments, and the environment of a process that starts. It ends when its standard input does.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import anyio
import msgspec
from anyio.abc import Process
from msgspec import Struct
from msgspec.structs import replace

from asynsched.cli import live_on
from asynsched.cli.logging import configure_logging
from asynsched.cli.web import Link, application, tell_address
from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import parted_environment
from asynsched.loggers import get_logger
from asynsched.settings import Settings
from asynsched.web.server import Listener, first_connection, serve
from sandbox.confine import close_memory, die_with

log = get_logger(__name__)

STARTED = b"started\n"
END_SECONDS = 5.0
"""How long the process may take to end; requests have half a second of that."""
PAUSE = timedelta(seconds=1)
"""Time between the end of a process that failed and the start of the next one."""


class Serving(Struct):
    """What the process serves.

    Attributes:
        hidden: The variables of the scheduler's environment that user code must not see.
        listener: The inherited descriptor of the bound socket.
        parent: The scheduler's process.
        link: What the printed link signs in; None: an earlier process has stored it, or there is none.
    """

    settings: Settings
    hidden: dict[str, str]
    listener: int
    parent: int
    link: Link | None


async def serve_beside(settings: Settings, listener: Listener, clock: Clock) -> None:
    """Serve the page in a process of its own until this is cancelled, and tell people its address.

    If the process fails, the next connection starts another one.
    """
    link = await tell_address(listener, settings)
    try:
        while True:
            await first_connection(listener.socket)
            if await _serve_once(settings, listener.socket, link):
                link = None
            await clock.sleep(PAUSE)
    finally:
        listener.socket.close()


async def _serve_once(settings: Settings, listener: socket.socket, link: Link | None) -> bool:
    """Run one process until it ends. Returns whether it has begun to serve, with the link."""
    shown, hidden = parted_environment(os.environ)
    serving = Serving(settings, hidden, listener.fileno(), os.getpid(), link)
    process = await _start(settings, listener.fileno(), shown)
    assert process.stdin is not None
    assert process.stdout is not None
    has_begun = False
    try:
        with suppress(anyio.BrokenResourceError):  # it has ended already
            await process.stdin.send(msgspec.json.encode(serving) + b"\n")
        async for _ in process.stdout:
            has_begun = True
        log.error("web.failed", exit_code=await process.wait(), hint="the next request starts another process")
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    return has_begun


async def _start(settings: Settings, listener: int, environment: Mapping[str, str]) -> Process:
    """Start a process, whose log goes where the scheduler's does."""
    command = [sys.executable, "-P", "-m", __name__, "--home", str(settings.home_path)]  # the home is for `ps` only
    if settings.log.file is None:
        return await anyio.open_process(command, stderr=None, env=environment, pass_fds=(listener,))
    async with await anyio.open_file(settings.log.file, "ab") as file:
        return await anyio.open_process(command, stderr=file.wrapped, env=environment, pass_fds=(listener,))


async def _end(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(END_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()


def main() -> None:
    """Serve what standard input says until its end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a stop of the scheduler ends the page last
    close_memory()
    serving = msgspec.json.decode(sys.stdin.buffer.readline(), type=Serving)
    die_with(serving.parent)
    os.environ.update(serving.hidden)
    live_on()
    configure_logging(replace(serving.settings.log, file=None))
    asyncio.run(_serve(serving))


async def _serve(serving: Serving) -> None:
    is_over = anyio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), is_over.set)
    listener = socket.socket(fileno=serving.listener)
    async with anyio.create_task_group() as tasks:
        async with application(serving.settings, Clock()) as app:
            if serving.link is not None:
                app.offer_link(*serving.link)
            with suppress(StoreUnavailable):  # each request tries again, and is answered with 503 until then
                await app.load()
            os.write(sys.stdout.fileno(), STARTED)
            tasks.start_soon(serve, app, listener, serving.settings.web)
            await is_over.wait()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    main()
