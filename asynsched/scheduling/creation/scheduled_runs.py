"""Runs by schedules and by events of assets: which are due, which come next, and their creation.

`examine_dags` creates the due runs in one transaction, so that no run is created twice or missed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound, PlanNeeded, TimetableError
from asynsched.scheduling.rules import partitions
from asynsched.scheduling.rules.assets import evaluate
from asynsched.serialization.decode import decode_dag, restriction
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, DagRunType
from asynsched.store import assets
from asynsched.store.audit import record_audit
from asynsched.store.dags.dags import (
    DagRow,
    find_dag,
    get_dags,
    get_plans,
    get_version,
    serialized_versions,
    set_next_dagruns,
)
from asynsched.store.runs import dag_runs
from asynsched.store.schema import DagRunRow
from asynsched.timetables import (
    CronPartitionTimetable,
    CustomTimetable,
    DagRunInfo,
    DataInterval,
    KnownTimetable,
    decode,
)
from asynsched.timetables.asset_condition import AssetCondition
from asynsched.timetables.partitions import Partitioning, read_partitioning

FEW_LEFT = 10
"""With fewer planned runs than this left, a custom timetable is asked for more."""
NEXT_LOOK = timedelta(seconds=1)
"""When to examine a DAG again whose next run cannot be distinguished from its last one yet."""
ONE_BY_ONE = 10
"""How many runs created ahead of the schedule are passed over by a query each."""
MAX_EXISTING = 100_000
"""How many are passed over at most."""
MOMENT = timedelta(microseconds=1)
MANY_DATES = 1_000
"""How many dates of runs created ahead of the schedule are read at once."""
MAX_PARTITIONS = 200
"""How many runs of partitions one transaction creates for a DAG."""
MAX_NAMED = 5
"""How many assets a run's reason names."""
Failure = DagError | NotFound
"""Why the schedule of a DAG cannot be computed. A value, not raised: it must not stop the examination of other DAGs."""
_Waiting = Sequence[assets.ArrivedAsset] | Sequence[assets.PendingEvent]


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining a DAG.

    Attributes:
        created: run_id of the run that its schedule created.
        due_at: When the next one is due, if known.
        is_held_back: A run is due, or assets would trigger one, but `max_active_runs` are active.
        error: Why its schedule cannot be computed.
        triggered: run_id of the run that events of assets triggered.
        waits_for: The assets whose events such a run still needs, for a person.
        asks: The DAG's file, if its custom timetable must be asked for more runs, or its own mappers for keys.
        asks_about: The newest event of a partition with such a key, by its id.
        of_partitions: run_ids of the runs of partitions that events triggered.
        unmapped: Why events of partitions count for no run.
        has_more: More partitions are ready than one transaction creates runs for.
    """

    created: str | None = None
    due_at: datetime | None = None
    is_held_back: bool = False
    error: str = ""
    triggered: str | None = None
    waits_for: str = ""
    asks: str = ""
    asks_about: int = 0
    of_partitions: tuple[str, ...] = ()
    unmapped: tuple[str, ...] = ()
    has_more: bool = False

    @property
    def run_ids(self) -> list[str]:
        """All runs that were created."""
        return [run_id for run_id in (self.triggered, *self.of_partitions, self.created) if run_id is not None]

    def with_assets(self, other: "Examined") -> "Examined":
        """Return this result of the schedule, with the result of the assets."""
        found = replace(
            self, triggered=other.triggered, is_held_back=self.is_held_back or other.is_held_back,
            waits_for=other.waits_for, of_partitions=other.of_partitions, unmapped=other.unmapped,
            has_more=other.has_more,
        )  # fmt: skip
        return replace(found, asks=other.asks, asks_about=other.asks_about) if other.asks else found


def examine_dags(conn: Connection, dag_ids: Sequence[str], now: datetime) -> dict[str, Examined]:
    """Create the due runs of DAGs: those that assets triggered, and the next run of each schedule.

    The number of statements does not depend on the number of DAGs, apart from those that wait for assets.

    Args:
        dag_ids: In sorted order: another scheduler may examine the same DAGs at this moment.
    """
    examination = _Examination(conn, dag_ids, now)
    triggered = {
        dag_id: _trigger_by_assets(conn, examination.dags[dag_id], schedule.dag, now)
        for dag_id, schedule in examination.schedules.items()
    }
    examination.n_active.update(dag_id for dag_id, found in triggered.items() for _ in found.run_ids)
    scheduled = examination.create_due()
    set_next_dagruns(conn, examination.coming, examination.dags)
    nothing = Examined()
    return {dag_id: scheduled.get(dag_id, nothing).with_assets(triggered.get(dag_id, nothing)) for dag_id in dag_ids}


def foresee_dag(conn: Connection, dag_id: str, now: datetime) -> Examined:
    """Return the result that `examine_dags` would have now, without writing anything."""
    examination = _Examination(conn, [dag_id], now)
    scheduled = examination.judged().get(dag_id)
    if scheduled is None:
        return Examined()
    triggered = Examined()
    schedule = examination.schedules.get(dag_id)
    if schedule is not None and schedule.dag.partitions is not None:
        triggered = _foreseen_partitions(conn, examination.dags[dag_id], schedule.dag)
    elif schedule is not None and schedule.dag.asset_condition is not None:
        triggered = _judged(
            conn, examination.dags[dag_id], schedule.dag.asset_condition, assets.arrived_assets(conn, dag_id)
        )
    return scheduled.with_assets(triggered)


def coming_runs(conn: Connection, dag_id: str, now: datetime, *, at_most: int) -> list[DagRunInfo]:
    """Return the runs that a DAG's schedule would create if it were unpaused now: the due ones, and the next one.

    Raises:
        DagError: Its schedule cannot be computed; PlanNeeded: its custom timetable must be asked first.
        NotFound: There is no such DAG.
    """
    serialized = decode_dag(get_version(conn, find_dag(conn, dag_id).version_id or 0).serialized)
    schedule = _schedules_of(conn, {dag_id: serialized})[dag_id]
    found: list[DagRunInfo] = []
    if isinstance(decode(serialized.timetable), CronPartitionTimetable):
        last = dag_runs.last_run_of_partitions(conn, dag_id)
    else:
        last = dag_runs.last_scheduled_intervals(conn, [dag_id]).get(dag_id)
    while len(found) < at_most and (info := _free_runs(conn, {dag_id: (schedule, last)}, now)[dag_id]) is not None:
        if not isinstance(info, DagRunInfo):
            raise info
        found.append(info)
        if info.run_after > now:
            break
        last = info.data_interval
    return found


def runs_after(
    dag: SerializedDag, timetable: KnownTimetable, last: DataInterval | None, now: datetime
) -> Iterator[DagRunInfo]:
    """Yield the runs of a DAG after `last`, perhaps without an end, as if the clock stood at `now`.

    Raises:
        TimetableError: The schedule has no future match, is invalid, or leads out of the calendar.
        PlanNeeded: An author's own timetable must be asked first.
    """
    while (info := timetable.next_run(last, restriction(dag), now)) is not None:
        yield info
        last = info.data_interval


class _Schedule(NamedTuple):
    dag: SerializedDag
    timetable: KnownTimetable


class _Examination:
    """One examination of some DAGs, which reads and writes for all of them together.

    Attributes:
        dags: The active ones.
        schedules: Of the active ones whose version can be read.
        unreadable: Why the others cannot be read.
        last: The data interval of each DAG's newest scheduled run.
        n_active: How many runs of each are queued or running. Counting ends at the number that allows no more.
        coming: The run to be stored as the next one of each.
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
            serialized = versions.get(dag.version_id or 0)
            if serialized is None:  # it was replaced and deleted after the DAG was read
                self.unreadable[dag_id] = NotFound("DAG version", str(dag.version_id))
                continue
            try:
                readable[dag_id] = decode_dag(serialized)
            except (DagError, NotFound) as exc:
                self.unreadable[dag_id] = exc
        self.schedules = _schedules_of(conn, readable)
        self.last: dict[str, DataInterval | None] = {**dag_runs.last_scheduled_intervals(conn, dag_ids)}
        for dag_id, schedule in self.schedules.items():
            if isinstance(schedule.timetable, CronPartitionTimetable):
                self.last[dag_id] = dag_runs.last_run_of_partitions(conn, dag_id)
        largest = max((dag.max_active_runs for dag in self.dags.values()), default=0)
        self.n_active = Counter(dag_runs.count_active_runs(conn, dag_ids, largest))
        self.coming: dict[str, DagRunInfo | None] = {}

    def judged(self) -> dict[str, Examined]:
        """Note the run of each schedule that follows the existing ones, and return which of them are to be created."""
        wanted = {
            dag_id: (schedule, self.last.get(dag_id))
            for dag_id, schedule in self.schedules.items()
            if not (allowed := schedule.dag.allowed_run_types) or DagRunType.SCHEDULED in allowed
        }
        as_of = {dag_id: self._as_of(dag_id) for dag_id in wanted}
        without = dict.fromkeys(self.schedules.keys() - wanted.keys())
        following = self.unreadable | without | _free_runs(self.conn, wanted, self.now, as_of)
        return {dag_id: self._noted(dag_id, info, self._judged(dag_id, info)) for dag_id, info in following.items()}

    def _as_of(self, dag_id: str) -> datetime:
        """Return the instant at which a schedule is asked: when the announced run was due, if that was just now."""
        announced = self.dags[dag_id].next_dagrun_create_after
        ignored = self.schedules[dag_id].timetable.lateness_ignored(self.last.get(dag_id))
        return announced if announced is not None and timedelta() <= self.now - announced <= ignored else self.now

    def _judged(self, dag_id: str, info: DagRunInfo | Failure | None) -> Examined:
        dag = self.dags[dag_id]
        if not isinstance(info, DagRunInfo) or dag.is_paused:
            return Examined()
        if info.run_after > self.now:
            return Examined(due_at=info.run_after)
        limit = min(dag.max_active_runs, self.schedules[dag_id].timetable.active_runs_limit or dag.max_active_runs)
        if self.n_active[dag_id] >= limit:
            return Examined(is_held_back=True)
        return Examined(created=dag_runs.run_id_of_schedule(DagRunType.SCHEDULED, info))

    def create_due(self) -> dict[str, Examined]:
        """Create the next scheduled runs that are due, and note when the following ones are.

        A due run is computed again from the last run and the time, so that a scheduler that was away does not create
        the runs that `catchup=False` leaves out. A run that a user created for the same date replaces the
        scheduled one, as in Airflow.
        """
        examined = self.judged()
        due = {
            dag_id: info
            for dag_id, found in examined.items()
            if found.created is not None and (info := self.coming.pop(dag_id)) is not None
        }
        rows = [
            dag_runs.run_of_schedule(
                dag_id, DagRunType.SCHEDULED, info, queued_at=self.now, reason="its schedule was due"
            )
            for dag_id, info in sorted(due.items())
        ]
        made = dag_runs.insert_runs(self.conn, rows)
        for row in rows:
            if row.key not in made:
                made |= dag_runs.insert_under_free_id(self.conn, row)
        created = {key.dag_id: key.run_id for key in made}
        after = {dag_id: (self.schedules[dag_id], due[dag_id].data_interval) for dag_id in created}
        coming = _free_runs(self.conn, after, self.now)
        for dag_id, info in due.items():
            if dag_id in created:
                examined[dag_id] = self._after_creation(dag_id, created[dag_id], info, coming[dag_id])
            else:
                examined[dag_id] = Examined(due_at=self.now)  # it was created elsewhere at this moment: examine again
        return examined

    def _after_creation(
        self, dag_id: str, run_id: str, made: DagRunInfo, coming: DagRunInfo | Failure | None
    ) -> Examined:
        found = Examined(created=run_id)
        if isinstance(coming, DagRunInfo):
            found = replace(found, due_at=coming.run_after)
        timetable = self.schedules[dag_id].timetable
        runs_low = isinstance(timetable, CustomTimetable) and timetable.n_left(made.data_interval) < FEW_LEFT
        if runs_low and not isinstance(coming, Exception):
            found = replace(found, asks=self.dags[dag_id].file_path)
        return self._noted(dag_id, coming, found)

    def _noted(self, dag_id: str, coming: DagRunInfo | Failure | None, found: Examined) -> Examined:
        """Note a DAG's next run, and return the result with the failure to compute it, if any."""
        if isinstance(coming, PlanNeeded):
            return replace(found, asks=self.dags[dag_id].file_path)
        if isinstance(coming, Exception):
            self.coming[dag_id] = None
            return replace(found, error=str(coming))
        self.coming[dag_id] = coming
        return found


def _schedules_of(conn: Connection, dags: Mapping[str, SerializedDag]) -> dict[str, _Schedule]:
    """Return the schedules of DAGs by dag_id. Custom timetables come with the runs that they have planned ahead."""
    found = {dag_id: _Schedule(dag, decode(dag.timetable)) for dag_id, dag in dags.items()}
    own = {dag_id: each.timetable for dag_id, each in found.items() if isinstance(each.timetable, CustomTimetable)}
    plans = get_plans(conn, sorted(own))
    planned = {dag_id: timetable.planned(plans.get(dag_id)) for dag_id, timetable in own.items()}
    return found | {dag_id: found[dag_id]._replace(timetable=timetable) for dag_id, timetable in planned.items()}


def _free_runs(
    conn: Connection,
    wanted: Mapping[str, tuple[_Schedule, DataInterval | None]],
    now: datetime,
    as_of: Mapping[str, datetime] | None = None,
) -> dict[str, DagRunInfo | Failure | None]:
    """Return the next run of each DAG that does not exist yet; None if no run follows.

    One query finds the runs that exist; only the DAGs that have such a run need another.

    Args:
        wanted: For each DAG its schedule, and the data interval that the run is to follow.
        as_of: The instants at which the schedules are asked, where that is not `now`.
    """
    at = dict.fromkeys(wanted, now) | dict(as_of or {})
    found: dict[str, DagRunInfo | Failure | None] = {}
    left = dict(wanted)
    for _ in range(ONE_BY_ONE):
        following = {dag_id: _next(schedule, last, at[dag_id]) for dag_id, (schedule, last) in left.items()}
        existing = _existing(conn, following)
        found |= {dag_id: info for dag_id, info in following.items() if dag_id not in existing}
        again: dict[str, tuple[_Schedule, DataInterval | None]] = {}
        for dag_id, info in existing.items():
            schedule, last = left[dag_id]
            if info.data_interval == last:
                # Runs follow one another without a pause, and no time has passed since the last one was created.
                found[dag_id] = info._replace(run_after=now + NEXT_LOOK)
            else:
                again[dag_id] = schedule, info.data_interval
        left = again
        if not left:
            break
    return found | {dag_id: _first_free(conn, *following, at[dag_id]) for dag_id, following in left.items()}


def _first_free(
    conn: Connection, schedule: _Schedule, last: DataInterval | None, at: datetime
) -> DagRunInfo | Failure | None:
    """Return the next run of a DAG that has runs of many of its next dates already, such as those of a backfill."""
    made: frozenset[datetime] = frozenset()
    known_until: datetime | None = None
    for _ in range(MAX_EXISTING):
        info = _next(schedule, last, at)
        if not isinstance(info, DagRunInfo):
            return info
        date = info.logical_date
        if known_until is None or date > known_until:
            made = dag_runs.dates_after(conn, schedule.dag.dag_id, date - MOMENT, MANY_DATES)
            known_until = max(made) if len(made) == MANY_DATES else datetime.max.replace(tzinfo=UTC)
        if date not in made:
            return info
        last = info.data_interval
    return TimetableError(f"its next {MAX_EXISTING:,} dates have runs already")


def _next(schedule: _Schedule, last: DataInterval | None, now: datetime) -> DagRunInfo | Failure | None:
    try:
        return schedule.timetable.next_run(last, restriction(schedule.dag), now)
    except (DagError, NotFound) as exc:
        return exc


def _existing(conn: Connection, found: Mapping[str, DagRunInfo | Failure | None]) -> dict[str, DagRunInfo]:
    """Return the runs among these that exist already."""
    runs = {dag_id: info for dag_id, info in found.items() if isinstance(info, DagRunInfo)}
    wanted = [
        # A run of a schedule is known by its date, one of a partition by its name.
        dag_runs.WantedRun(
            dag_id,
            "" if info.partition_key is None else dag_runs.run_id_of_schedule(DagRunType.SCHEDULED, info),
            info.logical_date,
        )
        for dag_id, info in runs.items()
    ]
    return {run.dag_id: runs[run.dag_id] for run in dag_runs.runs_made(conn, wanted)}


def _trigger_by_assets(conn: Connection, dag: DagRow, serialized: SerializedDag, now: datetime) -> Examined:
    """Create a run of a DAG if the events that it waits for have arrived; with partitions, for each of them."""
    condition = serialized.asset_condition
    if condition is None:
        return Examined()
    assets.mark_examined(conn, dag.dag_id)
    if serialized.partitions is not None:
        return _trigger_by_partitions(conn, dag, serialized, now)
    # Only the assets that have events matter here, so the events themselves, maybe many, are not read yet.
    arrived = assets.arrived_assets(conn, dag.dag_id)
    found = _judged(conn, dag, condition, arrived)
    if found.triggered is not None:
        pending = assets.pending_events(conn, dag.dag_id)
        # Another scheduler may have consumed some of them meanwhile.
        found = _judged(conn, dag, condition, pending)
    if found.triggered is None:
        assets.drop_surplus(conn, dag.dag_id, arrived)
        if found.is_held_back:
            assets.mark_unexamined(conn, dag.dag_id)
        return found
    names = list(dict.fromkeys(event.asset.name for event in pending))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    run = DagRunRow(
        dag_id=dag.dag_id,
        run_id=found.triggered,
        run_type=DagRunType.ASSET_TRIGGERED,
        state=DagRunState.QUEUED,
        run_after=_newest(pending),
        queued_at=now,
        reason=f"assets were updated: {', '.join(names[:MAX_NAMED])}{more}",
    )
    assets.consume(conn, dag_runs.insert_run(conn, run), dag.dag_id, pending)
    return found


def _trigger_by_partitions(conn: Connection, dag: DagRow, serialized: SerializedDag, now: datetime) -> Examined:
    """Create the runs of the partitions whose events have arrived.

    As in Airflow, `max_active_runs` holds back none of them: each partition has a run of its own, which is queued.
    """
    partitioning, condition = _partitioning(conn, serialized), serialized.asset_condition
    assert condition is not None
    waiting = assets.partition_events(conn, dag.dag_id)
    found = partitions.map_events(partitioning, waiting)
    if found.mapped or found.unmapped:
        assets.map_events(conn, dag.dag_id, found.mapped, found.no_longer_unmapped)
        for reason in found.unmapped:
            record_audit(conn, at=now, actor="scheduler", action="partition.unmapped", dag_id=dag.dag_id,
                         detail={"reason": reason})  # fmt: skip
    if dag.is_paused:
        return Examined(unmapped=found.unmapped)
    judged = partitions.judge(partitioning, condition, found.events)
    unanswered = [*found.unanswered, *(event for one in judged if not one.is_answered for event in one.events)]
    asks_about = max((event.event_id for event in unanswered), default=0)
    ready = [one for one in judged if one.is_ready]
    created, number = [], 1
    for one in ready[:MAX_PARTITIONS]:
        run_id, number = dag_runs.free_run_id(conn, dag.dag_id, _name_by_assets(now), number)
        run = DagRunRow(
            dag_id=dag.dag_id, run_id=run_id, run_type=DagRunType.ASSET_TRIGGERED, state=DagRunState.QUEUED,
            run_after=now, queued_at=now, partition_key=one.key, partition_date=one.date,
            reason=f"the partition {one.key} of its assets was updated",
        )  # fmt: skip
        assets.consume(conn, dag_runs.insert_run(conn, run), dag.dag_id, one.events, partition_key=one.key)
        created.append(run_id)
    has_more = len(ready) > MAX_PARTITIONS
    if has_more or asks_about:
        assets.mark_unexamined(conn, dag.dag_id)
    if not has_more:
        still_waiting = [event for one in judged if not one.is_ready for event in one.events]
        still_waiting += found.unanswered
        assets.drop_surplus_partitions(conn, dag.dag_id, still_waiting)
    return Examined(
        of_partitions=tuple(created), unmapped=found.unmapped, has_more=has_more,
        asks=dag.file_path if asks_about else "", asks_about=asks_about,
    )  # fmt: skip


def _partitioning(conn: Connection, serialized: SerializedDag) -> Partitioning:
    """Return the mappers of a DAG; those of an author's own with what a parse has answered."""
    found = read_partitioning(serialized.partitions or {})
    if not found.needs_user_code:
        return found
    plan = get_plans(conn, [serialized.dag_id]).get(serialized.dag_id)
    return found.answered(() if plan is None else plan.partitions)


def _foreseen_partitions(conn: Connection, dag: DagRow, serialized: SerializedDag) -> Examined:
    """Return the runs that `_trigger_by_partitions` would create, or else the partitions that wait for events."""
    partitioning, condition = _partitioning(conn, serialized), serialized.asset_condition
    assert condition is not None
    found = partitions.map_events(partitioning, assets.partition_events(conn, dag.dag_id, is_read_only=True))
    judged = partitions.judge(partitioning, condition, found.events)
    ready = tuple(one.key for one in judged if one.is_ready)
    if ready and not dag.is_paused:
        return Examined(of_partitions=ready)
    return Examined(waits_for=partitions.waits_for(condition, judged))


def _name_by_assets(at: datetime) -> str:
    return dag_runs.run_id_of(DagRunType.ASSET_TRIGGERED, at)


def _judged(conn: Connection, dag: DagRow, condition: AssetCondition, waiting: _Waiting) -> Examined:
    verdict = evaluate(condition, [item.asset for item in waiting])
    if dag.is_paused or not verdict.met:
        return Examined(waits_for=verdict.reason)
    if dag_runs.count_active_runs(conn, [dag.dag_id], dag.max_active_runs)[dag.dag_id] >= dag.max_active_runs:
        return Examined(is_held_back=True)
    return Examined(triggered=dag_runs.free_run_id(conn, dag.dag_id, _name_by_assets(_newest(waiting)))[0])


def _newest(waiting: _Waiting) -> datetime:
    return max(item.created_at for item in waiting)
