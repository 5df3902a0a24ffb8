"""One run of a DAG in the foreground, for `asynsched dags test`.

Started as `python -P -m sandbox.foreground DESCRIPTOR REQUEST`. The DAG file is imported as it is now, with the user's
own rights, as a task's process would. What it prints goes to the terminal. The descriptor is a socket: questions for
stored variables and connections go there as frames of `sandbox.protocol`, answers come back, and the result goes last.
"""

import os
import signal
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from asynsched.authoring.supervisor import set_supervisor
from sandbox.parsing.explain import explain
from sandbox.running.scheduler_link import SchedulerLink
from sandbox.sources.local_imports import LocalImports

if TYPE_CHECKING:
    from asynsched.authoring.dag import DAG


class ForegroundRequest(Struct, frozen=True, omit_defaults=True):
    """What to run. `path` is relative to the DAG folder."""

    dags_folder: str
    path: str
    dag_id: str
    conf: dict[str, Any] = {}
    logical_date: datetime | None = None
    default_timezone: str = "UTC"


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


def main(descriptor: int, request: ForegroundRequest) -> None:
    """Run the DAG, and write the result to the descriptor."""
    os.set_inheritable(descriptor, False)
    link = SchedulerLink(socket.socket(fileno=descriptor))
    try:
        found = _load(request)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - a DAG file may raise anything, SystemExit too
        error = explain(exc, request.path, request.dags_folder, limits=None)
        sys.stderr.write(error.traceback)
        result = ForegroundResult(error=error.message)
    else:
        result = _run(found, request, link)
    link.send(result)


def _load(request: ForegroundRequest) -> "dict[str, DAG]":
    from asynsched.authoring.dag import collect_dags
    from asynsched.authoring.timezone import set_default_timezone

    set_default_timezone(request.default_timezone)
    imports = LocalImports(Path(request.dags_folder))
    imports.install(imports.archive_name(request.path))
    return {dag.dag_id: dag for dag in collect_dags(imports.load_dag_file(request.path))}


def _run(found: "dict[str, DAG]", request: ForegroundRequest, link: SchedulerLink) -> ForegroundResult:
    from asynsched.authoring.params import NOTSET
    from asynsched.errors import DagError

    if request.dag_id not in found:
        return ForegroundResult(error=f"{request.path}: the file has no DAG {request.dag_id!r} any more.")
    logical_date = NOTSET if request.logical_date is None else request.logical_date
    set_supervisor(link)
    try:
        run = found[request.dag_id].test(run_conf=request.conf, logical_date=logical_date)
    except DagError as exc:
        return ForegroundResult(error=f"{request.path}: {exc}")
    tasks = tuple(ForegroundInstance(task.task_id, task.map_index, task.state) for task in run.tasks)
    return ForegroundResult(state=str(run.state), tasks=tasks)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ForegroundRequest))
    except KeyboardInterrupt:
        # Ctrl-C reaches the command, too, which says so.
        sys.exit(128 + signal.SIGINT)
