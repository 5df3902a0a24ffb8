"""Whether a DAG's next run is due, and its creation: one short transaction, so that no run is made twice or missed."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from asynsched.errors import TimetableError
from asynsched.scheduling.planning import next_run
from asynsched.serialization.decode import decode_dag
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dag_runs import NewRun, count_active_runs, insert_run, last_scheduled_interval
from asynsched.store.dag_versions import get_version
from asynsched.store.dags import get_dag, set_next_dagrun
from asynsched.timetables import DagRunInfo, decode


@dataclass(frozen=True, slots=True)
class Examined:
    """What the examination of a DAG found.

    Attributes:
        created: run_id of the run that was made.
        due_at: When the next one is due, if known.
        is_held_back: A run is due, but `max_active_runs` are active.
        error: Why its schedule cannot be computed.
    """

    created: str | None = None
    due_at: datetime | None = None
    is_held_back: bool = False
    error: str = ""


def scheduled_run_id(logical_date: datetime) -> str:
    """Return the run_id of a scheduled run, as Airflow makes it."""
    return f"{DagRunType.SCHEDULED}__{logical_date.isoformat()}"


def examine_dag(conn: Connection, dag_id: str, now: datetime) -> Examined:
    """Create a DAG's next run if it is due, and store when the one after that is.

    A run that has become due is computed anew from the last one and the time, so that a scheduler that was away does
    not make up for what `catchup=False` says to leave out.
    """
    dag = get_dag(conn, dag_id)
    if dag is None or not dag.is_active or dag.version_id is None:
        return Examined()
    serialized = decode_dag(get_version(conn, dag.version_id).serialized)
    try:
        timetable = decode(serialized.timetable)
        last = last_scheduled_interval(conn, dag_id)
        info = next_run(serialized, last=last, now=now, timetable=timetable)
        if info is None or info.run_after > now or dag.is_paused:
            set_next_dagrun(conn, dag_id, info)
            return Examined(due_at=info.run_after if info is not None and not dag.is_paused else None)
        limit = min(dag.max_active_runs, timetable.active_runs_limit or dag.max_active_runs)
        if count_active_runs(conn, [dag_id]).get(dag_id, 0) >= limit:
            set_next_dagrun(conn, dag_id, info)
            return Examined(is_held_back=True)
        created = _create(conn, dag_id, info, now)
        following = next_run(serialized, last=info.data_interval, now=now, timetable=timetable)
    except TimetableError as exc:
        set_next_dagrun(conn, dag_id, None)
        return Examined(error=str(exc))
    set_next_dagrun(conn, dag_id, following)
    return Examined(created=created, due_at=following.run_after if following else None)


def _create(conn: Connection, dag_id: str, info: DagRunInfo, now: datetime) -> str:
    run_id = scheduled_run_id(info.logical_date)
    insert_run(
        conn,
        NewRun(
            dag_id=dag_id,
            run_id=run_id,
            run_type=DagRunType.SCHEDULED,
            state=DagRunState.QUEUED,
            logical_date=info.logical_date,
            data_interval_start=info.data_interval.start,
            data_interval_end=info.data_interval.end,
            run_after=info.run_after,
            queued_at=now,
            reason="its schedule was due",
        ),
    )
    return run_id
