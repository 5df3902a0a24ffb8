"""Whether the next runs of DAGs are due, and their creation: one transaction, so that none is made twice or missed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound, PlanNeeded
from asynsched.scheduling.creation.asset_runs import Triggered, foresee_assets, trigger_by_assets
from asynsched.scheduling.creation.free_runs import Failure, free_runs, scheduled_run_id, schedules_of
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunType
from asynsched.store.dags.dags import DagRow, find_dag, get_dags, set_next_dagruns
from asynsched.store.dags.versions import get_version, serialized_versions
from asynsched.store.runs.dag_runs import (
    NewRun,
    count_active_runs,
    insert_runs,
    last_scheduled_interval,
    last_scheduled_intervals,
)
from asynsched.timetables import DagRunInfo


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


def examine_dags(conn: Connection, dag_ids: Sequence[str], now: datetime) -> dict[str, Examined]:
    """Create the runs of DAGs that are due: those that assets have triggered, and the next of each schedule.

    Give the DAGs in their order: others may examine them at the same moment. What is done for all of them takes a
    number of statements that does not depend on theirs.
    """
    look = _Look(conn, dag_ids, now)
    triggered = {
        dag_id: trigger_by_assets(conn, look.dags[dag_id], schedule.dag.asset_condition, now)
        for dag_id, schedule in look.schedules.items()
    }
    look.n_active.update(dag_id for dag_id, found in triggered.items() if found.created is not None)
    scheduled = _create_due(look)
    set_next_dagruns(conn, look.coming, look.dags)
    return {
        dag_id: _together(scheduled.get(dag_id, Examined()), triggered.get(dag_id, Triggered())) for dag_id in dag_ids
    }


def foresee_dag(conn: Connection, dag_id: str, now: datetime) -> Examined:
    """Return what `examine_dags` would find and create now. Nothing is written."""
    look = _Look(conn, [dag_id], now)
    following = look.following().get(dag_id)
    if following is None:
        return Examined()
    triggered = Triggered()
    if dag_id in look.schedules:
        triggered = foresee_assets(conn, look.dags[dag_id], look.schedules[dag_id].dag.asset_condition)
    if not isinstance(following, _Following):
        return _together(_noted(look, dag_id, following, Examined()), triggered)
    created = None
    if following.may_be_made and following.info is not None:
        created = scheduled_run_id(following.info.logical_date)
    examined = Examined(created=created, due_at=following.due_at, is_held_back=following.is_held_back)
    return _together(examined, triggered)


def coming_runs(conn: Connection, dag_id: str, now: datetime, *, at_most: int) -> list[DagRunInfo]:
    """Return the runs that a DAG's schedule would create were it unpaused now: those that are due, and the next one.

    Raises:
        DagError: Its schedule cannot be computed; PlanNeeded: its own timetable must be asked first.
        NotFound: There is no such DAG.
    """
    serialized = decode_dag(get_version(conn, find_dag(conn, dag_id).version_id or 0).serialized)
    schedule = schedules_of(conn, {dag_id: serialized})[dag_id]
    found: list[DagRunInfo] = []
    last = last_scheduled_interval(conn, dag_id)
    while len(found) < at_most and (info := free_runs(conn, {dag_id: (schedule, last)}, now)[dag_id]) is not None:
        if not isinstance(info, DagRunInfo):
            raise info
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


class _Look:
    """One look at some DAGs: what is read, and written, for all of them together.

    Attributes:
        dags: Those of them that are active.
        schedules: Those of these that can be read.
        unreadable: Why the others cannot.
        last: The data interval of each DAG's newest scheduled run.
        n_active: How many runs of each are queued or running, counted up to where none may be made any more.
        coming: What is to be stored as the next run of each.
    """

    def __init__(self, conn: Connection, dag_ids: Sequence[str], now: datetime) -> None:
        self.conn = conn
        self.now = now
        known = get_dags(conn, dag_ids)
        self.dags = {
            dag_id: known[dag_id]
            for dag_id in dag_ids
            if dag_id in known and known[dag_id].is_active and known[dag_id].version_id is not None
        }
        versions = serialized_versions(conn, sorted({dag.version_id or 0 for dag in self.dags.values()}))
        self.unreadable: dict[str, Failure] = {}
        readable: dict[str, SerializedDag] = {}
        for dag_id, dag in self.dags.items():
            try:
                readable[dag_id] = decode_dag(_version_of(dag, versions))
            except (DagError, NotFound) as exc:
                self.unreadable[dag_id] = exc
        self.schedules = schedules_of(conn, readable)
        self.last = last_scheduled_intervals(conn, dag_ids)
        largest = max((dag.max_active_runs for dag in self.dags.values()), default=0)
        self.n_active = Counter(count_active_runs(conn, dag_ids, largest))
        self.coming: dict[str, DagRunInfo | None] = {}

    def following(self) -> dict[str, _Following | Failure]:
        """Return the run of each schedule that comes after those that there are."""
        wanted = {dag_id: (schedule, self.last.get(dag_id)) for dag_id, schedule in self.schedules.items()}
        found: dict[str, _Following | Failure] = dict(self.unreadable)
        for dag_id, info in free_runs(self.conn, wanted, self.now).items():
            found[dag_id] = info if isinstance(info, Exception) else self._judged(dag_id, info)
        return found

    def _judged(self, dag_id: str, info: DagRunInfo | None) -> _Following:
        dag, timetable = self.dags[dag_id], self.schedules[dag_id].timetable
        if info is None or dag.is_paused:
            return _Following(info)
        if info.run_after > self.now:
            return _Following(info, due_at=info.run_after)
        limit = min(dag.max_active_runs, timetable.active_runs_limit or dag.max_active_runs)
        is_held_back = self.n_active[dag_id] >= limit
        return _Following(info, is_held_back=is_held_back, may_be_made=not is_held_back)


def _version_of(dag: DagRow, versions: Mapping[int, bytes]) -> bytes:
    """Return a DAG's version; raise NotFound for one that was replaced and deleted after the DAG was read."""
    version_id = dag.version_id or 0
    if version_id not in versions:
        raise NotFound("DAG version", str(version_id))
    return versions[version_id]


def _create_due(look: _Look) -> dict[str, Examined]:
    """Create the next scheduled runs that are due, and note when the ones after them are.

    A run that has become due is computed anew from the last one and the time, so that a scheduler that was away does
    not make up for what `catchup=False` says to leave out. A run that somebody has made by hand for the same date takes
    the place of the scheduled one, as in Airflow.
    """
    following = look.following()
    due = {
        dag_id: found.info
        for dag_id, found in following.items()
        if isinstance(found, _Following) and found.may_be_made and found.info is not None
    }
    made = insert_runs(look.conn, [_new_run(dag_id, info, look.now) for dag_id, info in sorted(due.items())])
    created = {key.dag_id for key in made}
    after = {dag_id: (look.schedules[dag_id], due[dag_id].data_interval) for dag_id in created}
    coming = free_runs(look.conn, after, look.now)
    examined = {}
    for dag_id, found in following.items():
        if not isinstance(found, _Following):
            examined[dag_id] = _noted(look, dag_id, found, Examined())
        elif dag_id in created:
            examined[dag_id] = _after_creation(look, dag_id, due[dag_id], coming[dag_id])
        elif dag_id in due:
            examined[dag_id] = Examined(due_at=look.now)  # made by somebody else at this very moment: look again
        else:
            not_due = Examined(due_at=found.due_at, is_held_back=found.is_held_back)
            examined[dag_id] = _noted(look, dag_id, found.info, not_due)
    return examined


def _after_creation(look: _Look, dag_id: str, made: DagRunInfo, coming: DagRunInfo | Failure | None) -> Examined:
    found = Examined(created=scheduled_run_id(made.logical_date))
    if isinstance(coming, DagRunInfo):
        found = replace(found, due_at=coming.run_after)
    if not isinstance(coming, Exception) and look.schedules[dag_id].runs_low(made):
        found = replace(found, asks=look.dags[dag_id].file_path)
    return _noted(look, dag_id, coming, found)


def _noted(look: _Look, dag_id: str, coming: DagRunInfo | Failure | None, found: Examined) -> Examined:
    """Note which run of a DAG comes next, or that none can be told; return what was found, with that."""
    if isinstance(coming, PlanNeeded):
        return replace(found, asks=look.dags[dag_id].file_path)
    if isinstance(coming, Exception):
        look.coming[dag_id] = None
        return replace(found, error=str(coming))
    look.coming[dag_id] = coming
    return found


def _together(scheduled: Examined, triggered: Triggered) -> Examined:
    return replace(
        scheduled,
        triggered=triggered.created,
        is_held_back=scheduled.is_held_back or triggered.is_held_back,
        waits_for=triggered.waits_for,
    )


def _new_run(dag_id: str, info: DagRunInfo, now: datetime) -> NewRun:
    return NewRun.of_schedule(dag_id, DagRunType.SCHEDULED, info, queued_at=now, reason="its schedule was due")
