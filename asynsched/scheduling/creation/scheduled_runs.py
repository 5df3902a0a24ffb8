"""Whether a DAG's next run is due, and its creation: one short transaction, so that no run is made twice or missed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.errors import AlreadyExists, DagError, NotFound, PlanNeeded
from asynsched.scheduling.creation.asset_runs import foresee_assets, trigger_by_assets
from asynsched.scheduling.creation.planning import next_run
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dag_runs import (
    NewRun,
    count_active_runs,
    insert_run,
    last_scheduled_intervals,
    run_is_made,
)
from asynsched.store.dag_versions import get_version, serialized_versions
from asynsched.store.dags import DagRow, find_dag, get_dag, get_dags, set_next_dagruns
from asynsched.store.timetable_plans import get_plan
from asynsched.timetables import CustomTimetable, DagRunInfo, DataInterval, KnownTimetable, decode

FEW_LEFT = 10
"""With fewer planned runs than this left, an author's own timetable is asked for more."""
NEXT_LOOK = timedelta(seconds=1)
"""When a DAG is looked at again whose next run cannot be told apart from its last one yet."""
MAX_EXISTING = 10_000
"""Runs made by hand ahead of the schedule that are looked past."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What the examination of a DAG found.

    Attributes:
        created: run_id of the run that was made.
        due_at: When the next one is due, if known.
        is_held_back: A run is due, or assets would trigger one, but `max_active_runs` are active.
        error: Why its schedule cannot be computed.
        triggered: run_id of the run that events of assets have triggered.
        waits_for: The assets whose events are missing for such a run, for a person.
        asks: The DAG's file, if its own timetable is to be asked for more runs.
    """

    created: str | None = None
    due_at: datetime | None = None
    is_held_back: bool = False
    error: str = ""
    triggered: str | None = None
    waits_for: str = ""
    asks: str = ""


def scheduled_run_id(logical_date: datetime) -> str:
    """Return the run_id of a scheduled run, as Airflow makes it."""
    return f"{DagRunType.SCHEDULED}__{logical_date.isoformat()}"


def examine_dags(conn: Connection, dag_ids: Sequence[str], now: datetime) -> dict[str, Examined]:
    """Create the runs of DAGs that are due: those that assets have triggered, and the next of each schedule."""
    dags = get_dags(conn, dag_ids)
    version_ids = sorted({dag.version_id for dag in dags.values() if dag.is_active and dag.version_id is not None})
    versions = serialized_versions(conn, version_ids) if version_ids else {}
    look = _Look(conn, dag_ids, now)
    found = {dag_id: _examine_one(look, dags.get(dag_id), versions) for dag_id in dag_ids}
    set_next_dagruns(conn, look.coming, dags)
    return found


class _Look:
    """One look at some DAGs: what is read, and written, for all of them together.

    Attributes:
        last: The data interval of each DAG's newest scheduled run.
        n_active: How many runs of each are queued or running.
        coming: What is to be stored as the next run of each.
    """

    def __init__(self, conn: Connection, dag_ids: Sequence[str], now: datetime) -> None:
        self.conn = conn
        self.now = now
        self.last = last_scheduled_intervals(conn, dag_ids)
        self.n_active = Counter(count_active_runs(conn, dag_ids))
        self.coming: dict[str, DagRunInfo | None] = {}


def _examine_one(look: _Look, dag: DagRow | None, versions: Mapping[int, bytes]) -> Examined:
    if dag is None or not dag.is_active or dag.version_id is None:
        return Examined()
    try:
        serialized = decode_dag(_version_of(dag.version_id, versions))
    except (DagError, NotFound) as exc:
        look.coming[dag.dag_id] = None
        return Examined(error=str(exc))
    triggered = trigger_by_assets(look.conn, dag, serialized.asset_condition, look.now)
    look.n_active[dag.dag_id] += triggered.created is not None
    found = _examine_schedule(look, dag, serialized)
    is_held_back = found.is_held_back or triggered.is_held_back
    return replace(found, triggered=triggered.created, is_held_back=is_held_back, waits_for=triggered.waits_for)


def _version_of(version_id: int, versions: Mapping[int, bytes]) -> bytes:
    """Return a version; raise NotFound for one that was replaced and deleted after its DAG was read."""
    if version_id not in versions:
        raise NotFound("DAG version", str(version_id))
    return versions[version_id]


def foresee_dag(conn: Connection, dag_id: str, now: datetime) -> Examined:
    """Return what `examine_dags` would find and create now. Nothing is written."""
    dag = get_dag(conn, dag_id)
    if dag is None or not dag.is_active or dag.version_id is None:
        return Examined()
    try:
        serialized = decode_dag(get_version(conn, dag.version_id).serialized)
    except (DagError, NotFound) as exc:
        return Examined(error=str(exc))
    triggered = foresee_assets(conn, dag, serialized.asset_condition)
    found = _foresee_schedule(conn, dag, serialized, now)
    is_held_back = found.is_held_back or triggered.is_held_back
    return replace(found, triggered=triggered.created, is_held_back=is_held_back, waits_for=triggered.waits_for)


def _foresee_schedule(conn: Connection, dag: DagRow, serialized: SerializedDag, now: datetime) -> Examined:
    try:
        following = _Schedule(_Look(conn, [dag.dag_id], now), serialized).following(dag)
    except PlanNeeded:
        return Examined(asks=dag.file_path)
    except (DagError, NotFound) as exc:
        return Examined(error=str(exc))
    created = None
    if following.may_be_made and following.info is not None:
        created = scheduled_run_id(following.info.logical_date)
    return Examined(created=created, due_at=following.due_at, is_held_back=following.is_held_back)


def _examine_schedule(look: _Look, dag: DagRow, serialized: SerializedDag) -> Examined:
    """Create a DAG's next scheduled run if it is due, and note when the one after that is.

    A run that has become due is computed anew from the last one and the time, so that a scheduler that was away does
    not make up for what `catchup=False` says to leave out. A run that somebody has made by hand for the same date takes
    the place of the scheduled one, as in Airflow.
    """
    dag_id, created = dag.dag_id, None
    try:
        schedule = _Schedule(look, serialized)
        info, due_at, is_held_back, may_be_made = schedule.following(dag)
        if info is None or not may_be_made:
            look.coming[dag_id] = info
            return Examined(due_at=due_at, is_held_back=is_held_back)
        created = _create(look, dag_id, info)
        following = schedule.after(info.data_interval)
    except PlanNeeded:
        return Examined(created=created, asks=dag.file_path)
    except (DagError, NotFound) as exc:
        look.coming[dag_id] = None
        return Examined(created=created, error=str(exc))
    except AlreadyExists:
        return Examined(due_at=look.now)  # made by somebody else at this very moment: look again
    look.coming[dag_id] = following
    due_at = following.run_after if following else None
    return Examined(created=created, due_at=due_at, asks=dag.file_path if schedule.runs_low(info) else "")


def timetable_of(conn: Connection, dag: SerializedDag) -> KnownTimetable:
    """Return a DAG's timetable; an author's own one with the runs that it gave ahead of time."""
    timetable = decode(dag.timetable)
    return timetable.planned(get_plan(conn, dag.dag_id)) if isinstance(timetable, CustomTimetable) else timetable


def coming_runs(conn: Connection, dag_id: str, now: datetime, *, at_most: int) -> list[DagRunInfo]:
    """Return the runs that a DAG's schedule would create were it unpaused now: those that are due, and the next one.

    Raises:
        DagError: Its schedule cannot be computed; PlanNeeded: its own timetable must be asked first.
        NotFound: There is no such DAG.
    """
    serialized = decode_dag(get_version(conn, find_dag(conn, dag_id).version_id or 0).serialized)
    look = _Look(conn, [dag_id], now)
    schedule = _Schedule(look, serialized)
    found: list[DagRunInfo] = []
    last = look.last.get(dag_id)
    while len(found) < at_most and (info := schedule.after(last)) is not None:
        found.append(info)
        if info.run_after > now:
            break
        last = info.data_interval
    return found


class _Following(NamedTuple):
    """The next run of a schedule; when it is due, where it is not yet; whether it is due, and then what of it."""

    info: DagRunInfo | None
    due_at: datetime | None = None
    is_held_back: bool = False
    may_be_made: bool = False


class _Schedule:
    """The runs of one DAG, those left out that exist already."""

    def __init__(self, look: _Look, dag: SerializedDag) -> None:
        self._look = look
        self._now = look.now
        self._dag = dag
        self.timetable = timetable_of(look.conn, dag)

    def following(self, dag: DagRow) -> _Following:
        """Return the run that comes after those that there are."""
        info = self.after(self._look.last.get(dag.dag_id))
        if info is None or dag.is_paused:
            return _Following(info)
        if info.run_after > self._now:
            return _Following(info, due_at=info.run_after)
        limit = min(dag.max_active_runs, self.timetable.active_runs_limit or dag.max_active_runs)
        is_held_back = self._look.n_active[dag.dag_id] >= limit
        return _Following(info, is_held_back=is_held_back, may_be_made=not is_held_back)

    def after(self, last: DataInterval | None) -> DagRunInfo | None:
        """Return the next run that does not exist; None when there is none."""
        for _ in range(MAX_EXISTING):
            info = next_run(self._dag, last=last, now=self._now, timetable=self.timetable)
            if info is None or not self._exists(info):
                return info
            if info.data_interval == last:
                # Runs follow one another without a pause, and no time has passed since the last one was made.
                return info._replace(run_after=self._now + NEXT_LOOK)
            last = info.data_interval
        return None

    def runs_low(self, info: DagRunInfo) -> bool:
        """Whether few runs after this one are planned, by a timetable that must be asked for them."""
        timetable = self.timetable
        return isinstance(timetable, CustomTimetable) and timetable.n_left(info.data_interval) < FEW_LEFT

    def _exists(self, info: DagRunInfo) -> bool:
        return run_is_made(self._look.conn, self._dag.dag_id, scheduled_run_id(info.logical_date), info.logical_date)


def _create(look: _Look, dag_id: str, info: DagRunInfo) -> str:
    run_id = scheduled_run_id(info.logical_date)
    insert_run(
        look.conn,
        NewRun(
            dag_id=dag_id,
            run_id=run_id,
            run_type=DagRunType.SCHEDULED,
            state=DagRunState.QUEUED,
            logical_date=info.logical_date,
            data_interval_start=info.data_interval.start,
            data_interval_end=info.data_interval.end,
            run_after=info.run_after,
            queued_at=look.now,
            reason="its schedule was due",
        ),
    )
    return run_id
