"""One run of a DAG in the foreground, for `asynsched dags test`.

Started as `python -P -m asynsched.foreground.process DESCRIPTOR REQUEST`. It imports the DAG file as it is now, with
the user's own rights, as a task's process would, and its output goes to the terminal. The descriptor is a socket:
questions for stored variables and connections go there as frames, answers come back, and the result goes last.

Two processes: the run, and its guard, which ends it when the command wants that or is gone, and leaves nothing behind.

    command ──SIGTERM: end it; hangs up: kill it──▶ guard ──fork──▶ the run

The run stays in the process group of the command, which has the terminal, so that its code may ask there, as debuggers
do. Ctrl-C reaches all three: the guard leaves the decision to the command, the run begins to clean up.
"""

import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.supervisor import set_supervisor
from sandbox.parsing.explain import explain
from sandbox.processes import adopt_orphans, die_with, end_all_children, flush_streams, of_test, set_title
from sandbox.run import SchedulerLink
from sandbox.sources.local_imports import LocalImports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asynsched.authoring.dag import DAG


class ForegroundRequest(Struct, frozen=True, omit_defaults=True):
    """The DAG to run. `path` is relative to the DAG folder."""

    dags_folder: str
    path: str
    dag_id: str
    conf: dict[str, Any] = {}
    logical_date: datetime | None = None
    default_timezone: str = "UTC"
    airflow: str = "ours"
    airflow_options: dict[str, str] = {}
    kill_time: float = 5.0
    """How long a task may take to end itself when the run is to end, seconds."""
    checks_file: bool = False
    """Whether to look for errors of the other DAGs of the file, too."""


class ForegroundInstance(Struct, frozen=True):
    """How a task instance ended."""

    task_id: str
    map_index: int
    state: str | None


class ForegroundResult(Struct, frozen=True, tag="foreground", omit_defaults=True):
    """How it ended: the state of the run and of each task, or why the DAG could not be run, in one line."""

    state: str = ""
    tasks: tuple[ForegroundInstance, ...] = ()
    error: str = ""
    file_errors: tuple[str, ...] = ()
    """Errors of the other DAGs of the file, where `checks_file` asks for them; one line each."""


ENDING = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Interrupts the run's code by KeyboardInterrupt at the first SIGINT or SIGTERM, and not again: it may clean up.

    Nothing of the run begins after that, also where its code goes on as if nothing had happened.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._has_come = False

    def take_signals(self) -> None:
        """Handle these signals from now on, unless they are ignored. They may have been blocked until now."""
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._has_come:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, _frame: object) -> None:
        if os.getpid() != self._process:
            # A process that the task has forked has nothing to clean up, and ends as others do.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not self._has_come:
            self._has_come = True
            raise KeyboardInterrupt


def main(descriptor: int, request: ForegroundRequest) -> NoReturn:
    """Run the DAG in a process of its own, and write the result to the descriptor; never return.

    A thread or an exit hook that user code has left does not keep that process from ending.
    """
    os.set_inheritable(descriptor, False)
    set_title(f"guardian of the {of_test(request.dag_id)}", "--dags-folder", request.dags_folder)
    go_on_guarded(descriptor, request.kill_time)
    set_title(of_test(request.dag_id))
    status = 0
    try:
        _be_the_run(SchedulerLink(socket.socket(fileno=descriptor)), request)
    except KeyboardInterrupt:
        # The command reports this.
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - after any exception, threads of user code are not waited for
        traceback.print_exc()
        status = 1
    flush_streams()
    os._exit(status)


def _be_the_run(link: SchedulerLink, request: ForegroundRequest) -> None:
    interruption = Interruption()
    interruption.take_signals()
    set_supervisor(link, loads_file=True)  # the file may read variables at its top level
    try:
        found = _load(request)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - a DAG file may raise anything, SystemExit too
        error = explain(exc, request.path, request.dags_folder, limits=None)
        sys.stderr.write(error.traceback)
        result = ForegroundResult(error=error.message)
    else:
        result = _run(found, request, interruption)
    link.send(result)


def _load(request: ForegroundRequest) -> "dict[str, DAG]":
    from asynsched.airflow import installation
    from asynsched.airflow.finder import serve_airflow
    from asynsched.authoring.dag import collect_dags
    from asynsched.authoring.timezone import set_default_timezone

    set_default_timezone(request.default_timezone)
    serve_airflow(request.airflow, request.airflow_options)
    imports = LocalImports(Path(request.dags_folder))
    imports.install(request.path)
    installation.load()
    return {dag.dag_id: dag for dag in installation.admitted(collect_dags(imports.load_dag_file(request.path)))}


def _run(found: "dict[str, DAG]", request: ForegroundRequest, interruption: Interruption) -> ForegroundResult:
    from asynsched.authoring.timezone import utcnow
    from asynsched.errors import DagError

    with own_sandbox():
        from asynsched.foreground.run import run_in_foreground

    if request.dag_id not in found:
        return ForegroundResult(error=f"{request.path}: the file has no DAG {request.dag_id!r} any more.")
    file_errors = tuple(_errors(found, request)) if request.checks_file else ()
    try:
        run = run_in_foreground(
            found[request.dag_id],
            conf=request.conf,
            logical_date=request.logical_date or utcnow(),
            check_interruption=interruption.check,
        )
    except DagError as exc:
        return ForegroundResult(error=f"{request.path}: {exc}")
    tasks = tuple(ForegroundInstance(task.task_id, task.map_index, task.state) for task in run.tasks)
    return ForegroundResult(state=str(run.state), tasks=tasks, file_errors=file_errors)


def _errors(found: "dict[str, DAG]", request: ForegroundRequest) -> "Iterator[str]":
    """Yield why the other DAGs of the file could not be scheduled."""
    from asynsched.errors import DagError
    from asynsched.serialization.encode import serialize_dag

    for dag_id, dag in found.items():
        if dag_id != request.dag_id:
            try:
                serialize_dag(dag)
            except DagError as exc:
                yield f"{request.path}: {exc}"


def go_on_guarded(command: int, kill_time: float) -> None:
    """Go on in a fork of this process. Returns there only, with SIGTERM and SIGINT held back.

    Args:
        command: Descriptor of a socket that ends with the command.
        kill_time: How long the run may take to end itself, seconds.
    """
    guard = os.getpid()
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    run = os.fork()
    if run == 0:
        die_with(guard)
        return
    status = 1
    try:
        status = _Guard(command, run, kill_time).watch()
    except BaseException:  # noqa: BLE001 - it must not go on as the run, and nothing is to be left of that
        traceback.print_exc()
        end_all_children()
    finally:
        os._exit(status)


class _Guard:
    """Watches a run until it has ended."""

    def __init__(self, command: int, run: int, kill_time: float) -> None:
        self._command = command
        self._run = run
        self._kill_time = kill_time
        self._kill_at: float | None = None
        self._is_ending = False
        self._status = 0
        self._wakeup, self._waker = socket.socketpair()
        for end in (self._wakeup, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # When the terminal is gone, or Ctrl-\\ was pressed, the command ends, which closes the socket.
        for number in (signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def watch(self) -> int:
        """Return the run's exit code, as a shell tells it, when no process of it is left."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(self._command, 0)  # it is the run that reads there
        while not self._has_ended():
            patience = None if self._kill_at is None else 1000 * max(0.0, self._kill_at - time.monotonic())
            for descriptor, _ in poll.poll(patience):  # milliseconds
                if descriptor == self._command:
                    poll.unregister(descriptor)
                    self._kill()
                elif signal.SIGTERM in self._wakeup.recv(4096) and not self._is_ending:
                    self._is_ending = True
                    self._kill_at = time.monotonic() + self._kill_time
                    os.kill(self._run, signal.SIGTERM)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
        end_all_children()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _has_ended(self) -> bool:
        """Reap exited processes: the run, or those that it has left behind until now."""
        pid = -1
        while pid not in (0, self._run):
            pid, self._status = os.waitpid(-1, os.WNOHANG)
        return pid == self._run

    def _kill(self) -> None:
        self._is_ending, self._kill_at = True, None
        with suppress(ProcessLookupError):
            os.kill(self._run, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ForegroundRequest))
