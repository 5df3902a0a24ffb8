"""Questions about deadlines: by when runs should have succeeded, and which of them missed that."""

from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.keys import DagRunKey
from asynsched.queries.paging import FIRST_PAGE, Page, Paging, Range, Sorting, one_of, select_page
from asynsched.queries.runs import check_run_exists
from asynsched.store.rows import as_struct, fetch_one
from asynsched.store.runs.deadlines import STATE
from asynsched.store.schema import dag_run, deadline

SORTING = Sorting(
    {
        "id": deadline.c.id, "due_at": deadline.c.due_at, "name": deadline.c.name, "number": deadline.c.number,
        "dag_id": dag_run.c.dag_id, "run_id": dag_run.c.run_id,
    },
    key=deadline.c.id,
    usual=("due_at",),
)  # fmt: skip


class DeadlineInfo(Struct, frozen=True):
    """A deadline of a run.

    Attributes:
        number: Its place among those of the DAG, from 0.
        name: Empty: it has none.
        state: `pending`, `met` or `missed`.
    """

    dag_id: str
    run_id: str
    number: int
    name: str
    due_at: datetime
    state: str


class DeadlineFilter(Struct, frozen=True, kw_only=True):
    """Which deadlines are wanted; None: all. `allowed`: of the DAGs that the user may see."""

    allowed: frozenset[str] | None = None
    dag_id: str | None = None
    run_id: str | None = None
    states: tuple[str, ...] | None = None
    due_at: Range = Range()


_DEADLINES = sa.select(
    dag_run.c.dag_id, dag_run.c.run_id, deadline.c.number, deadline.c.name, deadline.c.due_at, STATE.label("state")
).join(dag_run, dag_run.c.id == deadline.c.dag_run_id)


def list_deadlines(conn: Connection, wanted: DeadlineFilter, paging: Paging = FIRST_PAGE) -> Page[DeadlineInfo]:
    """Return deadlines. Raises BadRequest."""
    conditions = [
        *one_of(dag_run.c.dag_id, wanted.allowed),
        *one_of(dag_run.c.dag_id, None if wanted.dag_id is None else (wanted.dag_id,)),
        *one_of(dag_run.c.run_id, None if wanted.run_id is None else (wanted.run_id,)),
        *one_of(STATE, wanted.states),
        *wanted.due_at.holds_for(deadline.c.due_at),
    ]
    rows, after = select_page(conn, _DEADLINES.where(*conditions), SORTING, paging)
    return Page(tuple(as_struct(DeadlineInfo, row) for row in rows), after)


def get_deadline(conn: Connection, run: DagRunKey, number: int) -> DeadlineInfo:
    """Return a deadline of a run by its place among those of the DAG. Raises NotFound."""
    is_it = (dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id, deadline.c.number == number)
    found = fetch_one(conn, DeadlineInfo, _DEADLINES.where(*is_it))
    if found is None:
        check_run_exists(conn, *run)
        raise NotFound("deadline", str(number), where=f"the run {run.run_id!r} of the DAG {run.dag_id!r}")
    return found
