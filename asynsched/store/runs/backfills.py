"""Queries of `backfill` and of its dates. Its progress follows from its runs, and is stored nowhere."""

from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import fetch, fetch_one, insert
from asynsched.store.schema import BackfillRow, backfill, backfill_dag_run, dag_run

Reprocess = Literal["none", "failed", "completed"]
BackfillState = Literal["running", "paused", "completed", "cancelled"]


class BackfillProgress(BackfillRow, frozen=True, kw_only=True):
    """A backfill, how many of its runs are in each state, and when the last of them ended."""

    n_queued: int
    n_running: int
    n_success: int
    n_failed: int
    last_run_ended_at: datetime | None = None

    @property
    def state(self) -> BackfillState:
        """`cancelled`, or `completed` once all its runs have ended."""
        if self.cancelled_at is not None:
            return "cancelled"
        if not self.n_queued and not self.n_running:
            return "completed"
        return "paused" if self.is_paused else "running"

    @property
    def completed_at(self) -> datetime | None:
        """When it was cancelled, or its last run ended; None while it has not ended."""
        if self.cancelled_at is not None:
            return self.cancelled_at
        return (self.last_run_ended_at or self.created_at) if self.state == "completed" else None


class BackfillDate(Struct, frozen=True):
    """A date of a backfill, or that of a partition: its run, by its row and its name, or why it has none."""

    logical_date: datetime
    dag_run_id: int | None
    run_id: str | None
    state: str | None
    exception_reason: str | None


def _n(state: str) -> sa.Label[Any]:
    return sa.func.count(sa.case((dag_run.c.state == state, 1))).label(f"n_{state}")


BACKFILLS: sa.Select[Any] = (
    sa.select(
        backfill, *map(_n, ("queued", "running", "success", "failed")),
        sa.func.max(dag_run.c.ended_at).label("last_run_ended_at"),
    )
    .join(backfill_dag_run, backfill_dag_run.c.backfill_id == backfill.c.id, isouter=True)
    .join(dag_run, dag_run.c.id == backfill_dag_run.c.dag_run_id, isouter=True)
    .group_by(*backfill.c)
)  # fmt: skip
"""All of them, as BackfillProgress."""
DATES: sa.Select[Any] = sa.select(
    *(backfill_dag_run.c[name] for name in ("logical_date", "dag_run_id", "exception_reason")),
    dag_run.c.run_id, dag_run.c.state,
).join(dag_run, dag_run.c.id == backfill_dag_run.c.dag_run_id, isouter=True)  # fmt: skip
"""The dates of all of them, as BackfillDate."""
_NEWEST_FIRST = BACKFILLS.order_by(backfill.c.id.desc())


def add_backfill(conn: Connection, conf: dict[str, Any], **values: Any) -> int:
    """Store a backfill without dates, and return its id."""
    return insert(conn, backfill, {**values, "conf": conf})


def add_dates(conn: Connection, backfill_id: int, dates: list[tuple[datetime, int | None, str | None]]) -> None:
    """Store the dates of a backfill, in the order in which they run: each with its run, or why it has none."""
    rows = [
        {
            "backfill_id": backfill_id, "logical_date": date, "dag_run_id": run_row_id, "exception_reason": reason,
            "sort_ordinal": ordinal,
        }
        for ordinal, (date, run_row_id, reason) in enumerate(dates, 1)
    ]  # fmt: skip
    conn.execute(backfill_dag_run.insert(), rows)


def list_backfills(conn: Connection, *, dag_id: str | None = None) -> list[BackfillProgress]:
    """Return the backfills of a DAG, or of all, the newest first."""
    statement = _NEWEST_FIRST if dag_id is None else _NEWEST_FIRST.where(backfill.c.dag_id == dag_id)
    return fetch(conn, BackfillProgress, statement)


def get_backfill(conn: Connection, backfill_id: int) -> BackfillProgress:
    """Return a backfill. Raises NotFound."""
    found = fetch_one(conn, BackfillProgress, BACKFILLS.where(backfill.c.id == backfill_id))
    if found is None:
        raise NotFound("backfill", str(backfill_id))
    return found


def list_dates(conn: Connection, backfill_id: int) -> list[BackfillDate]:
    """Return the dates of a backfill, in the order in which they run."""
    query = DATES.where(backfill_dag_run.c.backfill_id == backfill_id).order_by(backfill_dag_run.c.sort_ordinal)
    return fetch(conn, BackfillDate, query)


def pause_backfill(conn: Connection, backfill_id: int, *, is_paused: bool) -> None:
    """Pause or resume a backfill."""
    conn.execute(sa.update(backfill).where(backfill.c.id == backfill_id).values(is_paused=is_paused))


def end_backfill(conn: Connection, backfill_id: int, now: datetime) -> None:
    """Mark a backfill as cancelled."""
    conn.execute(sa.update(backfill).where(backfill.c.id == backfill_id).values(cancelled_at=now))
