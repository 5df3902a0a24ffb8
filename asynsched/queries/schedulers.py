"""Questions about schedulers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.explaining.owners import Standing, standing
from asynsched.queries.paging import FIRST_PAGE, Page, Paging, Range, Sorting, begins, select_page
from asynsched.store.expressions import as_text
from asynsched.store.rows import as_struct, count, in_common, to_json
from asynsched.store.schedulers import Load, loads, unended_schedulers
from asynsched.store.schema import SchedulerRow, scheduler

SORTING = Sorting(
    {
        name: scheduler.c[name]
        for name in ("id", "lease_epoch", "hostname", "started_at", "ended_at", "heartbeat_at", "version")
    }
    | {"has_ended": scheduler.c.ended_at.is_not(None), "executors": as_text(scheduler.c.executors)},
    key=scheduler.c.lease_epoch,
    usual=("-lease_epoch",),
)
_SCHEDULERS: sa.Select[Any] = sa.select(scheduler)


class SchedulerInfo(Struct, frozen=True, kw_only=True):
    """A scheduler that has not stopped, and its load.

    Attributes:
        state: `serving` renews its lease; `lapsed` has not renewed it for too long. On its own machine also known:
            `stopping` lets running tasks end, and begins nothing; `gone` was killed.
    """

    id: str
    state: Standing
    hostname: str
    pid: int
    home: str
    version: str
    parallelism: int
    n_runs: int
    n_tasks: int
    started_at: datetime
    heartbeat_at: datetime
    lease_until: datetime
    lease_epoch: int


def unended(conn: Connection) -> list[tuple[SchedulerRow, Load]]:
    """Return the schedulers that have not stopped, with their loads, for `with_states`."""
    carried = loads(conn)
    return [(row, carried.get(row.id, Load(0, 0))) for row in unended_schedulers(conn)]


def with_states(rows: Sequence[tuple[SchedulerRow, Load]], now: datetime) -> tuple[SchedulerInfo, ...]:
    """Return schedulers as they are shown. This looks at processes and sockets: call it in a thread."""
    return tuple(
        SchedulerInfo(
            **in_common(SchedulerInfo, row), state=standing(row, now), n_runs=load.n_runs, n_tasks=load.n_tasks
        )
        for row, load in rows
    )


class SchedulerFilter(Struct, frozen=True, kw_only=True):
    """Which schedulers are wanted.

    Attributes:
        serving: Only those whose lease is valid at `now`, or only others.
        ended: Only those that have left or were given up, or only others.
        executor: The first one.
    """

    now: datetime
    serving: bool | None = None
    ended: bool | None = None
    hostname: str | None = None
    executor: str | None = None
    started_at: Range = Range()
    ended_at: Range = Range()


def list_schedulers(conn: Connection, wanted: SchedulerFilter, paging: Paging = FIRST_PAGE) -> Page[SchedulerRow]:
    """Return schedulers, also ended ones. Raises BadRequest."""
    rows, after = select_page(conn, _SCHEDULERS.where(*_conditions(wanted)), SORTING, paging)
    return Page(tuple(as_struct(SchedulerRow, row) for row in rows), after)


def count_schedulers(conn: Connection, wanted: SchedulerFilter) -> int:
    """Count such schedulers."""
    return count(conn, _SCHEDULERS.where(*_conditions(wanted)))


def _conditions(wanted: SchedulerFilter) -> list[sa.ColumnElement[bool]]:
    conditions = [
        *wanted.started_at.holds_for(scheduler.c.started_at),
        *wanted.ended_at.holds_for(scheduler.c.ended_at),
    ]
    if wanted.serving is not None:
        serves = sa.and_(scheduler.c.ended_at.is_(None), scheduler.c.lease_until > wanted.now)
        conditions.append(serves if wanted.serving else ~serves)
    if wanted.ended is not None:
        has_ended = scheduler.c.ended_at.is_not(None)
        conditions.append(has_ended if wanted.ended else ~has_ended)
    if wanted.hostname is not None:
        conditions.append(scheduler.c.hostname == wanted.hostname)
    if wanted.executor is not None:
        conditions.append(begins(as_text(scheduler.c.executors), f"{{{to_json(wanted.executor).decode()}:"))
    return conditions
