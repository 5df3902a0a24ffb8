"""Whether the next runs of DAGs are due, and their creation: one transaction, so that none is made twice or missed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound, PlanNeeded
from asynsched.scheduling.rules.asset_condition import evaluate
from asynsched.serialization.decode import decode_dag, restriction
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, DagRunType
from asynsched.store.assets.events import (
    ArrivedAsset,
    PendingEvent,
    arrived_assets,
    consume,
    drop_surplus,
    mark_examined,
    pending_events,
)
from asynsched.store.dags.dags import DagRow, find_dag, get_dags, get_plans, set_next_dagruns
from asynsched.store.dags.versions import get_version, serialized_versions
from asynsched.store.runs.dag_runs import (
    WantedRun,
    count_active_runs,
    get_run,
    insert_run,
    insert_runs,
    last_scheduled_interval,
    last_scheduled_intervals,
    run_id_of,
    run_of_schedule,
    runs_made,
)
from asynsched.store.schema import DagRunRow
from asynsched.timetables import CustomTimetable, DagRunInfo, DataInterval, KnownTimetable, decode
from asynsched.timetables.asset_condition import AssetCondition


def next_run(
    dag: SerializedDag, *, last: DataInterval | None, now: datetime, timetable: KnownTimetable | None = None
) -> DagRunInfo | None:
    """Return the run that follows `last`, due or not; None when there is none.

    Raises:
        TimetableError: The schedule has no future match, is invalid, or leads out of the calendar.
    """
    return (timetable or decode(dag.timetable)).next_run(last, restriction(dag), now)


def upcoming_runs(
    dag: SerializedDag,
    *,
    last: DataInterval | None,
    now: datetime,
    n: int,
    timetable: KnownTimetable | None = None,
) -> list[DagRunInfo]:
    """Return the next `n` runs at most, were the clock to stand still at `now`. Raises TimetableError."""
    return list(islice(_runs(dag, last, now, timetable or decode(dag.timetable)), n))


def _runs(
    dag: SerializedDag, last: DataInterval | None, now: datetime, timetable: KnownTimetable
) -> Iterator[DagRunInfo]:
    while (info := next_run(dag, last=last, now=now, timetable=timetable)) is not None:
        yield info
        last = info.data_interval


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


_Waiting = Sequence[ArrivedAsset] | Sequence[PendingEvent]
MAX_NAMED = 5
"""Assets that a run's reason names."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """What the events that wait for a DAG have come to.

    Attributes:
        created: run_id of the run that they have triggered.
        is_held_back: They are enough for a run, but `max_active_runs` are active.
        waits_for: What is missing for a run, for a person; empty if nothing is.
    """

    created: str | None = None
    is_held_back: bool = False
    waits_for: str = ""


def trigger_by_assets(conn: Connection, dag: DagRow, condition: AssetCondition | None, now: datetime) -> Triggered:
    """Create a run of a DAG if the events that it waits for have arrived.

    Args:
        condition: What it waits for; None when it waits for no asset.
    """
    if condition is None:
        return Triggered()
    # However many events there are, it is their assets that decide.
    arrived = arrived_assets(conn, dag.dag_id)
    found = _judged(conn, dag, condition, arrived)
    if found.created is not None:
        pending = pending_events(conn, dag.dag_id)
        # Others may have consumed some of them in the meantime.
        found = _judged(conn, dag, condition, pending)
    if found.created is None:
        drop_surplus(conn, dag.dag_id, arrived)
        if arrived and not found.is_held_back:
            mark_examined(conn, dag.dag_id)
        return found
    run_after = _newest(pending)
    row_id = insert_run(
        conn,
        DagRunRow(
            dag_id=dag.dag_id,
            run_id=found.created,
            run_type=DagRunType.ASSET_TRIGGERED,
            state=DagRunState.QUEUED,
            run_after=run_after,
            queued_at=now,
            reason=_reason(pending),
        ),
    )
    consume(conn, row_id, dag.dag_id, pending)
    return found


def foresee_assets(conn: Connection, dag: DagRow, condition: AssetCondition | None) -> Triggered:
    """Return what `trigger_by_assets` would do now. Nothing is written."""
    return Triggered() if condition is None else _judged(conn, dag, condition, arrived_assets(conn, dag.dag_id))


def _judged(conn: Connection, dag: DagRow, condition: AssetCondition, waiting: _Waiting) -> Triggered:
    verdict = evaluate(condition, [item.asset for item in waiting])
    if dag.is_paused or not verdict.met:
        return Triggered(waits_for=verdict.reason)
    if count_active_runs(conn, [dag.dag_id], dag.max_active_runs)[dag.dag_id] >= dag.max_active_runs:
        return Triggered(is_held_back=True)
    return Triggered(created=_free_run_id(conn, dag.dag_id, _newest(waiting)))


def _newest(waiting: _Waiting) -> datetime:
    return max(item.created_at for item in waiting)


def _free_run_id(conn: Connection, dag_id: str, run_after: datetime) -> str:
    """Return a run_id after the time of the newest event; events of the same moment may have triggered a run before."""
    plain = run_id = f"{DagRunType.ASSET_TRIGGERED}__{run_after.isoformat()}"
    number = 1
    while get_run(conn, dag_id, run_id) is not None:
        number += 1
        run_id = f"{plain}_{number}"
    return run_id


def _reason(pending: list[PendingEvent]) -> str:
    names = list(dict.fromkeys(event.asset.name for event in pending))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"assets were updated: {', '.join(names[:MAX_NAMED])}{more}"


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


def _new_run(dag_id: str, info: DagRunInfo, now: datetime) -> DagRunRow:
    return run_of_schedule(dag_id, DagRunType.SCHEDULED, info, queued_at=now, reason="its schedule was due")
