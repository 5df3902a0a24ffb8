"""The next runs of schedules that do not exist yet: of many DAGs together, with few queries however many they are."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound
from asynsched.scheduling.creation.planning import next_run
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunType
from asynsched.store.dags.dags import get_plans
from asynsched.store.runs.dag_runs import WantedRun, run_id_of, runs_made
from asynsched.timetables import CustomTimetable, DagRunInfo, DataInterval, KnownTimetable, decode

FEW_LEFT = 10
"""With fewer planned runs than this left, an author's own timetable is asked for more."""
NEXT_LOOK = timedelta(seconds=1)
"""When a DAG is looked at again whose next run cannot be told apart from its last one yet."""
MAX_EXISTING = 10_000
"""Runs made by hand ahead of the schedule that are looked past."""
Failure = DagError | NotFound
"""Why the schedule of a DAG cannot be computed: the business of that DAG alone, so that it is no exception of all."""


class Schedule(NamedTuple):
    """What the runs of a DAG follow from."""

    dag: SerializedDag
    timetable: KnownTimetable

    def runs_low(self, info: DagRunInfo) -> bool:
        """Whether few runs after this one are planned, by a timetable that must be asked for them."""
        timetable = self.timetable
        return isinstance(timetable, CustomTimetable) and timetable.n_left(info.data_interval) < FEW_LEFT


def schedules_of(conn: Connection, dags: Mapping[str, SerializedDag]) -> dict[str, Schedule]:
    """Return the schedules of DAGs by dag_id; authors' own timetables with the runs that they gave ahead of time."""
    found = {dag_id: Schedule(dag, decode(dag.timetable)) for dag_id, dag in dags.items()}
    own = {dag_id: each.timetable for dag_id, each in found.items() if isinstance(each.timetable, CustomTimetable)}
    plans = get_plans(conn, sorted(own))
    planned = {dag_id: timetable.planned(plans.get(dag_id)) for dag_id, timetable in own.items()}
    return found | {dag_id: found[dag_id]._replace(timetable=timetable) for dag_id, timetable in planned.items()}


def scheduled_run_id(logical_date: datetime) -> str:
    """Return the run_id of a scheduled run, as Airflow makes it."""
    return run_id_of(DagRunType.SCHEDULED, logical_date)


def free_runs(
    conn: Connection, wanted: Mapping[str, tuple[Schedule, DataInterval | None]], now: datetime
) -> dict[str, DagRunInfo | Failure | None]:
    """Return the next run of each DAG that does not exist; None: there is none.

    One query tells which of them exist. Only the DAGs that have such a run are looked at once more.

    Args:
        wanted: The schedule of each DAG, and the data interval that its run is to follow.
        now: The present moment.
    """
    found: dict[str, DagRunInfo | Failure | None] = {}
    left = dict(wanted)
    for _ in range(MAX_EXISTING):
        following = {dag_id: _next(schedule, last, now) for dag_id, (schedule, last) in left.items()}
        existing = _existing(conn, following)
        found |= {dag_id: info for dag_id, info in following.items() if dag_id not in existing}
        again: dict[str, tuple[Schedule, DataInterval | None]] = {}
        for dag_id, info in existing.items():
            schedule, last = left[dag_id]
            if info.data_interval == last:
                # Runs follow one another without a pause, and no time has passed since the last one was made.
                found[dag_id] = info._replace(run_after=now + NEXT_LOOK)
            else:
                again[dag_id] = schedule, info.data_interval
        left = again
        if not left:
            break
    return found | dict.fromkeys(left)


def _next(schedule: Schedule, last: DataInterval | None, now: datetime) -> DagRunInfo | Failure | None:
    try:
        return next_run(schedule.dag, last=last, now=now, timetable=schedule.timetable)
    except (DagError, NotFound) as exc:
        return exc


def _existing(conn: Connection, found: Mapping[str, DagRunInfo | Failure | None]) -> dict[str, DagRunInfo]:
    """Return those of the runs that exist already."""
    runs = {dag_id: info for dag_id, info in found.items() if isinstance(info, DagRunInfo)}
    wanted = [
        WantedRun(dag_id, scheduled_run_id(info.logical_date), info.logical_date) for dag_id, info in runs.items()
    ]
    return {run.dag_id: runs[run.dag_id] for run in runs_made(conn, wanted)}
