"""Backfills: runs for the dates of a past span, created all at once and independent of the schedule.

Source: Apache Airflow's `models/backfill.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import AlreadyExists, DagError, PlanNeeded
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import check_allowed, validate_conf
from asynsched.scheduling.requests.run_requests import run_again, submit_request
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag, TimetableQuestion
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType
from asynsched.store.dags.dags import find_dag, get_version
from asynsched.store.runs import backfills as stored
from asynsched.store.runs.dag_runs import (
    insert_runs,
    insert_under_free_id,
    run_of_date,
    run_of_schedule,
    runs_of_partitions,
)
from asynsched.store.runs.requests import CancelRun
from asynsched.store.runs.row_locks import lock_runs
from asynsched.store.schema import DagRunRow, DagVersionRow, dag_run
from asynsched.timetables import (
    CronPartitionTimetable,
    CustomTimetable,
    DagRunInfo,
    PlannedInterval,
    TimeRestriction,
    TimetablePlan,
    decode,
)
from asynsched.timetables.zones import as_zone, in_zone

MAX_RUNS = 10_000
"""Most runs of one backfill: one transaction creates them."""
_TOO_MANY = f"The backfill would have more than {MAX_RUNS} runs: choose a shorter span."
IN_FLIGHT, EXISTS = "in flight", "already exists"
"""Why a date gets no run, as Airflow says it."""
# A run of the schedule stays one, unlike in Airflow: the schedule goes on after its newest run.
_TAKE_OVER = (
    sa.update(dag_run)
    .where(dag_run.c.id == sa.bindparam("key"))
    .values(
        run_type=sa.case((dag_run.c.run_type == DagRunType.SCHEDULED, dag_run.c.run_type), else_=DagRunType.BACKFILL),
        backfill_id=sa.bindparam("backfill"),
    )
)


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """A request for a backfill.

    Attributes:
        from_date: The first logical date, or the start of the first interval.
        to_date: The last one.
        reprocess: Which existing runs run again: none, those that have failed, or all that have ended.
        is_reverse: Whether the newest date comes first.
        max_active_runs: How many of its runs are active at once; they do not count against the DAG's limit.
        conf: The conf of every run; validated against the DAG's params.
        keeps_version: Whether an existing run keeps the version of its DAG; otherwise it moves to the newest one.
        zone: Where the wall-clock times of both dates are read for partitions, which begin at these times in the
            timezone of their timetable.
    """

    dag_id: str
    from_date: datetime
    to_date: datetime
    reprocess: stored.Reprocess = "none"
    is_reverse: bool = False
    max_active_runs: int = 10
    conf: Mapping[str, Any] = field(default_factory=dict)
    keeps_version: bool = False
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class PlannedDate:
    """A date, or a partition, of a backfill: the run that it already has, and the reason if it gets none."""

    info: DagRunInfo
    existing: DagRunRow | None
    exception_reason: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """The runs that a version of a DAG has in the span of a plan.

    Attributes:
        answer: Of an author's own timetable, which gave the runs.
    """

    version_id: int
    infos: tuple[DagRunInfo, ...]
    answer: TimetablePlan | None = None


def question_of(plan: BackfillPlan) -> TimetableQuestion:
    """Return the question to an author's own timetable about the runs of a backfill."""
    return TimetableQuestion(n_runs=MAX_RUNS + 1, span=PlannedInterval(plan.from_date, plan.to_date))


def version_and_file(conn: Connection, dag_id: str) -> tuple[DagVersionRow, str]:
    """Return the version that a backfill of a DAG would run, and the DAG's file. Raises NotFound."""
    found = find_dag(conn, dag_id)
    return get_version(conn, found.version_id or 0), found.file_path


def compute_span(
    version: DagVersionRow, plan: BackfillPlan, now: datetime, answer: TimetablePlan | None = None
) -> Span:
    """Return the runs that a version has in the span of a plan. This takes seconds for 10,000 dates: for a thread.

    Args:
        answer: Of an author's own timetable.

    Raises:
        DagError: The DAG cannot be backfilled, or not with this plan.
        PlanNeeded: An author's own timetable must be asked first: see `question_of`.
    """
    serialized = decode_dag(version.serialized)
    _check(serialized, plan, now)
    infos = tuple(_infos(serialized, plan, now, answer))
    if not infos:
        raise DagError(
            f"The schedule of the DAG {plan.dag_id!r} has no run from {plan.from_date.isoformat()} to"
            f" {plan.to_date.isoformat()} whose data interval is over."
        )
    return Span(version.id, infos, answer)


def plan_dates(conn: Connection, plan: BackfillPlan, now: datetime, span: Span | None) -> list[PlannedDate]:
    """Return the dates of a backfill, in the order in which they would run.

    Args:
        span: That of the plan, computed before. If the DAG has another version by now, it is computed again, from the
            same answer of an author's own timetable.

    Raises:
        NotFound: There is no such DAG.
        DagError: The DAG cannot be backfilled, or not with this plan.
        PlanNeeded: There is no answer of an author's own timetable.
    """
    if span is None or span.version_id != find_dag(conn, plan.dag_id).version_id:
        version, _ = version_and_file(conn, plan.dag_id)
        span = compute_span(version, plan, now, None if span is None else span.answer)
    infos = span.infos
    of_partitions = _runs_of_partitions(conn, plan.dag_id, infos)
    dates = []
    for info in reversed(infos) if plan.is_reverse else infos:
        if info.partition_date is None:
            existing = run_of_date(conn, plan.dag_id, info.logical_date)
        else:
            existing = of_partitions.get(info.partition_date)
        dates.append(PlannedDate(info, existing, _exception(existing, plan.reprocess)))
    return dates


def create_backfill(
    conn: Connection, plan: BackfillPlan, *, actor: str, now: datetime, span: Span | None = None
) -> stored.BackfillProgress:
    """Store a backfill and its runs, queued. Raises the errors of `plan_dates`, too; `span` is as there.

    Raises:
        AlreadyExists: The DAG has a backfill that has not ended.
    """
    open_ones = [
        found for found in stored.list_backfills(conn, dag_id=plan.dag_id) if found.state in ("running", "paused")
    ]
    if open_ones:
        raise AlreadyExists(
            f"The DAG {plan.dag_id!r} already has a backfill, and may have only one at a time: wait until it has ended,"
            f" or run `asynsched backfill cancel {open_ones[0].id}`."
        )
    planned = plan_dates(conn, plan, now, span)
    # Lock all of them first, by row id: the loop below would lock them in the order of their dates.
    lock_runs(conn, [date.existing.id for date in planned if date.existing and date.exception_reason is None])
    backfill_id = stored.add_backfill(
        conn, dict(plan.conf), dag_id=plan.dag_id, from_date=plan.from_date, to_date=plan.to_date,
        reprocess=plan.reprocess, is_reverse=plan.is_reverse, max_active_runs=plan.max_active_runs, actor=actor,
        created_at=now,
    )  # fmt: skip
    dates: list[tuple[datetime, int | None, str | None]] = []
    for date in planned:
        run_row_id, reason = None, date.exception_reason
        if reason is None:
            run_row_id = _run_for(conn, plan, date, backfill_id, now)
            reason = EXISTS if run_row_id is None else None
        dates.append((date.info.logical_date, run_row_id, reason))
    stored.add_dates(conn, backfill_id, dates)
    return stored.get_backfill(conn, backfill_id)


def set_paused(conn: Connection, backfill_id: int, *, is_paused: bool) -> stored.BackfillProgress:
    """Pause a backfill, so that no further run starts, or resume it. Raises NotFound, and DagError if it has ended."""
    _open(conn, backfill_id)
    stored.pause_backfill(conn, backfill_id, is_paused=is_paused)
    return stored.get_backfill(conn, backfill_id)


def cancel_backfill(conn: Connection, backfill_id: int, *, actor: str, now: datetime) -> stored.BackfillProgress:
    """End a backfill: queued runs fail, active ones continue. Raises NotFound, and DagError if it has ended."""
    found = _open(conn, backfill_id)
    # Lock all of them first, by row id, so that none of them begins any more.
    lock_runs(conn, [date.dag_run_id for date in stored.list_dates(conn, backfill_id) if date.dag_run_id is not None])
    for date in stored.list_dates(conn, backfill_id):
        if date.state == DagRunState.QUEUED and date.run_id is not None:
            submit_request(conn, DagRunKey(found.dag_id, date.run_id), CancelRun(), actor=actor, now=now)
    stored.end_backfill(conn, backfill_id, now)
    return stored.get_backfill(conn, backfill_id)


def _open(conn: Connection, backfill_id: int) -> stored.BackfillProgress:
    found = stored.get_backfill(conn, backfill_id)
    if found.state in ("completed", "cancelled"):
        raise DagError(f"The backfill {backfill_id} is already {found.state}.")
    return found


def _check(dag: SerializedDag, plan: BackfillPlan, now: datetime) -> None:
    check_allowed(dag, DagRunType.BACKFILL)
    if not decode(dag.timetable).periodic:
        schedule = dag.schedule_summary or "None"
        raise DagError(
            f"The DAG {dag.dag_id!r} has the schedule {schedule}, which is not periodic: there is nothing to backfill."
        )
    if plan.from_date > plan.to_date:
        raise DagError(f"The span begins at {plan.from_date.isoformat()}, after its end {plan.to_date.isoformat()}.")
    if plan.from_date >= now:
        raise DagError(f"The span begins at {plan.from_date.isoformat()}, in the future: backfill only the past.")
    depending = sorted(task.task_id for task in dag.tasks if task.depends_on_past)
    if depending and plan.is_reverse:
        raise DagError(f"The tasks {', '.join(depending)} depend on the past: they cannot run in reverse.")
    if depending and plan.reprocess == "none":
        raise DagError(
            f"The tasks {', '.join(depending)} depend on the past: reprocess failed or completed runs as well, so that"
            " no date is left out."
        )
    validate_conf(dag, plan.conf)


def _infos(dag: SerializedDag, plan: BackfillPlan, now: datetime, answer: TimetablePlan | None) -> Iterator[DagRunInfo]:
    timetable, last = decode(dag.timetable), None
    if isinstance(timetable, CustomTimetable):
        yield from _planned(timetable, answer, now)
        return
    if isinstance(timetable, CronPartitionTimetable):
        yield from _partitions(timetable, plan, now)
        return
    restriction = TimeRestriction(plan.from_date, plan.to_date, catchup=True)
    for number in count():
        info = timetable.next_run(last, restriction, now)
        if info is None or info.data_interval.end >= now:
            return
        if number == MAX_RUNS:
            raise DagError(_TOO_MANY)
        yield info
        last = info.data_interval


def _planned(timetable: CustomTimetable, answer: TimetablePlan | None, now: datetime) -> Iterator[DagRunInfo]:
    if answer is None:
        raise PlanNeeded(timetable.name)
    if len(answer.runs) > MAX_RUNS:
        raise DagError(_TOO_MANY)
    yield from (run.value() for run in answer.runs if run.interval.end < now)


def _partitions(timetable: CronPartitionTimetable, plan: BackfillPlan, now: datetime) -> Iterator[DagRunInfo]:
    zone = as_zone(plan.zone)
    walls = (in_zone(date, zone).replace(tzinfo=None) for date in (plan.from_date, plan.to_date))
    for number, info in enumerate(takewhile(lambda info: info.run_after < now, timetable.partitions(*walls))):
        if number == MAX_RUNS:
            raise DagError(_TOO_MANY)
        yield info


def _runs_of_partitions(conn: Connection, dag_id: str, infos: Sequence[DagRunInfo]) -> dict[datetime, DagRunRow]:
    """Return the newest run of each partition by its date, which identifies it whatever the format of its key."""
    dates = [info.partition_date for info in infos if info.partition_date is not None]
    if not dates:
        return {}
    found = runs_of_partitions(conn, dag_id, dates[0], dates[-1])
    return {run.partition_date: run for run in found if run.partition_date is not None}


def _exception(existing: DagRunRow | None, reprocess: stored.Reprocess) -> str | None:
    if existing is None:
        return None
    if existing.state not in FINISHED_RUN_STATES:
        return IN_FLIGHT
    is_wanted = reprocess == "completed" or (reprocess == "failed" and existing.state == DagRunState.FAILED)
    return None if is_wanted else EXISTS


def _run_for(conn: Connection, plan: BackfillPlan, date: PlannedDate, backfill_id: int, now: datetime) -> int | None:
    """Return the row id of a date's run; None if it was created elsewhere at this moment."""
    if date.existing is not None:
        run_again(conn, DagRunKey(plan.dag_id, date.existing.run_id), now, latest=not plan.keeps_version)
        conn.execute(_TAKE_OVER, {"key": date.existing.id, "backfill": backfill_id})
        if plan.conf:
            conn.execute(sa.update(dag_run).where(dag_run.c.id == date.existing.id).values(conf=plan.conf))
        return date.existing.id
    run = run_of_schedule(
        plan.dag_id, DagRunType.BACKFILL, date.info, queued_at=now, reason="a backfill asked for it",
        conf=dict(plan.conf), backfill_id=backfill_id,
    )  # fmt: skip
    created = insert_runs(conn, [run]) or insert_under_free_id(conn, run)
    return next(iter(created.values()), None)
