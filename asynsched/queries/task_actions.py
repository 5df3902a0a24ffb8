"""Actions on task instances: mark, clear and note them, in one run or in several."""

from collections.abc import Collection
from datetime import datetime
from functools import partial

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.keys import DagRunKey
from asynsched.queries.context import Act, QueryContext
from asynsched.queries.paging import BadRequest, Range
from asynsched.queries.run_actions import change_run
from asynsched.queries.run_edits import edit_run, find_run
from asynsched.scheduling.requests.run_requests import Submitted, action_of, detail_of, submit_request
from asynsched.serialization.schema import SerializedDag
from asynsched.store.runs.notes import note_tasks
from asynsched.store.runs.requests import ForceTask, MarkTasks
from asynsched.store.schema import dag_run

MOST_RUNS = 100
"""Runs that one action changes."""


class Mark(Struct, frozen=True):
    """How task instances of a run are marked.

    Attributes:
        request: Which ones, and as what; None: they are only noted.
        noted: The task instances that the note is about, by task_id and map index.
        note: None: no change; empty: none any more.
    """

    request: MarkTasks | None = None
    noted: tuple[tuple[str, int], ...] = ()
    note: str | None = None


async def mark_tasks(context: QueryContext, actor: str, key: DagRunKey, wanted: Mark) -> Submitted:
    """Mark and note task instances of a run.

    Raises NotFound, and AsynschedError if the run has no such instance.
    """
    return await change_run(context, key, partial(context.act, actor, _mark, key, wanted, actor, context.clock.now()))


async def force_task(context: QueryContext, actor: str, key: DagRunKey, request: ForceTask) -> Submitted:
    """Start a task instance, and ignore some of its dependencies.

    Raises NotFound, and AsynschedError if the run has no such instance, or its state forbids it.
    """
    return await change_run(
        context, key, partial(context.act, actor, edit_run, key, request, actor, context.clock.now())
    )


def _mark(conn: Connection, key: DagRunKey, wanted: Mark, actor: str, now: datetime) -> Act[Submitted]:
    run, request = find_run(conn, key), wanted.request
    done = Submitted() if request is None else submit_request(conn, key, request, actor=actor, now=now)
    if wanted.note is not None:
        note_tasks(conn, run.id, wanted.noted, wanted.note, actor=actor, now=now)
    detail = {} if request is None else detail_of(request)
    return Act(done, "task.note" if request is None else action_of(request), Hint("edit", *key), detail=detail)


def runs_of_dates(conn: Connection, dag_id: str, dates: Range) -> list[DagRunKey]:
    """Return the runs of a DAG whose logical dates are in a range, by date. Raises BadRequest if they are too many."""
    query = sa.select(dag_run.c.run_id).where(dag_run.c.dag_id == dag_id, *dates.holds_for(dag_run.c.logical_date))
    found = conn.scalars(query.order_by(dag_run.c.run_after, dag_run.c.id).limit(MOST_RUNS + 1)).all()
    if len(found) > MOST_RUNS:
        raise BadRequest(f"These dates have more than {MOST_RUNS} runs of the DAG {dag_id!r}: choose a shorter span.")
    return [DagRunKey(dag_id, run_id) for run_id in found]


def tasks_of_group(dag: SerializedDag, group_id: str) -> tuple[str, ...]:
    """Return the tasks of a group and of the groups in it; none if there is no such group."""
    groups = {group_id} & {group.group_id for group in dag.task_groups}
    inner: Collection[str] = groups
    while inner:
        inner = {group.group_id for group in dag.task_groups if group.parent_id in inner} - groups
        groups |= inner
    return tuple(task.task_id for task in dag.tasks if task.group_id in groups)
