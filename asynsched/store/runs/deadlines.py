"""Queries of `deadline`: by when runs should have succeeded, and which of them missed that."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.protocol.messages import RunContext
from asynsched.serialization.schema import SerializedDeadline
from asynsched.states import DagRunState
from asynsched.store.rows import as_new, fetch
from asynsched.store.schema import CallbackRequest, DagRunRow, DeadlineRow, callback_request, dag, dag_run, deadline

MISS_EVENT = "on_deadline_miss"
"""Event of the callback that a missed deadline requests; its `try_number` is the deadline's number."""

PLACE_EVENT = "deadline_place"
"""Event of the request to run the user code that says when a deadline is due; its `try_number` is as above."""


class MissedDeadline(Struct, frozen=True):
    """A run and the deadline that it missed."""

    dag_id: str
    run_id: str
    name: str
    due_at: datetime


_alerts_decoder = msgspec.json.Decoder(tuple[SerializedDeadline, ...])
_HAS_SUCCEEDED_BY_THEN = sa.and_(dag_run.c.state == DagRunState.SUCCESS, dag_run.c.ended_at <= deadline.c.due_at)
STATE = sa.case((sa.and_(deadline.c.state == "pending", _HAS_SUCCEEDED_BY_THEN), "met"), else_=deadline.c.state)
"""The state of a deadline: one that is not due yet is met once its run has succeeded."""
# A sum has no index, so the pending deadlines are read first, in their order, and never all runs.
_BY_DEADLINE = dag_run.c.id == deadline.c.dag_run_id + 0


_IS_PENDING = sa.text("deadline.state = 'pending'")
_IS_OURS = (dag_run.c.state != DagRunState.RUNNING) | (dag_run.c.lease_epoch == sa.bindparam("epoch"))
_NEXT = (
    sa.select(deadline.c.due_at)
    .join(dag_run, _BY_DEADLINE)
    .where(_IS_PENDING, _IS_OURS)
    .order_by(deadline.c.due_at)
    .limit(1)
)
_DUE = (
    sa.select(deadline, dag_run.c.dag_id, dag_run.c.run_id, _HAS_SUCCEEDED_BY_THEN.label("is_met"))
    .join(dag_run, _BY_DEADLINE)
    .where(_IS_PENDING, _IS_OURS, deadline.c.due_at <= sa.bindparam("now"))
    .order_by(deadline.c.due_at, deadline.c.id)
    .limit(sa.bindparam("limit"))
    .with_for_update(of=deadline, skip_locked=True)
)
_DECIDE = sa.update(deadline).where(deadline.c.id == sa.bindparam("key")).values(state=sa.bindparam("new_state"))


def add_deadlines(conn: Connection, runs: Sequence[tuple[int, DagRunRow, bytes]]) -> None:
    """Give new runs their deadlines: each by its row id, with the `deadlines` of its DAG."""
    rows, requests = [], []
    for run_row_id, run, alerts in runs:
        for number, alert in enumerate(_alerts_decoder.decode(alerts)):
            if alert.needs_user_code:
                requests.append(_placing(run_row_id, number, run.queued_at))
                continue
            start = _start_of(conn, run, alert)
            if start is not None and (due_at := _later(start, alert.interval)) is not None:
                rows.append({"dag_run_id": run_row_id, "number": number, "name": alert.name, "due_at": due_at})
    if rows:
        conn.execute(deadline.insert(), rows)
    if requests:
        conn.execute(callback_request.insert(), requests)


def _placing(dag_run_id: int, number: int, now: datetime) -> dict[str, Any]:
    return as_new(CallbackRequest(dag_run_id=dag_run_id, try_number=number, event=PLACE_EVENT, created_at=now))


def _start_of(conn: Connection, run: DagRunRow | RunContext, alert: SerializedDeadline) -> datetime | None:
    """Return the moment from which a deadline's interval counts; None without one, and for a user's reference."""
    match alert.reference:
        case "dagrun_logical_date":
            return run.logical_date
        case "dagrun_queued_at":
            return run.queued_at
        case "average_runtime" if run.queued_at is not None:
            return _after_average_runtime(conn, run.dag_id, alert, run.queued_at)
    return alert.at


def place_deadline(
    conn: Connection, dag_run_id: int, run: DagRunRow | RunContext, *, number: int, at: datetime | None, interval: float
) -> None:
    """Store when a deadline of a run is due, as user code has said. A deadline that was missed stays missed.

    Args:
        number: The deadline's place among those of its DAG.
        at: The moment of a user's reference; None for one that the scheduler knows.
        interval: Seconds after that.

    Raises:
        NotFound: The DAG has no such deadline any more.
        OverflowError: The moment is out of the calendar in UTC.
    """
    alerts = _alerts_of(conn, run.dag_id)
    if not 0 <= number < len(alerts):
        raise NotFound("deadline", str(number))
    start = _start_of(conn, run, alerts[number]) if at is None else at.astimezone(UTC)
    due_at = None if start is None else _later(start, interval)
    if due_at is None:
        return
    is_same = (deadline.c.dag_run_id == dag_run_id, deadline.c.number == number)
    if conn.scalar(sa.select(deadline.c.id).where(*is_same)) is None:
        conn.execute(deadline.insert(), [as_new(DeadlineRow(
            dag_run_id=dag_run_id, number=number, name=alerts[number].name, due_at=due_at
        ))])  # fmt: skip
    else:
        conn.execute(
            sa.update(deadline).where(*is_same, deadline.c.state != "missed").values(due_at=due_at, state="pending")
        )


def renew_deadlines(conn: Connection, dag_run_id: int, dag_id: str, queued_at: datetime) -> None:
    """Compute the deadlines of a cleared run from its queueing, as Airflow does; missed ones stay missed."""
    for number, alert in enumerate(_alerts_of(conn, dag_id)):
        if alert.reference != "dagrun_queued_at":
            continue
        if alert.needs_user_code:
            conn.execute(callback_request.insert(), [_placing(dag_run_id, number, queued_at)])
        elif (due_at := _later(queued_at, alert.interval)) is not None:
            is_same = (deadline.c.dag_run_id == dag_run_id, deadline.c.number == number, deadline.c.name == alert.name)
            renew = sa.update(deadline).where(*is_same, deadline.c.state != "missed")
            conn.execute(renew.values(due_at=due_at, state="pending"))


def _alerts_of(conn: Connection, dag_id: str) -> tuple[SerializedDeadline, ...]:
    return _alerts_decoder.decode(conn.scalar(sa.select(dag.c.deadlines).where(dag.c.dag_id == dag_id)) or b"[]")


def _later(start: datetime, seconds: float) -> datetime | None:
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:  # beyond the last year of a datetime: never due
        return None


def _after_average_runtime(conn: Connection, dag_id: str, alert: SerializedDeadline, now: datetime) -> datetime | None:
    """Return when a run of average length would end if it began now; None when too few runs have ended."""
    lengths = lengths_of_last_runs(conn, dag_id, alert.max_runs)
    return now + sum(lengths, timedelta()) / len(lengths) if len(lengths) >= max(alert.min_runs, 1) else None


def lengths_of_last_runs(conn: Connection, dag_id: str, limit: int) -> list[timedelta]:
    """Return the durations of a DAG's last ended runs, the newest first."""
    query = (
        sa.select(dag_run.c.started_at, dag_run.c.ended_at)
        .where(dag_run.c.dag_id == dag_id, dag_run.c.started_at.is_not(None), dag_run.c.ended_at.is_not(None))
        .order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
        .limit(limit)
    )
    return [ended_at - started_at for started_at, ended_at in conn.execute(query)]


def list_deadlines(conn: Connection, dag_run_id: int) -> list[DeadlineRow]:
    """Return the deadlines of a run, in the order in which its DAG has them."""
    query: sa.Select[Any] = (
        sa.select(*(column for column in deadline.c if column.name != "state"), STATE.label("state"))
        .join(dag_run, dag_run.c.id == deadline.c.dag_run_id)
        .where(deadline.c.dag_run_id == dag_run_id)
        .order_by(deadline.c.number)
    )
    return fetch(conn, DeadlineRow, query)


def missed_deadlines(conn: Connection) -> list[MissedDeadline]:
    """Return every missed deadline, the earliest first."""
    query = (
        sa.select(dag_run.c.dag_id, dag_run.c.run_id, deadline.c.name, deadline.c.due_at)
        .join(dag_run, dag_run.c.id == deadline.c.dag_run_id)
        .where(deadline.c.state == "missed")
        .order_by(deadline.c.due_at, dag_run.c.dag_id, dag_run.c.run_id, deadline.c.number)
    )
    return fetch(conn, MissedDeadline, query)


def next_deadline_at(conn: Connection, epoch: int) -> datetime | None:
    """Return when the next pending deadline is due, without those of runs under other epochs; None without one."""
    due_at: datetime | None = conn.scalar(_NEXT, {"epoch": epoch})
    return due_at


def decide_due_deadlines(conn: Connection, epoch: int, now: datetime, limit: int) -> tuple[int, list[MissedDeadline]]:
    """Decide up to `limit` of the earliest due deadlines, without those that another scheduler is deciding.

    Returns how many were decided, and the missed ones, which request their callbacks. A run that had succeeded by then
    meets the deadline; one that has failed, or has not ended, misses it, as in Apache Airflow.
    """
    missed = []
    due = conn.execute(_DUE, {"epoch": epoch, "now": now, "limit": limit}).all()
    for row in due:
        conn.execute(_DECIDE, {"key": row.id, "new_state": "met" if row.is_met else "missed"})
        if not row.is_met:
            missed.append(MissedDeadline(row.dag_id, row.run_id, row.name, row.due_at))
            _request_callback(conn, row.dag_run_id, row.number, missed[-1], now)
    return len(due), missed


def _request_callback(conn: Connection, dag_run_id: int, number: int, miss: MissedDeadline, now: datetime) -> None:
    name = f" {miss.name!r}" if miss.name else ""
    reason = f"the deadline{name} of {miss.due_at.isoformat()} was missed"
    request = CallbackRequest(dag_run_id=dag_run_id, try_number=number, event=MISS_EVENT, reason=reason, created_at=now)
    conn.execute(callback_request.insert(), as_new(request))
