"""A span of time, simulated: from what is in the DAG files and the home, to everything that happens in it."""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import PlanNeeded, TimetableError
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.decode import decode_dag, restriction
from asynsched.serialization.schema import ParseReport, SerializedDag
from asynsched.settings import Settings
from asynsched.simulation.expectations import Expectations
from asynsched.simulation.folder import Ask, HomeState
from asynsched.simulation.pool_use import PoolUse, pool_uses
from asynsched.simulation.script import Assumption, ExpectedEnds, assumptions, mapped_over
from asynsched.simulation.simulation import Simulation
from asynsched.simulation.trace import RunTrace, read_trace
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.store.dags.dags import get_plan, list_dags, set_paused
from asynsched.store.dags.files import list_errors
from asynsched.store.dags.versions import get_version
from asynsched.store.runs.dag_runs import insert_run, run_of_schedule
from asynsched.store.runs.deadlines import MissedDeadline, missed_deadlines
from asynsched.store.runs.pools import pool_capacities, set_pool
from asynsched.store.runs.transitions import apply
from asynsched.timetables import (
    CustomTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    KnownTimetable,
    OnceTimetable,
    TimeRestriction,
    decode,
)
from asynsched.timetables.zones import wall_clock, zone_name, zone_named

MOMENT = timedelta(microseconds=1)
"""Runs that are looked past for the last one."""


def store_last_runs(
    conn: Connection, start: datetime, lease_epoch: int, known: Mapping[str, DataInterval]
) -> frozenset[int]:
    """Store each active DAG's last run that was due before `start`, as done. Returns their row ids.

    Args:
        known: The data interval of the last run that each DAG's schedule has made in the home: a DAG that runs once, as
            soon as it may, has done so if it has one.
    """
    stored = []
    for row in list_dags(conn):
        if row.version_id is None:
            continue
        dag = decode_dag(get_version(conn, row.version_id).serialized)
        timetable = decode(dag.timetable)
        is_planned = isinstance(timetable, CustomTimetable)
        try:
            info = _last_planned(conn, dag) if is_planned else last_run_before(dag, timetable, start)
        except TimetableError:
            continue  # the scheduler says so when it looks at the DAG
        last = known.get(dag.dag_id)
        if info is None and isinstance(timetable, OnceTimetable) and last is not None and last.end < start:
            info = DagRunInfo.interval(last.start, last.end)
        if info is not None:
            stored.append(_store(conn, dag, row.version_id, info, lease_epoch))
    return frozenset(stored)


def _last_planned(conn: Connection, dag: SerializedDag) -> DagRunInfo | None:
    """Return the run after which the plan of an author's own timetable begins: it has the runs of the span."""
    plan = get_plan(conn, dag.dag_id)
    return None if plan is None or plan.after is None else DagRunInfo.interval(plan.after.start, plan.after.end)


def last_run_before(dag: SerializedDag, timetable: KnownTimetable, start: datetime) -> DagRunInfo | None:
    """Return the last run of a DAG's schedule that is due before an instant, None when there is none."""
    now = start - MOMENT
    # A schedule that is over has had its last run too.
    limits = restriction(dag)._replace(latest=None)
    if not (limits.catchup and _counts_from_its_start(timetable)):
        # The newest run is given without those before it.
        limits = limits._replace(catchup=False)
    last = timetable.next_run(None, limits, now)
    # What runs at once when it is first looked at has not run yet.
    if last is None or last.run_after >= now:
        return None
    for _ in range(MOST_RUNS):
        following = timetable.next_run(last.data_interval, limits, now)
        if following is None or not last.run_after < following.run_after < now:
            break
        last = following
    return last


def _counts_from_its_start(timetable: KnownTimetable) -> bool:
    """Whether a run can only be found by way of all those before it."""
    return isinstance(timetable, DeltaTriggerTimetable | DeltaDataIntervalTimetable)


def _store(conn: Connection, dag: SerializedDag, version_id: int, info: DagRunInfo, lease_epoch: int) -> int:
    at = info.run_after
    new = run_of_schedule(dag.dag_id, DagRunType.SCHEDULED, info, queued_at=at)
    run = ActiveRun(
        id=insert_run(conn, new),
        key=DagRunKey(dag.dag_id, new.run_id),
        structure=compile_structure(dag),
        code=CodeVersion("", ""),
        version_id=version_id,
        run_type=new.run_type,
        run_after=at,
        queued_at=at,
        state=DagRunState.SUCCESS,
        reason="before the simulation",
        ended_at=at,  # not when it started: nobody knows how long it took, and averages are to leave it out
    )
    pending = PendingBatch("", lease_epoch)
    pending.runs[run.id] = run
    tasks = [
        ActiveTask(run, task, state=TaskInstanceState.SUCCESS, try_number=1, started_at=at, ended_at=at)
        for task in dag.tasks
    ]
    pending.tasks.update((id(task), task) for task in tasks)
    apply(conn, pending.batch())
    return run.id


DAY = timedelta(days=1)
MOST_RUNS = 20_000
"""Runs around one change that are looked at: one every fifteen seconds."""
LONGEST_EFFECT = timedelta(days=2)
"""For how long after a change runs are looked at."""
ALWAYS = TimeRestriction(earliest=None, latest=None, catchup=True)


class ClockChange(Struct, frozen=True):
    """What one change of the clock does to one DAG on one day.

    Attributes:
        date: The day, in the zone of the DAG's schedule.
        shift_seconds: How much the clock is put forward; negative: back.
        n_runs: How many runs the DAG has that day.
        usual_runs: How many it would have if the clock were not changed.
        effect: What is different, in words.
    """

    dag_id: str
    zone: str
    date: date
    shift_seconds: float
    n_runs: int
    usual_runs: int
    effect: str


class _Run(NamedTuple):
    """A run of a schedule: when the wall clock shows what, the length of its interval, and since the run before."""

    wall: datetime
    length: timedelta
    since_last: timedelta | None


def clock_changes(dags: Iterable[SerializedDag], start: datetime, end: datetime) -> list[ClockChange]:
    """Return what changes of the clock do to the days of these DAGs between two instants, by day and DAG."""
    found = [
        change
        for dag in dags
        for name in sorted(_zones(dag.timetable))
        for day, shift in transitions(zone_named(name), start - LONGEST_EFFECT, end)
        for change in _of_dag(dag, name, day, shift)
        if _midnight(change.date, name) < end and start < _midnight(change.date + DAY, name)
    ]
    return sorted(found, key=lambda change: (change.date, change.dag_id, change.zone))


def transitions(zone: tzinfo, start: datetime, end: datetime) -> Iterator[tuple[date, timedelta]]:
    """Yield each day before whose noon, and after the noon before, a zone's clock is changed, and by how much.

    The change itself is before `end`, and no more than a day before `start`.
    """
    if zone is UTC:
        return
    day = wall_clock(start, zone).date()
    while _noon(day - DAY, zone) < end:
        shift = _offset(_noon(day, zone), zone) - _offset(_noon(day - DAY, zone), zone)
        # When the span ends, the clock has been changed, or will only be.
        last = min(end - datetime.resolution, _noon(day, zone))
        if shift and _offset(last, zone) == _offset(_noon(day, zone), zone):
            yield day, shift
        day += DAY


def _midnight(day: date, zone: str) -> datetime:
    return datetime.combine(day, time(), zone_named(zone)).astimezone(UTC)


def _zones(timetable: Any) -> set[str]:
    """Return the zones that a serialized timetable, or one within it, is read in."""
    if isinstance(timetable, dict):
        own = {zone for key, zone in timetable.items() if key == "timezone" and isinstance(zone, str)}
        return own.union(*map(_zones, timetable.values()))
    return set().union(*map(_zones, timetable)) if isinstance(timetable, list | tuple) else set()


def _in_zone(timetable: Any, before: str, after: str) -> Any:
    """Return a serialized timetable that is read in another zone."""
    if isinstance(timetable, dict):
        return {
            key: after if key == "timezone" and value == before else _in_zone(value, before, after)
            for key, value in timetable.items()
        }
    return [_in_zone(value, before, after) for value in timetable] if isinstance(timetable, list) else timetable


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _noon(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(12), zone).astimezone(UTC)


def _of_dag(dag: SerializedDag, name: str, day: date, shift: timedelta) -> Iterator[ClockChange]:
    zone = zone_named(name)
    steady = timezone(_offset(_noon(day - DAY, zone), zone))
    unchanged = _in_zone(dag.timetable, name, zone_name(steady))
    try:
        runs = _runs_around(decode(dag.timetable), day, zone)
        usual = _runs_around(decode(unchanged), day, steady)
    except (TimetableError, PlanNeeded):
        return  # the schedule is over, or its author's own code would have to be asked
    for each in sorted(runs.keys() | usual.keys()):
        if effect := _effect(usual[each], runs[each]):
            yield ClockChange(dag.dag_id, name, each, shift.total_seconds(), len(runs[each]), len(usual[each]), effect)


def _runs_around(timetable: KnownTimetable, day: date, zone: tzinfo) -> dict[date, list[_Run]]:
    """Return the runs of the day before a change of the clock, of its day, of the day after, and one more, by day."""
    start, end = _noon(day - 2 * DAY, zone), _noon(day + DAY, zone) + DAY / 2
    found: dict[date, list[_Run]] = defaultdict(list)
    last: DataInterval | None = DataInterval(start, start)
    last_at: datetime | None = None
    for _ in range(MOST_RUNS):
        info = timetable.next_run(last, ALWAYS, start)
        if info is None:
            break
        wall = wall_clock(info.run_after, zone)
        if wall.date() >= day - DAY:
            length = info.data_interval.end - info.data_interval.start
            found[wall.date()].append(_Run(wall, length, None if last_at is None else info.run_after - last_at))
        if info.run_after >= end:
            break
        last, last_at = info.data_interval, info.run_after
    return found


def _effect(usual: list[_Run], runs: list[_Run]) -> str:
    """Return in words how the runs of a day differ from the usual ones; empty when they do not."""
    if len(runs) != len(usual):
        return f"{len(runs) or 'no'} {'run' if len(runs) == 1 else 'runs'} instead of {len(usual)}"
    effects = []
    for then, now in zip(usual, runs, strict=True):
        if then.wall.time() != now.wall.time():
            effects.append(f"runs at {now.wall:%H:%M} instead of {then.wall:%H:%M}")
        if then.length != now.length:
            effects.append(f"an interval of {_hours(now.length)} instead of {_hours(then.length)}")
        elif then.since_last and now.since_last and then.since_last != now.since_last:
            effects.append(f"runs {_hours(now.since_last)} after the run before, instead of {_hours(then.since_last)}")
    return "; ".join(effects)


def _hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:.6g} h"


SWEEP_SECONDS = 24 * 3600.0
"""Between two safety sweeps: no message is lost in a simulation."""
LAST_MOMENT = timedelta(milliseconds=2)
"""The span is half-open: what is due at its end belongs to the next one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be simulated.

    Attributes:
        start: Aware UTC; the scheduler is up to date at that instant.
        end: Aware UTC, after `start`; no longer part of the span.
        seed: Chooses which tries fail.
        expectations: What is expected of tasks.
        home: What the home's database says.
        pools: Slots by name, over what the home says; -1 is no limit.
        unpause: Whether paused DAGs run too.
    """

    start: datetime
    end: datetime
    seed: int = 0
    expectations: Expectations = field(default_factory=Expectations)
    home: HomeState = field(default_factory=HomeState)
    pools: Mapping[str, int] = field(default_factory=dict)
    unpause: bool = False


class FileProblem(Struct, frozen=True):
    """Why a DAG file, or a DAG of it, is not in a simulation."""

    file: str
    message: str
    dag_id: str | None = None


class SpanReport(Struct, frozen=True):
    """Everything that happened in a span. Instants are UTC."""

    start: datetime
    end: datetime
    seed: int
    runs: tuple[RunTrace, ...]
    pools: tuple[PoolUse, ...]
    missed_deadlines: tuple[MissedDeadline, ...]
    clock_changes: tuple[ClockChange, ...]
    paused_dags: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    assumptions: tuple[Assumption, ...]
    """What was taken for granted of the tasks that were started."""


def simulate_span(
    settings: Settings, reports: Iterable[ParseReport], plan: Plan, *, ask: Ask | None = None
) -> SpanReport:
    """Return what a scheduler with these settings does with the DAGs of these files in a span of time.

    Everything is a function of the arguments: no clock is read, and nothing of the home is touched.

    Args:
        settings: Those of the scheduler.
        reports: What the files hold.
        plan: The span, and what is expected of it.
        ask: Asks authors' own timetables for more runs.
    """
    with tempfile.TemporaryDirectory(prefix="asynsched-simulation-") as folder:
        simulation = _SpanSimulation(_private(settings, Path(folder)), tuple(reports), plan)
        simulation.ask = ask
        simulation.run_for(plan.end - plan.start - LAST_MOMENT)
        return simulation.report()


def _private(settings: Settings, folder: Path) -> Settings:
    """Return the settings with a home of the simulation's own."""
    return msgspec.structs.replace(settings, home=str(folder), database=None, sweep_interval=SWEEP_SECONDS)


class _SpanSimulation(Simulation):
    """A scheduler that has done all that was due before the start of a span."""

    def __init__(self, settings: Settings, reports: tuple[ParseReport, ...], plan: Plan) -> None:
        self._dags = [parsed.dag for report in reports for parsed in report.dags]
        self._mapped_over = mapped_over(self._dags)
        script = ExpectedEnds(plan.expectations, plan.seed, self._mapped_over)
        super().__init__(settings, reports, script, plan.start)
        self.gathers_starts = True
        self._plan = plan
        self._past: frozenset[int] = frozenset()

    async def prepare(self) -> None:
        await super().prepare()
        plan = self._plan
        for pool in plan.home.pools:
            await self.database.write(
                set_pool, pool.name, pool.slots, description="", include_deferred=pool.include_deferred
            )
        for name, slots in plan.pools.items():
            await self.database.write(set_pool, name, slots)
        for dag in await self.database.read(list_dags):
            paused = not plan.unpause and plan.home.paused.get(dag.dag_id, dag.is_paused)
            if paused != dag.is_paused:
                await self.database.write(set_paused, dag.dag_id, paused, self.clock.now())
        self._past = await self.database.write(store_last_runs, plan.start, 0, plan.home.last)

    def report(self) -> SpanReport:
        """Return what has happened."""
        plan, read = self._plan, self.inline.connection.read
        runs = read(lambda conn: read_trace(conn, without=self._past))
        capacities = read(pool_capacities)
        names = {(run.dag_id, run.run_id) for run in runs}
        started = {(run.dag_id, task.task_id) for run in runs for task in run.tasks if task.tries}
        return SpanReport(
            start=plan.start,
            end=plan.end,
            seed=plan.seed,
            runs=runs,
            pools=pool_uses(runs, capacities, plan.start, plan.end),
            missed_deadlines=tuple(miss for miss in read(missed_deadlines) if (miss.dag_id, miss.run_id) in names),
            clock_changes=tuple(clock_changes(self._dags, plan.start, plan.end)),
            paused_dags=tuple(dag.dag_id for dag in read(list_dags) if dag.is_paused),
            problems=tuple(
                FileProblem(error.file_path, error.message, error.dag_id)
                for error in read(list_errors)
                if not error.is_warning
            ),
            assumptions=assumptions(plan.expectations, started, self._mapped_over),
        )
