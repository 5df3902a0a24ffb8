"""Questions about backfills, and actions on them."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.errors import AsynschedError, PlanNeeded
from asynsched.queries.context import Act, QueryContext
from asynsched.queries.paging import FIRST_PAGE, Page, Paging, Sorting, select_page
from asynsched.scheduling.creation import backfills as creation
from asynsched.scheduling.creation.backfills import (
    BackfillPlan,
    PlannedDate,
    Span,
    compute_span,
    plan_dates,
    question_of,
    version_and_file,
)
from asynsched.store.rows import as_struct, count, in_common
from asynsched.store.runs import backfills as store
from asynsched.store.runs.backfills import BACKFILLS, DATES, BackfillProgress, BackfillState
from asynsched.store.schema import BackfillRow, backfill, backfill_dag_run

SORTING = Sorting(
    {name: backfill.c[name] for name in ("id", "dag_id", "from_date", "to_date", "created_at")},
    key=backfill.c.id,
    usual=("-id",),
)

DATE_SORTING = Sorting(
    {name: backfill_dag_run.c[name] for name in ("sort_ordinal", "logical_date")},
    key=backfill_dag_run.c.id,
    usual=("sort_ordinal",),
)


class BackfillInfo(BackfillRow, frozen=True, kw_only=True):
    """A backfill, and how many of its runs are in each state.

    Attributes:
        state: `running`, `paused`, `cancelled`, or `completed` once all its runs have ended.
    """

    state: BackfillState
    n_queued: int
    n_running: int
    n_success: int
    n_failed: int
    completed_at: datetime | None


class BackfillDateInfo(Struct, frozen=True):
    """A date of a backfill, or that of a partition.

    Attributes:
        run_id: Its run; of a planned backfill one that the date has already; None: none.
        state: Of that run.
        exception_reason: Why the date gets no run: `in flight` or `already exists`; None: it gets one.
    """

    logical_date: datetime
    run_id: str | None
    state: str | None
    exception_reason: str | None


def backfill_info(row: BackfillProgress) -> BackfillInfo:
    """Return a backfill as it is shown."""
    return BackfillInfo(**in_common(BackfillInfo, row))


class BackfillFilter(Struct, frozen=True):
    """Which backfills are wanted: those of one DAG, or of some; None: of all."""

    dag_id: str | None = None
    dag_ids: frozenset[str] | None = None


def list_backfills(conn: Connection, wanted: BackfillFilter, paging: Paging = FIRST_PAGE) -> Page[BackfillProgress]:
    """Return backfills. Raises BadRequest."""
    rows, after = select_page(conn, BACKFILLS.where(*_conditions(wanted)), SORTING, paging)
    return Page(tuple(as_struct(BackfillProgress, row) for row in rows), after)


def count_backfills(conn: Connection, wanted: BackfillFilter) -> int:
    """Count such backfills."""
    return count(conn, sa.select(backfill.c.id).where(*_conditions(wanted)))


def get_backfill(conn: Connection, backfill_id: int) -> BackfillProgress:
    """Return a backfill. Raises NotFound."""
    return store.get_backfill(conn, backfill_id)


def list_dates(conn: Connection, backfill_id: int, paging: Paging = FIRST_PAGE) -> Page[BackfillDateInfo]:
    """Return the dates of a backfill, by default in the order in which they run. Raises BadRequest."""
    rows, after = select_page(conn, DATES.where(backfill_dag_run.c.backfill_id == backfill_id), DATE_SORTING, paging)
    dates = (BackfillDateInfo(row.logical_date, row.run_id, row.state, row.exception_reason) for row in rows)
    return Page(tuple(dates), after)


def count_left_out(conn: Connection, backfill_id: int) -> int:
    """Count the dates of a backfill that get no run."""
    dates = sa.select(backfill_dag_run.c.id).where(backfill_dag_run.c.backfill_id == backfill_id)
    return count(conn, dates.where(backfill_dag_run.c.exception_reason.is_not(None)))


def planned_date(date: PlannedDate) -> BackfillDateInfo:
    """Return a planned date as it is shown."""
    run = date.existing
    run_id, state = (None, None) if run is None else (run.run_id, run.state)
    return BackfillDateInfo(date.info.logical_date, run_id, state, date.exception_reason)


async def plan_backfill(context: QueryContext, plan: BackfillPlan) -> list[PlannedDate]:
    """Return the dates of a backfill, in the order in which they would run. Raises NotFound, and DagError."""
    now = context.clock.now()
    return await context.ask(plan_dates, plan, now, await _span(context, plan, now))


async def make_backfill(context: QueryContext, actor: str, plan: BackfillPlan) -> BackfillProgress:
    """Create the runs of a backfill. Raises NotFound, DagError, and AlreadyExists if another one has not ended."""
    now = context.clock.now()
    span = await _span(context, plan, now)
    return await context.act(actor, create_backfill, plan, actor=actor, now=now, span=span)


async def _span(context: QueryContext, plan: BackfillPlan, now: datetime) -> Span:
    from anyio.to_thread import run_sync  # commands, which have no loop, import this module too

    from asynsched.queries.own_timetables import ask_timetable

    version, file = await context.ask(version_and_file, plan.dag_id)
    try:
        return await run_sync(compute_span, version, plan, now)
    except PlanNeeded:
        asked = await ask_timetable(context, file, plan.dag_id, question_of(plan), now)
        return await run_sync(compute_span, version, plan, now, asked.plan)


def create_backfill(
    conn: Connection, plan: BackfillPlan, *, actor: str, now: datetime, span: Span | None = None
) -> Act[BackfillProgress]:
    """Create the runs of a backfill: `make_backfill` for those who have no event loop."""
    made = creation.create_backfill(conn, plan, actor=actor, now=now, span=span)
    detail: dict[str, Any] = {
        "from": plan.from_date.isoformat(), "to": plan.to_date.isoformat(), "reprocess": plan.reprocess,
        "is_reverse": plan.is_reverse, "max_active_runs": plan.max_active_runs,
    }  # fmt: skip
    return _act(made, "backfill.create", detail)


def pause_backfill(conn: Connection, backfill_id: int, *, paused: bool) -> Act[BackfillProgress]:
    """Start no further run of a backfill, or go on. Raises NotFound, and AsynschedError if it has ended."""
    _refuse_ended(conn, backfill_id)
    changed = creation.set_paused(conn, backfill_id, is_paused=paused)
    return _act(changed, "backfill.pause" if paused else "backfill.unpause")


def cancel_backfill(conn: Connection, backfill_id: int, *, actor: str, now: datetime) -> Act[BackfillProgress]:
    """Fail the queued runs of a backfill. Raises NotFound, and AsynschedError if it has ended."""
    _refuse_ended(conn, backfill_id)
    return _act(creation.cancel_backfill(conn, backfill_id, actor=actor, now=now), "backfill.cancel")


def _refuse_ended(conn: Connection, backfill_id: int) -> None:
    found = store.get_backfill(conn, backfill_id)
    if found.completed_at is not None:
        raise AsynschedError(f"The backfill {backfill_id} is already {found.state}.")


def _act(found: BackfillProgress, action: str, detail: dict[str, Any] | None = None) -> Act[BackfillProgress]:
    return Act(found, action, Hint("backfill", dag_id=found.dag_id), detail=detail or {"backfill_id": found.id})


def _conditions(wanted: BackfillFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.dag_id is not None:
        conditions.append(backfill.c.dag_id == wanted.dag_id)
    if wanted.dag_ids is not None:
        conditions.append(backfill.c.dag_id.in_(wanted.dag_ids))
    return conditions
