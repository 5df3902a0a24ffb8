"""`asynsched dags test`: one run in the foreground, in a process of its own, without a scheduler."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
import msgspec

from asynsched.airflow.installation import options_of_processes
from asynsched.cli.command import command, dag_argument, fail, fail_if_wanted, fail_on_option, read_instant
from asynsched.cli.dags import conf_option, logical_date_option, read_conf
from asynsched.cli.lookup import dag_of
from asynsched.cli.output import Output, Record, note, show
from asynsched.cli.session import Session
from asynsched.errors import NotFound, StoreError
from asynsched.executors.base import user_environment
from asynsched.foreground.home_supervisor import stored_value
from asynsched.foreground.process import ForegroundRequest, ForegroundResult
from asynsched.parsing.processes.sandbox_parser import setup_of
from asynsched.protocol.frames import FrameReader, encode_frame
from asynsched.protocol.messages import Reply, Request
from asynsched.store.engines.urls import is_postgresql
from sandbox.confine import refused_link


@command("test")
@dag_argument
@conf_option
@logical_date_option
@fail_on_option(errors="other DAGs of the file cannot be used", failed="the run has failed, as without this option")
def dags_test(
    session: Session, output: Output, dag_id: str, conf: str | None, logical_date: str | None, fail_on: frozenset[str]
) -> None:
    """Run a DAG once in the foreground, its file as it is now, with logs on standard error. Nothing is stored.

    Exit code 0 only if the run succeeded. Ctrl-C ends the running task, within lease.kill_time, and then the command; a
    second Ctrl-C kills the task. However the command ends, no process of the run is left behind.
    """
    content = read_conf(conf)
    zone = session.settings.default_timezone
    request = ForegroundRequest(
        dags_folder=str(session.settings.dags_path),
        path=dag_of(session, dag_id).file,
        dag_id=dag_id,
        conf=content,
        logical_date=read_instant(logical_date, zone, "--logical-date") if logical_date else None,
        default_timezone=zone,
        airflow=session.settings.airflow,
        airflow_options=options_of_processes(session.settings.airflow_options, session.settings.airflow_cfg_path),
        kill_time=session.settings.lease.kill_time,
        checks_file="errors" in fail_on,
    )
    # A task of the file would never run: that its author can read it, from here, says nothing.
    if refused := refused_link(request.path, request.dags_folder, setup_of(session.settings).limits):
        fail(f"{request.path}: cannot be read: {refused}")
    result = run_in_process(session, request)
    if result.error:
        fail(result.error)
    tasks = [msgspec.structs.asdict(task) for task in result.tasks]
    fields: dict[str, Any] = {"dag_id": dag_id, "state": result.state, "tasks": tasks}
    show(Record(fields, sections={"tasks": ()}), output)
    for error in result.file_errors:
        note(error)
    n_errors = f"{len(result.file_errors)} of the other DAGs of {request.path} cannot be used"
    fail_if_wanted(fail_on, errors=n_errors if result.file_errors else "", failed="")
    if result.state != "success":
        raise click.exceptions.Exit(1)


READ_BYTES = 64 * 1024
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_in_process(session: Session, request: ForegroundRequest) -> ForegroundResult:
    """Run the DAG in a process with the environment of a task. Its output goes to standard error.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended the run. No process of it is left, here as elsewhere.
        Exit: SIGTERM has.
    """
    settings = session.settings
    shown = user_environment(os.environ, is_postgresql=is_postgresql(settings.database_url))
    environment = shown | settings.secrets.variables
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, _held_back():
            process = _start(request, environment, theirs)
            stop = _Stop(process, ours)
            stop.take_signals()
        try:
            with process:
                try:
                    result = _converse(session, ours)
                except BaseException:
                    stop.kill()  # it may wait for an answer
                    raise
        finally:
            stop.release_signals()
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt
    if stop.number is not None:
        raise click.exceptions.Exit(128 + stop.number)
    return result or ForegroundResult(
        error=f"{request.path}: the process ended with {process.returncode} before the run did."
    )


class _Stop:
    """The effect of Ctrl-C and SIGTERM during the run: they end it, then this command; a second Ctrl-C kills it."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._before: dict[int, Any] = {}
        self.number: int | None = None
        """The signal that has come first."""

    def take_signals(self) -> None:
        """Install handlers of these signals, except of ignored ones."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)

    def release_signals(self) -> None:
        """Restore the earlier handlers of the signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def kill(self) -> None:
        """Hang up: then the run is killed."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _stop(self, number: int, _frame: object) -> None:
        if self.number is None:
            self.number = number
            note("Waiting for the run to end. Ctrl-C kills it.")
            self._process.terminate()
        elif number == signal.SIGINT:  # not SIGTERM: who sends that to a group may send it to this process as well
            self.kill()


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back during the block; a process that is started in it releases them once it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(request: ForegroundRequest, environment: dict[str, str], theirs: socket.socket) -> "subprocess.Popen[bytes]":
    argument = msgspec.json.encode(request).decode()
    return subprocess.Popen(  # noqa: S603 - this very Python, and a module of ours
        [sys.executable, "-P", "-m", "asynsched.foreground.process", str(theirs.fileno()), argument],
        env=environment,
        pass_fds=(theirs.fileno(),),
        stdout=sys.stderr.fileno(),
    )


def _converse(session: Session, ours: socket.socket) -> ForegroundResult | None:
    """Answer the process's questions until it says how the run ended; None when it is gone without a word."""
    reader = FrameReader(Request | ForegroundResult)
    # A process that has died with an answer unread resets the connection.
    with suppress(ConnectionError):
        while data := ours.recv(READ_BYTES):
            for message in reader.feed(data):
                if isinstance(message, ForegroundResult):
                    return message
                ours.sendall(encode_frame(_answer(session, message)))
    return None


def _answer(session: Session, asked: Request) -> Reply:
    try:
        if asked.operation == "max_map_length":
            value: Any = session.settings.max_map_length
        else:
            value = session.read(stored_value, asked.operation, asked.arguments)
    except NotFound as exc:
        return Reply(asked.token, asked.request_id, found=False, error=str(exc))
    except StoreError as exc:
        return Reply(asked.token, asked.request_id, error=str(exc))
    return Reply(asked.token, asked.request_id, value)
