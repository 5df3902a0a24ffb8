"""One run of a DAG in the foreground, for `asynsched dags test`.

Started as `python -P -m sandbox.foreground DESCRIPTOR REQUEST`. The DAG file is imported as it is now, with the user's
own rights, as a task's process would. What it prints goes to the terminal. The descriptor is a socket: questions for
stored variables and connections go there as frames, answers come back, and the result goes last.
Two processes: the run, and what guards it (`sandbox.supervision.foreground_guard`).
"""

import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.supervisor import set_supervisor
from asynsched.foreground.interruption import Interruption
from sandbox.parsing.explain import explain
from sandbox.running.scheduler_link import SchedulerLink
from sandbox.sources.local_imports import LocalImports
from sandbox.supervision.foreground_guard import go_on_guarded
from sandbox.titles import of_test, set_title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asynsched.authoring.dag import DAG


class ForegroundRequest(Struct, frozen=True, omit_defaults=True):
    """What to run. `path` is relative to the DAG folder."""

    dags_folder: str
    path: str
    dag_id: str
    conf: dict[str, Any] = {}
    logical_date: datetime | None = None
    default_timezone: str = "UTC"
    kill_time: float = 5.0
    """How long a task may take to end itself when the run is to end, seconds."""
    checks_file: bool = False
    """Whether the other DAGs of the file are looked at, too."""


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
    """What is wrong with the other DAGs of the file, where that was asked; one line each."""


def main(descriptor: int, request: ForegroundRequest) -> NoReturn:
    """Run the DAG in a process of its own, and write the result to the descriptor; never return.

    What user code has left hanging (a thread, an exit hook) keeps that process no more than a task's.
    """
    os.set_inheritable(descriptor, False)
    set_title(f"guardian of the {of_test(request.dag_id)}", "--dags-folder", request.dags_folder)
    go_on_guarded(descriptor, request.kill_time)
    set_title(of_test(request.dag_id))
    status = 0
    try:
        _be_the_run(SchedulerLink(socket.socket(fileno=descriptor)), request)
    except KeyboardInterrupt:
        # The command says so.
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - whatever it is, threads of user code are not waited for
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        # User code may have closed or replaced them.
        with suppress(Exception):
            stream.flush()
    os._exit(status)


def _be_the_run(link: SchedulerLink, request: ForegroundRequest) -> None:
    interruption = Interruption()
    interruption.take_signals()
    try:
        found = _load(request)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - a DAG file may raise anything, SystemExit too
        error = explain(exc, request.path, request.dags_folder, limits=None)
        sys.stderr.write(error.traceback)
        result = ForegroundResult(error=error.message)
    else:
        result = _run(found, request, link, interruption)
    link.send(result)


def _load(request: ForegroundRequest) -> "dict[str, DAG]":
    from asynsched.authoring.dag import collect_dags
    from asynsched.authoring.timezone import set_default_timezone

    set_default_timezone(request.default_timezone)
    imports = LocalImports(Path(request.dags_folder))
    imports.install(imports.archive_name(request.path))
    return {dag.dag_id: dag for dag in collect_dags(imports.load_dag_file(request.path))}


def _run(
    found: "dict[str, DAG]", request: ForegroundRequest, link: SchedulerLink, interruption: Interruption
) -> ForegroundResult:
    from asynsched.authoring.timezone import utcnow
    from asynsched.errors import DagError

    with own_sandbox():
        from asynsched.foreground.run import run_in_foreground

    if request.dag_id not in found:
        return ForegroundResult(error=f"{request.path}: the file has no DAG {request.dag_id!r} any more.")
    file_errors = tuple(_errors(found, request)) if request.checks_file else ()
    set_supervisor(link)
    try:
        run = run_in_foreground(
            found[request.dag_id],
            conf=request.conf,
            logical_date=request.logical_date or utcnow(),
            interruption=interruption,
        )
    except DagError as exc:
        return ForegroundResult(error=f"{request.path}: {exc}")
    tasks = tuple(ForegroundInstance(task.task_id, task.map_index, task.state) for task in run.tasks)
    return ForegroundResult(state=str(run.state), tasks=tasks, file_errors=file_errors)


def _errors(found: "dict[str, DAG]", request: ForegroundRequest) -> "Iterator[str]":
    """Yield why DAGs of the file could not be scheduled, the one that is run apart."""
    from asynsched.errors import DagError
    from asynsched.serialization.encode import serialize_dag

    for dag_id, dag in found.items():
        if dag_id != request.dag_id:
            try:
                serialize_dag(dag)
            except DagError as exc:
                yield f"{request.path}: {exc}"


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ForegroundRequest))
