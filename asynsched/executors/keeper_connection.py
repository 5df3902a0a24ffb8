"""The scheduler's side of a keeper: finds it, starts it, and speaks with it.

The keeper's side is `sandbox/supervision/keeper.py`.
"""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from asynsched.airflow.installation import options_of_processes
from asynsched.clock import new_token
from asynsched.errors import ExecutorError, KeeperGone
from asynsched.executors.base import user_environment
from asynsched.home import LOGS
from asynsched.loggers import get_logger
from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.protocol.home_files import KEEPER_MARK, KEEPER_SOCKET, socket_address
from asynsched.protocol.messages import (
    LONGEST_REASON,
    PROTOCOL_VERSION,
    READY,
    FromKeeper,
    Hello,
    Inventory,
    LeaseTerm,
)
from asynsched.settings import Settings

log = get_logger(__name__)

KEEPER_LOG = "keeper.log"
START_SECONDS = 60.0
"""Longest that a keeper may take to be ready: it waits for an earlier keeper that is ending its tries."""
CONNECT_SECONDS = 1.0
GREETING_SECONDS = 30.0


def connect(home: Path) -> socket.socket | None:
    """Return a connection to the keeper of this home; None when there is no keeper."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_SECONDS)
        with socket_address(home, KEEPER_SOCKET) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def start_keeper(
    home: Path,
    settings: Settings,
    *,
    is_postgresql: bool = False,
    airflow_options: Mapping[str, str] | None = None,
) -> None:
    """Start the keeper of this home, and return once it takes connections. Blocks: call it in a thread.

    Args:
        is_postgresql: Whether tries do not see the variables of PostgreSQL's clients, because they are the scheduler's.
        airflow_options: What `conf` of Airflow answers; None: what these settings say.

    Raises:
        KeeperGone: It was killed while it started.
        ExecutorError: It could not be started.
    """
    log = home / LOGS / KEEPER_LOG
    said_before = log.stat().st_size if log.exists() else 0
    reading_end, writing_end = os.pipe()
    try:
        try:
            shown = user_environment(os.environ, is_postgresql=is_postgresql)
            environment = shown | settings.secrets.variables | {KEEPER_MARK: new_token()}
            if airflow_options is None:
                airflow_options = options_of_processes(settings.airflow_options, settings.airflow_cfg_path)
            status = _spawn(home, settings, airflow_options, environment, writing_end)
        finally:
            os.close(writing_end)
        started = select.poll()  # unlike `select`, for descriptors above 1,023, too
        started.register(reading_end, select.POLLIN)
        if not started.poll(START_SECONDS * 1000):
            raise ExecutorError(f"the keeper of {home} was not ready within {START_SECONDS:g} s; an old one may hang")
        told = os.read(reading_end, LONGEST_REASON)
    finally:
        os.close(reading_end)
    if told == READY:
        return
    reason = told.decode(errors="replace") or (_last_line(log, said_before) if status > 0 else "")
    if not reason:
        raise KeeperGone("the keeper could not be started: it ended without a message, so it was probably killed")
    raise ExecutorError(f"the keeper could not be started: {reason} (more in {log})")


def _spawn(
    home: Path, settings: Settings, airflow_options: Mapping[str, str], environment: Mapping[str, str], ready: int
) -> int:
    """Start a process that starts the keeper, and return its exit status; below 0 for a signal."""
    # Nothing on the command line or in the environment names the database: user code sees both.
    command = [
        sys.executable, "-P", "-m", "sandbox.keeper", "--home", str(home), "--ready", str(ready),
        "--lease-seconds", str(settings.lease.duration), "--lease-grace", str(settings.lease.grace),
        "--kill-time", str(settings.lease.kill_time), "--import-timeout", str(settings.parse.import_timeout),
        "--log-bytes", str(settings.log.task_bytes), "--default-timezone", settings.default_timezone,
        "--airflow", settings.airflow, "--airflow-options", json.dumps(dict(airflow_options)),
    ]  # fmt: skip
    log = os.open(home / LOGS / KEEPER_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(ready,),
            start_new_session=True,
        ) as launcher:
            # The launcher only starts the keeper and exits, so that the keeper is not a child of the scheduler.
            return launcher.wait()
    except OSError as exc:
        raise ExecutorError(f"the keeper could not be started: {exc}") from exc
    finally:
        os.close(log)


def _last_line(log: Path, start: int) -> str:
    """Return the last line of a log after its first `start` bytes: there Python says why it could not start."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as exc:
        return str(exc)
    return lines[-1] if lines else "it failed at its start"


class KeeperConnection(asyncio.Protocol):
    """Frames to and from a keeper.

    Args:
        on_message: Takes every message but the Hello.
        on_lost: Called once, when a greeted connection has ended.
        shares_database: Whether other schedulers may take over our runs.
    """

    def __init__(
        self, on_message: Callable[[Any], None], on_lost: Callable[[], None], *, shares_database: bool
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._shares_database = shares_database
        self._reader = FrameReader(FromKeeper)
        self._transport: asyncio.Transport | None = None
        self._epoch = 0
        self._greeted: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        """Set while there is no connection."""
        self.closed.set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def greet(
        self, connection: socket.socket, scheduler_id: str, lease_epoch: int, lease: LeaseTerm | None = None
    ) -> Inventory:
        """Greet the keeper, and return its inventory. Ends that it reports before go to `on_message`.

        Raises ExecutorError if the keeper serves a newer lease, or does not answer.
        """
        self._epoch = lease_epoch
        await asyncio.get_running_loop().create_connection(lambda: self, sock=connection)
        shares = self._shares_database
        self.send(Hello(PROTOCOL_VERSION, os.getpid(), scheduler_id, lease_epoch, shares_database=shares, lease=lease))
        if lease is not None:
            # A keeper of an earlier version takes the Hello for a renewal.
            self.send(lease)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                return await self._greeted
        except TimeoutError:
            self.close()
            raise ExecutorError(f"the keeper did not answer within {GREETING_SECONDS:g} s") from None

    def send(self, message: Struct) -> None:
        """Send a message; do nothing once the connection has ended."""
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of other event loops, such as uvloop, do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.closed.clear()

    def data_received(self, data: bytes) -> None:
        for message in self._messages(data):
            if isinstance(message, Hello):
                if message.lease_epoch > self._epoch:
                    self._fail(ExecutorError("the keeper of this home serves a newer scheduler"))
            elif isinstance(message, Inventory):
                if not self._greeted.done():
                    self._on_message(message)
                    self._greeted.set_result(message)
            else:
                self._on_message(message)

    def _messages(self, data: bytes) -> Iterator[Any]:
        """Yield the messages completed by `data`; hang up at a bad frame."""
        try:
            yield from self._reader.feed(data)
        except ProtocolError as exc:
            self._refuse(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        was_greeted = self._was_greeted
        self._fail(KeeperGone("the keeper hung up"))
        self._transport = None
        self.closed.set()
        if was_greeted:
            self._on_lost()

    def _refuse(self, error: ProtocolError) -> None:
        if self._was_greeted:
            log.error("executor.invalid_frame", error=str(error))
        self._fail(ExecutorError(f"the keeper sent an invalid frame: {error}"))
        self.close()

    @property
    def _was_greeted(self) -> bool:
        return self._greeted.done() and not self._greeted.cancelled() and self._greeted.exception() is None

    def _fail(self, error: ExecutorError) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(error)
