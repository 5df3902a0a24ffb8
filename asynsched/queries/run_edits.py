"""Changes of runs and their tasks, each in one transaction: trigger, clear, mark, cancel, force, note.

A run that a scheduler owns is changed by that scheduler: the change is then stored as a request. `run_actions.py` and
`task_actions.py` wait for the scheduler to do it. Commands, which have no event loop, wait by themselves.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.context import Act
from asynsched.queries.runs import RunInfo, get_run, no_such_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import (
    ChangedTask,
    Submitted,
    action_of,
    detail_of,
    preview_request,
    queue_again,
    submit_request,
)
from asynsched.serialization.schema import AnswersForRun
from asynsched.store.runs import dag_runs
from asynsched.store.runs.notes import note_tasks, put_note
from asynsched.store.runs.requests import ClearTasks, MarkRun, RunRequest
from asynsched.store.runs.row_locks import lock_runs
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.schema import DagRunRow, NoteRow

if TYPE_CHECKING:
    from asynsched.scheduling.creation.triggering import CheckedConf

MarkedAs = Literal["queued", "success", "failed"]


def store_trigger(
    conn: Connection, dag_id: str, wanted: Trigger, answers: AnswersForRun, actor: str, now: datetime,
    checked: "CheckedConf | None" = None,
) -> Act[RunInfo]:  # fmt: skip
    """Create a run of a DAG. Raises the errors of `create_manual_run`.

    Args:
        answers: Of an author's own timetable or mappers, which only a parse can ask.
        checked: As of `create_manual_run`.
    """
    from asynsched.scheduling.creation.triggering import create_manual_run  # other commands need not load it

    key = create_manual_run(
        conn, dag_id, wanted, now=now, answers=answers, checked=checked, author=actor, reason=f"{actor} triggered it"
    )
    return Act(get_run(conn, *key), "dag.trigger", Hint("run", *key))


def edit_run(conn: Connection, key: DagRunKey, request: RunRequest, actor: str, now: datetime) -> Act[Submitted]:
    """Do a request for a run, or store it for the scheduler that owns the run.

    Raises NotFound, and AsynschedError if the run has no tasks yet, or has ended already.
    """
    done = submit_request(conn, key, request, actor=actor, now=now)
    return Act(done, action_of(request), Hint("edit", *key), detail=detail_of(request))


def store_mark(conn: Connection, key: DagRunKey, state: MarkedAs, actor: str, now: datetime) -> Act[Submitted]:
    """Mark a run as ended, or queue an ended one again with its tasks as they are. Raises the errors of `edit_run`."""
    if state != "queued":
        return edit_run(conn, key, MarkRun(state), actor, now)
    queue_again(conn, key, now)
    return Act(Submitted(), "run.mark", Hint("edit", *key), detail={"state": state})


class Clear(Struct, frozen=True, kw_only=True):
    """How a run is cleared.

    Attributes:
        request: Which of its task instances.
        note: For each of these task instances; None: no change.
        prevent_running: Refuse if one of them is running.
    """

    request: ClearTasks
    note: str | None = None
    prevent_running: bool = False


def store_clear(conn: Connection, key: DagRunKey, wanted: Clear, actor: str, now: datetime) -> Act[Submitted]:
    """Run tasks of a run again; one that has ended without any is queued again. Raises the errors of `edit_run`."""
    run = find_run(conn, key)
    if not load_task_instances(conn, run.id):
        queue_again(conn, key, now)
        return Act(Submitted(), action_of(wanted.request), Hint("edit", *key), detail=detail_of(wanted.request))
    if wanted.prevent_running:
        running = [row for row in preview_request(conn, key, wanted.request, now=now) if row.state == "running"]
        if running:
            raise AsynschedError(f"The task {running[0].task_id!r} of the run {key.run_id!r} is running.")
    act = edit_run(conn, key, wanted.request, actor, now)
    if wanted.note is not None:
        names = [(row.task_id, row.map_index) for row in act.result.instances]
        note_tasks(conn, run.id, names, wanted.note, actor=actor, now=now)
    return act


def store_run_note(conn: Connection, key: DagRunKey, text: str, actor: str, now: datetime) -> Act[None]:
    """Note something about a run, in place of an earlier note; an empty text removes it. Raises NotFound."""
    put_note(conn, NoteRow(dag_run_id=find_run(conn, key).id, text=text, actor=actor, updated_at=now))
    # The hint names the run for the audit; a scheduler finds nothing changed.
    return Act(None, "run.note", Hint("edit", *key))


def store_task_note(conn: Connection, key: TaskInstanceKey, text: str, actor: str, now: datetime) -> Act[None]:
    """Note something about a task instance, in place of an earlier note; an empty text removes it. Raises NotFound."""
    from asynsched.queries.task_instances import get_task_instance  # commands that change runs need not load it

    get_task_instance(conn, key)
    run = find_run(conn, key.run)
    note_tasks(conn, run.id, [(key.task_id, key.map_index)], text, actor=actor, now=now)
    return Act(None, "task.note", Hint("edit", *key.run), key.task_id, {"map_index": key.map_index})


def preview(conn: Connection, key: DagRunKey, request: RunRequest, *, now: datetime) -> tuple[ChangedTask, ...]:
    """Return the task instances that a request would concern.

    Raises NotFound, and AsynschedError if the run has no tasks yet, or has ended already.
    """
    find_run(conn, key)
    return preview_request(conn, key, request, now=now)


def find_run(conn: Connection, key: DagRunKey, *, lock: bool = False) -> DagRunRow:
    """Return a run, locked until the transaction ends if that is wanted. Raises NotFound with the nearest names."""
    if lock and (found := dag_runs.get_run(conn, *key)) is not None:
        lock_runs(conn, [found.id])
    run = dag_runs.get_run(conn, *key)
    if run is None:
        raise no_such_run(conn, *key)
    return run
