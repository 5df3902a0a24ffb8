"""Queries of `backfill` and of its dates. Its progress follows from its runs, and is stored nowhere."""

from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import fetch
from asynsched.store.schema import BackfillRow, backfill, backfill_dag_run, dag_run

Reprocess = Literal["none", "failed", "completed"]
BackfillState = Literal["running", "paused", "completed", "cancelled"]


class BackfillProgress(BackfillRow, frozen=True, kw_only=True):
    """A backfill, and how many of its runs are in each state."""

    n_queued: int
    n_running: int
    n_success: int
    n_failed: int

    @property
    def state(self) -> BackfillState:
        """`cancelled`, or `completed` once all its runs have ended."""
        if self.cancelled_at is not None:
            return "cancelled"
        if not self.n_queued and not self.n_running:
            return "completed"
        return "paused" if self.is_paused else "running"


class BackfillDate(Struct, frozen=True):
    """A date of a backfill: its run, by its row and its name, or why it has none."""

    logical_date: datetime
    dag_run_id: int | None
    run_id: str | None
    state: str | None
    exception_reason: str | None


def _n(state: str) -> sa.Label[Any]:
    return sa.func.count(sa.case((dag_run.c.state == state, 1))).label(f"n_{state}")


_BACKFILLS: sa.Select[Any] = (
    sa.select(backfill, *map(_n, ("queued", "running", "success", "failed")))
    .select_from(
        backfill.outerjoin(backfill_dag_run, backfill_dag_run.c.backfill_id == backfill.c.id).outerjoin(
            dag_run, dag_run.c.id == backfill_dag_run.c.dag_run_id
        )
    )
    .group_by(*backfill.c)
    .order_by(backfill.c.id.desc())
)
_DATES: sa.Select[Any] = (
    sa.select(
        backfill_dag_run.c.logical_date,
        backfill_dag_run.c.dag_run_id,
        dag_run.c.run_id,
        dag_run.c.state,
        backfill_dag_run.c.exception_reason,
    )
    .select_from(backfill_dag_run.outerjoin(dag_run, dag_run.c.id == backfill_dag_run.c.dag_run_id))
    .where(backfill_dag_run.c.backfill_id == sa.bindparam("key"))
    .order_by(backfill_dag_run.c.sort_ordinal)
)
_SET_PAUSED = sa.update(backfill).where(backfill.c.id == sa.bindparam("key")).values(is_paused=sa.bindparam("paused"))
_SET_CANCELLED = (
    sa.update(backfill).where(backfill.c.id == sa.bindparam("key")).values(cancelled_at=sa.bindparam("now"))
)


def add_backfill(conn: Connection, conf: dict[str, Any], **values: Any) -> int:
    """Store a backfill without dates, and return its id."""
    statement = backfill.insert().returning(backfill.c.id)
    backfill_id: int = conn.execute(statement, {**values, "conf": conf}).scalar_one()
    return backfill_id


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
    statement = _BACKFILLS if dag_id is None else _BACKFILLS.where(backfill.c.dag_id == dag_id)
    return fetch(conn, BackfillProgress, statement)


def get_backfill(conn: Connection, backfill_id: int) -> BackfillProgress:
    """Return a backfill. Raises NotFound."""
    found = fetch(conn, BackfillProgress, _BACKFILLS.where(backfill.c.id == backfill_id))
    if not found:
        raise NotFound("backfill", str(backfill_id))
    return found[0]


def list_dates(conn: Connection, backfill_id: int) -> list[BackfillDate]:
    """Return the dates of a backfill, in the order in which they run."""
    return fetch(conn, BackfillDate, _DATES, {"key": backfill_id})


def pause_backfill(conn: Connection, backfill_id: int, *, is_paused: bool) -> None:
    """Pause or resume a backfill."""
    conn.execute(_SET_PAUSED, {"key": backfill_id, "paused": is_paused})


def end_backfill(conn: Connection, backfill_id: int, now: datetime) -> None:
    """Mark a backfill as cancelled."""
    conn.execute(_SET_CANCELLED, {"key": backfill_id, "now": now})
