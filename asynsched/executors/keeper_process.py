"""Finds the keeper of a home, or starts one."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from asynsched.clock import new_token
from asynsched.errors import ExecutorError, KeeperGone
from asynsched.executors.user_environment import user_environment
from asynsched.home import LOGS
from asynsched.protocol.messages import LONGEST_REASON, READY
from asynsched.settings import Settings
from sandbox.supervision.lifeline import MARK
from sandbox.supervision.scheduler_port import Address

KEEPER_LOG = "keeper.log"
START_SECONDS = 60.0
"""How long a keeper may take to be ready: a keeper before it, which is ending its tries, keeps it waiting."""
CONNECT_SECONDS = 1.0


def connect(home: Path) -> socket.socket | None:
    """Return a connection to the keeper of this home, None when there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_SECONDS)
        with Address(home) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def start_keeper(home: Path, settings: Settings, *, is_postgresql: bool = False) -> None:
    """Start the keeper of this home, and return when it takes connections. Blocks: call it in a thread.

    Args:
        is_postgresql: Whether the scheduler's database is, so that tries are not shown its variables.

    Raises:
        KeeperGone: It was killed meanwhile.
        ExecutorError: It could not be started.
    """
    log = home / LOGS / KEEPER_LOG
    said_before = log.stat().st_size if log.exists() else 0
    reading_end, writing_end = os.pipe()
    try:
        try:
            environment = user_environment(os.environ, is_postgresql=is_postgresql) | {MARK: new_token()}
            status = _spawn(home, settings, environment, writing_end)
        finally:
            os.close(writing_end)
        ready, _, _ = select.select([reading_end], [], [], START_SECONDS)
        if not ready:
            raise ExecutorError(f"the keeper of {home} was not ready within {START_SECONDS:g} s; does an old one hang?")
        told = os.read(reading_end, LONGEST_REASON)
    finally:
        os.close(reading_end)
    if told == READY:
        return
    reason = told.decode(errors="replace") or (_last_line(log, said_before) if status > 0 else "")
    if not reason:
        raise KeeperGone("the keeper could not be started: it ended without a word, as what is killed does")
    raise ExecutorError(f"the keeper could not be started: {reason} (more in {log})")


def _spawn(home: Path, settings: Settings, environment: Mapping[str, str], ready: int) -> int:
    """Start a process that starts the keeper, and return its exit status; below 0, a signal has ended it."""
    # Nothing on the command line or in the environment names the database: user code sees both.
    command = [
        sys.executable, "-P", "-m", "sandbox.keeper", "--home", str(home), "--ready", str(ready),
        "--lease-seconds", str(settings.lease.duration), "--lease-grace", str(settings.lease.grace),
        "--kill-time", str(settings.lease.kill_time), "--import-timeout", str(settings.parse.import_timeout),
        "--log-bytes", str(settings.log.task_bytes), "--default-timezone", settings.default_timezone,
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
            # The process that was started here only starts the keeper, which is nobody's child.
            return launcher.wait()
    except OSError as exc:
        raise ExecutorError(f"the keeper could not be started: {exc}") from exc
    finally:
        os.close(log)


def _last_line(log: Path, start: int) -> str:
    """Return the last line of a log, after its first `start` bytes: with that, Python says why it could not begin."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as exc:
        return str(exc)
    return lines[-1] if lines else "it failed at its start"
