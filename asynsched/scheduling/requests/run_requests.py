"""Submitting and doing requests for runs: clear, mark, cancel.

A running run belongs to its scheduler, which holds it in memory: a request for it is stored, and that scheduler does
it. Any other run is changed at once. In both cases the same rows change in the same way, in one transaction, through
the one function that writes states.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.bell import Hint, encode_hints
from asynsched.errors import AsynschedError, NotFound, StoreError
from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.requests.run_edits import RunEdit, fill_in
from asynsched.serialization.decode import decode_dag
from asynsched.states import FINISHED_RUN_STATES, SLOT_TASK_STATES, DagRunState
from asynsched.store.audit import record_audit
from asynsched.store.dags.dags import get_version, latest_version
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.deadlines import renew_deadlines
from asynsched.store.runs.requests import (
    CancelRun,
    ClearTasks,
    ForceTask,
    MarkTasks,
    OpenRequest,
    RunRequest,
    add_request,
    close_request,
)
from asynsched.store.runs.row_locks import lock_runs, lock_tasks
from asynsched.store.runs.task_instances import load_task_instances, numbers_of_tries
from asynsched.store.runs.transitions import apply
from asynsched.store.schedulers import notify
from asynsched.store.schema import DagRunRow, TaskInstanceRow, task_instance

_ADOPT = (
    sa.update(task_instance)
    .where(task_instance.c.dag_run_id == sa.bindparam("run"))
    .values(lease_epoch=sa.bindparam("epoch"))
)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that was accepted.

    Attributes:
        instances: The task instances that it concerns, as they were before.
        request_id: Row id of the request if the run's scheduler has yet to do it; None: it is done.
    """

    instances: tuple[TaskInstanceRow, ...]
    request_id: int | None


def preview_request(conn: Connection, key: DagRunKey, request: RunRequest, *, now: datetime) -> list[TaskInstanceRow]:
    """Return the task instances that a request would concern; raises the errors of `submit_request`."""
    return _checked(conn, _run(conn, key), request, "", now).named


def submit_request(conn: Connection, key: DagRunKey, request: RunRequest, *, actor: str, now: datetime) -> Submitted:
    """Do a request for a run, or store it for the scheduler that owns the run.

    Args:
        actor: The name of the person or program that makes the request, for reasons and the audit.

    Raises:
        NotFound: There is no such run or task; carries the nearest names.
        AsynschedError: The run has no tasks yet, or has ended already.
    """
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    edit = _checked(conn, run, request, actor, now)
    request_id = None
    if run.state == DagRunState.RUNNING:
        request_id = add_request(conn, run.id, request, actor=actor, now=now)
        # The run's scheduler may be another process than the caller's.
        notify(conn, encode_hints([Hint("edit", dag_id=key.dag_id, run_id=key.run_id)]))
    else:
        _write(conn, edit)
    return Submitted(tuple(edit.named), request_id)


def submit_by_program(
    conn: Connection, key: DagRunKey, request: RunRequest, *, action: str, now: datetime
) -> Submitted:
    """Submit a request for an embedding program, and record that in the audit."""
    taken = submit_request(conn, key, request, actor="the program", now=now)
    detail = msgspec.to_builtins(request)
    record_audit(conn, at=now, actor="program", action=action, dag_id=key.dag_id, run_id=key.run_id, detail=detail)
    return taken


def do_request(conn: Connection, wanted: OpenRequest, now: datetime) -> None:
    """Do a stored request. The run belongs to the calling scheduler, or has ended meanwhile.

    Raises:
        NotFound: The run has no such task any more, or its DAG no version.
        AsynschedError: The run has changed so that the request no longer makes sense.
    """
    lock_runs(conn, [wanted.dag_run_id])
    run = _run(conn, wanted.run)
    if not end_request(conn, wanted):
        return
    edit = _edit(conn, run, wanted.request, now)
    fill_in(edit, wanted.request, wanted.actor)
    _write(conn, edit)


def end_request(conn: Connection, wanted: OpenRequest) -> bool:
    """Delete a request that is done or refused, and notify the waiting command. Returns False if it was gone."""
    notify(conn, encode_hints([Hint("changed", *wanted.run)]))
    return close_request(conn, wanted.id)


def run_again(conn: Connection, key: DagRunKey, now: datetime) -> None:
    """Clear an ended run with all its tasks, so that it starts again. Raises StoreError if it has not ended."""
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    if run.state not in FINISHED_RUN_STATES:
        raise StoreError(f"The run {run.run_id!r} was changed at the same moment; try again.")
    edit = _edit(conn, run, ClearTasks(), now)
    fill_in(edit, ClearTasks(), "")
    edit.reopen()
    _write(conn, edit)


def _write(conn: Connection, edit: RunEdit) -> None:
    run = edit.run
    lock_tasks(conn, [run.id])
    # Tasks that have ended may bear the epoch of an earlier owner of the run.
    conn.execute(_ADOPT, {"run": run.id, "epoch": run.lease_epoch})
    stale = apply(conn, edit.batch())
    if stale:
        raise StoreError(f"The run {run.run_id!r} was changed at the same moment; try again.")
    if any(task.before_state in SLOT_TASK_STATES and task.state not in SLOT_TASK_STATES for task in edit.tasks):
        notify(conn, encode_hints([Hint("slots")]))
    if edit.new_state is DagRunState.QUEUED:
        renew_deadlines(conn, run.id, run.dag_id, edit.now)


def _checked(conn: Connection, run: DagRunRow, request: RunRequest, actor: str, now: datetime) -> RunEdit:
    if isinstance(request, CancelRun) and run.state in FINISHED_RUN_STATES:
        raise AsynschedError(f"The run {run.run_id!r} has ended already: {run.state}.")
    edit = _edit(conn, run, request, now)
    if isinstance(request, ClearTasks | MarkTasks | ForceTask) and not edit.instances:
        raise AsynschedError(f"The run {run.run_id!r} is {run.state}, and has no tasks yet.")
    fill_in(edit, request, actor)
    return edit


def _edit(conn: Connection, run: DagRunRow, request: RunRequest, now: datetime) -> RunEdit:
    version_id, structure = _version(conn, run, newest=isinstance(request, ClearTasks) and request.latest)
    earlier = numbers_of_tries(conn, run.id)
    return RunEdit(run, load_task_instances(conn, run.id), earlier, structure, version_id, now)


def _version(conn: Connection, run: DagRunRow, *, newest: bool) -> tuple[int | None, DagStructure]:
    """Return the version that a run is on, or is to move to. A run that never began has no version, and gets none."""
    if run.version_id is None or newest:
        found = latest_version(conn, run.dag_id)
        if found is None:
            raise NotFound("DAG", run.dag_id)
    else:
        found = get_version(conn, run.version_id)
    return None if run.version_id is None else found.id, compile_structure(decode_dag(found.serialized))


def _run(conn: Connection, key: DagRunKey) -> DagRunRow:
    run = get_run(conn, *key)
    if run is None:
        raise NotFound("run", key.run_id)
    return run
