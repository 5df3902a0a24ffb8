"""`asynsched worker`: run tries on this machine for schedulers elsewhere."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click
import msgspec
from anyio.to_thread import run_sync

from asynsched.cli import live_on
from asynsched.cli.command import configure, errors_in_one_line, fail, home_option
from asynsched.cli.output import are
from asynsched.clock import Clock
from asynsched.errors import SettingsError, ungrouped
from asynsched.loggers import get_logger
from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import Settings

if TYPE_CHECKING:
    from asynsched.worker.agent import Agent

log = get_logger(__name__)

TOO_LONG = b"(too long)"
"""In place of a line that is, which is no ticket either."""
LONGEST_LINE = 64 * 1024
LAST_SECONDS = 5.0
"""Time before the limit `--until` at which tries are ended, so that their ends are reported before it."""


@click.command("run")
@click.argument("tickets", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@home_option
@click.option("--name", help="Name of this worker, for people; by default that of the machine.")
@click.option(
    "--until",
    type=float,
    metavar="SECONDS",
    help="The time limit of a batch system, in seconds since 1970: shortly before it, tries that still run fail.",
)
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or programs.")
def worker_run(
    tickets: tuple[Path, ...], name: str | None, until: float | None, log_format: str | None, **flags: Any
) -> None:
    """Run the tries of tickets until all have ended.

    TICKETS are files, each with one ticket. Without any, tickets are read from standard input, one a line, until it
    ends. For each one that is over, a line is printed: JSON with its token and its outcome. A ticket that cannot be
    read is logged, and the others run; the exit code is 1 then, and else 0. SIGTERM and Ctrl-C take no
    more tickets, and give running tries the setting shutdown_grace. Of a worker that was killed, the tries go on for as
    long as their leases say, and the next worker on the same home takes them over.
    """
    with _errors_in_one_line():
        settings = _prepare(log_format, flags)
        if n_unreadable := asyncio.run(_serve(settings, name or socket.gethostname(), tickets, until)):
            fail(f"{are(n_unreadable, 'ticket')} unreadable: see the log above.")


@click.command("celery", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@home_option
@click.option("--name", help="Name of this worker, for people; by default that of the machine.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or programs.")
def worker_celery(arguments: tuple[str, ...], name: str | None, log_format: str | None, **flags: Any) -> None:
    """Run the tries that a Celery broker brings, as a Celery worker.

    ARGUMENTS are options of `celery worker`, such as -Q gpu,default --concurrency 8 --autoscale 16,4. They mean the
    same as there; only --pool is refused. SIGTERM takes no more tries and waits for the running ones; SIGQUIT
    interrupts them, and their schedulers start them again.
    """
    with _errors_in_one_line():
        if any(one in ("-P", "--pool") or one.startswith("--pool=") for one in arguments):
            raise SettingsError("--pool: the pool of this worker is asynsched's own")
        settings, clock = _prepare(log_format, flags), Clock()
        try:
            from asynsched.worker.celery import run_worker
        except ImportError as exc:
            raise SettingsError(f"This worker needs the package {exc.name}: install asynsched[celery].") from exc
        agent = _agent(settings, name or socket.gethostname(), clock)
        sys.exit(run_worker(settings, agent, clock, arguments))


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    with errors_in_one_line(), ungrouped():
        yield


def _prepare(log_format: str | None, flags: dict[str, Any]) -> Settings:
    """Return the settings of this process, once it is ready to hold secrets."""
    from asynsched.cli.logging import configure_logging  # not for --help
    from sandbox.confine import close_memory

    settings = configure(**{"log.format": log_format}, **flags).settings
    close_memory()  # tickets hold secrets, and tasks are processes of the same user
    live_on()
    configure_logging(settings.log)
    return settings


def _agent(settings: Settings, name: str, clock: Clock) -> "Agent":
    try:
        from asynsched.worker.agent import Agent
        from asynsched.worker.schedulers import Schedulers
    except ImportError as exc:
        raise SettingsError(f"A worker needs the package {exc.name}: install asynsched[worker].") from exc
    return Agent(settings, name, clock, Schedulers(clock))


async def _serve(settings: Settings, name: str, files: tuple[Path, ...], until: float | None) -> int:
    """Work on all tickets, and return how many could not be read."""
    n_unreadable = 0
    loop, signalled, clock = asyncio.get_running_loop(), anyio.Event(), Clock()
    agent = _agent(settings, name, clock)

    async def drain_at_signal(reading: anyio.CancelScope) -> None:
        await signalled.wait()
        reading.cancel()
        await agent.drain()

    async def fail_at_limit(reading: anyio.CancelScope, at: datetime) -> None:
        await clock.sleep(at - clock.now())
        reading.cancel()
        await agent.end_all("it has reached the time limit of its job")

    with anyio.CancelScope() as everything:

        def stop() -> None:
            if signalled.is_set():
                everything.cancel()
            signalled.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        async with agent.serving(), anyio.create_task_group() as watching:
            log.info("worker.started", home=str(settings.home_path), name=name)
            reading = anyio.CancelScope()
            watching.start_soon(drain_at_signal, reading)
            if until is not None:
                limit = datetime.fromtimestamp(until - LAST_SECONDS, UTC)
                watching.start_soon(fail_at_limit, reading, limit)
            async with anyio.create_task_group() as tries:
                with reading:
                    async for where, data in _tickets(files):
                        try:
                            tries.start_soon(_work, agent, _decoded(data, where))
                        except SettingsError as exc:
                            n_unreadable += 1
                            log.error("ticket.unreadable", error=str(exc))  # noqa: TRY400 - a line, no traceback
            watching.cancel_scope.cancel()
    return n_unreadable


async def _work(agent: "Agent", first: Ticket) -> None:
    """Work on a ticket, and on those that follow it while this worker stays warm."""
    ticket: Ticket | None = first
    while ticket is not None:
        outcome = await agent.work(ticket)
        click.echo(msgspec.json.encode({"token": ticket.token, "outcome": outcome.text}))
        # Another pod may run the try of a ticket that is refused here, and wait in its name.
        ticket = None if outcome.kind in ("refused", "returned") else await agent.next(ticket)


async def _tickets(files: tuple[Path, ...]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the tickets of files, or of the lines of standard input, each with its place."""
    for file in files:
        yield str(file), await anyio.Path(file).read_bytes()
    if files:
        return
    number = 0
    async for line in _lines():
        number += 1
        if line.strip():
            yield f"standard input, line {number}", line


def _decoded(data: bytes, where: str) -> Ticket:
    try:
        return msgspec.json.decode(data, type=Ticket)
    except UNDECODABLE as exc:
        raise SettingsError(f"{where}: this is not a ticket: {exc}") from exc


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input, without blocking the loop."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not sys.stdin.isatty()):  # /dev/null cannot be watched
        for line in await run_sync(sys.stdin.buffer.readlines):
            yield line
        return
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # it is longer than any ticket
            line = TOO_LONG
        if not line:
            return
        yield line
