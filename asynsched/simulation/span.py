"""The simulation of a span of time: from the DAG files and the home to all events in the span, as plain values.

Two spans, before and after a change of the DAG files, are compared run by run.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, pairwise
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import TimetableError
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.decode import decode_dag, restriction
from asynsched.serialization.schema import ParseReport, SerializedDag
from asynsched.settings import Settings
from asynsched.simulation.clock_changes import ClockChange, clock_changes
from asynsched.simulation.folder import Ask, HomeState
from asynsched.simulation.script import Assumption, Expectations, ExpectedEnds, assumptions, mapped_over
from asynsched.simulation.simulation import Simulation
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.store.dags.dags import get_plan, get_version, list_dags, set_paused
from asynsched.store.dags.files import list_errors
from asynsched.store.rows import in_common
from asynsched.store.runs.dag_runs import insert_run, run_of_schedule
from asynsched.store.runs.deadlines import MissedDeadline, missed_deadlines
from asynsched.store.runs.pools import pool_capacities, set_pool
from asynsched.store.runs.task_instances import WholeRun, all_runs
from asynsched.store.runs.transitions import apply
from asynsched.timetables import (
    CustomTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    KnownTimetable,
    OnceTimetable,
    decode,
)

T = TypeVar("T", bound=Struct)


class TryTrace(Struct, frozen=True):
    """A try of a task instance."""

    try_number: int
    state: str | None
    reason: str
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    pool: str
    pool_slots: int


class TaskTrace(Struct, frozen=True):
    """A task instance with its newest try and the earlier ones. Its state is None before it is scheduled."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None
    reason: str
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    pool: str
    pool_slots: int
    earlier_tries: tuple[TryTrace, ...] = ()

    @property
    def tries(self) -> tuple[TryTrace, ...]:
        """Every try that was queued, oldest first. A try that waits for its retry counts as an earlier one."""
        is_told = bool(self.earlier_tries) and self.earlier_tries[-1].queued_at == self.queued_at
        if self.queued_at is None or is_told:
            return self.earlier_tries
        newest = part_of(TryTrace, self)
        return (*self.earlier_tries, newest)


class RunTrace(Struct, frozen=True):
    """A DAG run and its task instances, in the order in which they were queued."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    reason: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    tasks: tuple[TaskTrace, ...]


def read_trace(conn: Connection, *, without: Collection[int]) -> tuple[RunTrace, ...]:
    """Return all runs, in the order in which they were due, except the runs with these row ids."""
    return tuple(_run(whole) for whole in all_runs(conn) if whole.run.id not in without)


def _run(whole: WholeRun) -> RunTrace:
    tasks = []
    for row in whole.tasks:
        earlier = tuple(part_of(TryTrace, one) for one in whole.tries.get((row.task_id, row.map_index), ()))
        tasks.append(part_of(TaskTrace, row, earlier_tries=earlier))
    return part_of(RunTrace, whole.run, tasks=tuple(tasks))


def part_of(trace: type[T], row: Struct, **parts: object) -> T:
    """Return a struct made of the fields of another one that have the same names, and of these parts."""
    return trace(**in_common(trace, row) | parts)


class SlotsAt(Struct, frozen=True):
    """The number of slots taken from an instant on."""

    at: datetime
    slots: int


class SimulatedPool(Struct, frozen=True):
    """The use of one pool.

    Attributes:
        slots: The slots of the pool; -1 means no limit.
        peak: The most slots taken at once, for the first time at `peak_at`.
        mean: The average number of slots taken.
        full_seconds: How long no slot was free.
        n_waited: Tasks that were ready and had to wait, for this pool or for another limit.
        longest_wait_seconds: The longest such wait.
    """

    pool: str
    slots: int
    peak: int
    peak_at: datetime | None
    mean: float
    full_seconds: float
    n_waited: int
    longest_wait_seconds: float


class PoolUse(SimulatedPool, frozen=True):
    """The use of one pool, and its steps over time: one for each change."""

    steps: tuple[SlotsAt, ...]


def pool_uses(
    runs: tuple[RunTrace, ...], capacities: Mapping[str, int | None], start: datetime, end: datetime
) -> tuple[PoolUse, ...]:
    """Return the use of each pool, by name.

    Args:
        capacities: Slots of each pool, None for no limit.
    """
    changes: dict[str, dict[datetime, int]] = {name: defaultdict(int) for name in capacities}
    waits: dict[str, list[timedelta]] = defaultdict(list)
    for task in (task for run in runs for task in run.tasks):
        for one in task.tries:
            if one.queued_at is not None:
                change = changes.setdefault(one.pool, defaultdict(int))
                change[one.queued_at] += one.pool_slots
                change[one.ended_at or end] -= one.pool_slots
        if task.scheduled_at and task.queued_at and task.queued_at > task.scheduled_at:
            waits[task.pool].append(task.queued_at - task.scheduled_at)
    return tuple(
        _use(name, capacities.get(name, 0), _steps(changes[name]), waits[name], end - start, end)
        for name in sorted(changes)
    )


def _use(
    name: str, capacity: int | None, steps: tuple[SlotsAt, ...], waits: list[timedelta], span: timedelta, end: datetime
) -> PoolUse:
    peak = max(steps, key=lambda step: step.slots, default=None)
    pairs = pairwise((*steps, SlotsAt(end, 0)))
    lasting = [(step.slots, (after.at - step.at).total_seconds()) for step, after in pairs]
    return PoolUse(
        pool=name,
        slots=-1 if capacity is None else capacity,
        peak=peak.slots if peak else 0,
        peak_at=peak.at if peak else None,
        mean=round(sum(slots * seconds for slots, seconds in lasting) / span.total_seconds(), 3),
        full_seconds=sum(seconds for slots, seconds in lasting if capacity is not None and 0 < capacity <= slots),
        n_waited=len(waits),
        longest_wait_seconds=max(waits, default=timedelta()).total_seconds(),
        steps=steps,
    )


def _steps(changes: Mapping[datetime, int]) -> tuple[SlotsAt, ...]:
    steps: list[SlotsAt] = []
    slots = 0
    for at in sorted(changes):
        if changes[at]:
            slots += changes[at]
            steps.append(SlotsAt(at, slots))
    return tuple(steps)


MOMENT = timedelta(microseconds=1)
AnyDeltaTimetable = DeltaTriggerTimetable | DeltaDataIntervalTimetable
MOST_RUNS = 100_000
"""Runs that are stepped over to find the last one before the span."""


def store_last_runs(
    conn: Connection, start: datetime, lease_epoch: int, known: Mapping[str, DataInterval]
) -> frozenset[int]:
    """Store, as successful, the last run of each active DAG that was due before `start`. Returns the row ids.

    Args:
        known: The data interval of the last run that each DAG's schedule has made in the home: a DAG that runs once, as
            soon as it may, has done so if it has one. Runs at regular intervals go on from it.
    """
    stored = []
    for row in list_dags(conn):
        if row.version_id is None:
            continue
        dag = decode_dag(get_version(conn, row.version_id).serialized)
        timetable = decode(dag.timetable)
        if isinstance(timetable, CustomTimetable):
            # The plan of an author's own timetable has the runs of the span, and begins after the last one before.
            plan = get_plan(conn, dag.dag_id)
            info = None if plan is None or plan.after is None else DagRunInfo.interval(*plan.after.value())
        else:
            try:
                info = last_run_before(dag, timetable, start)
            except TimetableError:
                continue  # the scheduler reports it when it examines the DAG
        last = known.get(dag.dag_id)
        if last is not None and last.end < start:
            if info is None and isinstance(timetable, OnceTimetable):
                info = DagRunInfo.interval(last.start, last.end)
            elif isinstance(timetable, AnyDeltaTimetable):
                info = _last_of_delta(timetable, last, start)
        if info is not None:
            stored.append(_store(conn, dag, row.version_id, info, lease_epoch))
    return frozenset(stored)


def _last_of_delta(timetable: AnyDeltaTimetable, known: DataInterval, start: datetime) -> DagRunInfo:
    """Return the last run before `start` of a schedule of regular intervals that has made a run, and goes on."""
    end = timetable.every.newest(known.end, start - MOMENT)
    return DagRunInfo(end, timetable.infer_manual_data_interval(run_after=end))


def last_run_before(dag: SerializedDag, timetable: KnownTimetable, start: datetime) -> DagRunInfo | None:
    """Return the last run of a DAG's schedule that is due before an instant; None if none is."""
    now = start - MOMENT
    # A schedule that is over has had its last run too.
    limits = restriction(dag)._replace(latest=None)
    if not (limits.catchup and isinstance(timetable, AnyDeltaTimetable)):
        # The newest run is given without those before it; these timetables find a run only from the one before.
        limits = limits._replace(catchup=False)
    last = timetable.next_run(None, limits, now)
    # A schedule that runs at once, when the scheduler first examines it, has not run yet.
    if last is None or last.run_after >= now:
        return None
    for _ in range(MOST_RUNS):
        following = timetable.next_run(last.data_interval, limits, now)
        if following is None or not last.run_after < following.run_after < now:
            break
        last = following
    return last


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
        ended_at=at,  # without a start: its length is unknown, and averages leave it out
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


SWEEP_SECONDS = 24 * 3600.0
"""Time between two sweeps: no message is lost in a simulation."""
LAST_MOMENT = timedelta(milliseconds=2)
"""The span is half-open: runs that are due at its end belong to the next span."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The span to simulate.

    Attributes:
        start: Aware UTC; the scheduler is up to date at that instant.
        end: Aware UTC, after `start`; not part of the span.
        pools: Slots by name, instead of the home's; -1 means no limit.
        unpause: Whether paused DAGs run, too.
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
    """The assumptions about the tasks that were started."""


def simulate_span(
    settings: Settings,
    reports: Iterable[ParseReport],
    plan: Plan,
    *,
    ask: Ask | None = None,
    goes_on: Callable[[], bool] | None = None,
) -> SpanReport:
    """Return the work of a scheduler with these settings on the DAGs of these files in a span of time.

    The result is a function of the arguments: no clock is read, and the home is not changed.

    Args:
        plan: The span, and the expectations of its tasks.
        ask: Asks authors' own timetables for more runs.
        goes_on: Asked from time to time; once it says no, the report ends at the instant that was reached.
    """
    with tempfile.TemporaryDirectory(prefix="asynsched-simulation-") as folder:
        private = msgspec.structs.replace(settings, home=folder, database=None, sweep_interval=SWEEP_SECONDS)
        simulation = _SpanSimulation(private, tuple(reports), plan)
        simulation.ask, simulation.goes_on = ask, goes_on
        simulation.run_for(plan.end - plan.start - LAST_MOMENT)
        return simulation.report()


class _SpanSimulation(Simulation):
    """A scheduler that has done everything that was due before the start of a span."""

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
            await self.database.write(set_pool, pool.name, pool.slots, include_deferred=pool.include_deferred)
        for name, slots in plan.pools.items():
            await self.database.write(set_pool, name, slots)
        for dag in await self.database.read(list_dags):
            paused = not plan.unpause and plan.home.paused.get(dag.dag_id, dag.is_paused)
            if paused != dag.is_paused:
                await self.database.write(set_paused, dag.dag_id, paused, self.clock.now())
        self._past = await self.database.write(store_last_runs, plan.start, 0, plan.home.last)

    def report(self) -> SpanReport:
        """Return the report of the span."""
        plan, read = self._plan, self.inline.connection.read
        reached = self.clock.now() + LAST_MOMENT
        end = plan.end if reached >= plan.end else self.clock.now()
        runs = read(lambda conn: read_trace(conn, without=self._past))
        capacities = read(pool_capacities)
        names = {(run.dag_id, run.run_id) for run in runs}
        started = {(run.dag_id, task.task_id) for run in runs for task in run.tasks if task.tries}
        return SpanReport(
            start=plan.start,
            end=end,
            seed=plan.seed,
            runs=runs,
            pools=pool_uses(runs, capacities, plan.start, end),
            missed_deadlines=tuple(miss for miss in read(missed_deadlines) if (miss.dag_id, miss.run_id) in names),
            clock_changes=tuple(clock_changes(self._dags, plan.start, end)),
            paused_dags=tuple(dag.dag_id for dag in read(list_dags) if dag.is_paused),
            problems=tuple(
                FileProblem(error.file_path, error.message, error.dag_id)
                for error in read(list_errors)
                if not error.is_warning
            ),
            assumptions=assumptions(plan.expectations, started, self._mapped_over),
        )


TaskName = tuple[str, str]
"""dag_id, task_id"""


class RunName(Struct, frozen=True):
    """A run that only one of the simulations has."""

    dag_id: str
    run_id: str
    logical_date: datetime | None
    run_after: datetime


class TaskCount(Struct, frozen=True):
    """A task that only one of the simulations has, and how many instances it has there."""

    dag_id: str
    task_id: str
    n_instances: int


class RunChange(Struct, frozen=True):
    """A run that both simulations have, but that goes differently.

    Attributes:
        start_later_seconds: How much later it starts; negative: earlier; None: it has not started in both.
        end_later_seconds: How much later it ends; negative: earlier; None: it has not ended in both.
        duration_before_seconds: From its start to its end before the change; None if it has not ended.
        duration_after_seconds: From its start to its end after the change; None if it has not ended.
    """

    dag_id: str
    run_id: str
    logical_date: datetime | None
    state_before: str
    state_after: str
    start_later_seconds: float | None
    end_later_seconds: float | None
    duration_before_seconds: float | None
    duration_after_seconds: float | None


class PoolChange(Struct, frozen=True):
    """The use of a pool before the change and after it."""

    pool: str
    slots_before: int | None
    slots_after: int | None
    peak_before: int
    peak_after: int
    mean_before: float
    mean_after: float
    full_seconds_before: float
    full_seconds_after: float
    longest_wait_seconds_before: float
    longest_wait_seconds_after: float


class Comparison(Struct, frozen=True):
    """All differences after a change.

    Attributes:
        deadlines_missed: Deadlines that are missed only after the change.
        deadlines_saved: Deadlines that were missed only before the change.
    """

    runs_added: tuple[RunName, ...]
    runs_removed: tuple[RunName, ...]
    tasks_added: tuple[TaskCount, ...]
    tasks_removed: tuple[TaskCount, ...]
    runs_changed: tuple[RunChange, ...]
    deadlines_missed: tuple[MissedDeadline, ...]
    deadlines_saved: tuple[MissedDeadline, ...]
    pools: tuple[PoolChange, ...]


def compare(before: SpanReport, after: SpanReport) -> Comparison:
    """Return the differences between two simulations. Runs with the same DAG and run_id are the same run."""
    old = {(run.dag_id, run.run_id): run for run in before.runs}
    new = {(run.dag_id, run.run_id): run for run in after.runs}
    old_misses, new_misses = set(before.missed_deadlines), set(after.missed_deadlines)
    old_tasks, new_tasks = _instances(before.runs), _instances(after.runs)
    changes = (_run_change(old[key], new[key]) for key in old if key in new)
    return Comparison(
        runs_added=tuple(part_of(RunName, run) for key, run in new.items() if key not in old),
        runs_removed=tuple(part_of(RunName, run) for key, run in old.items() if key not in new),
        tasks_added=tuple(TaskCount(*name, n) for name, n in sorted(new_tasks.items()) if name not in old_tasks),
        tasks_removed=tuple(TaskCount(*name, n) for name, n in sorted(old_tasks.items()) if name not in new_tasks),
        runs_changed=tuple(change for change in changes if change is not None),
        deadlines_missed=tuple(miss for miss in after.missed_deadlines if miss not in old_misses),
        deadlines_saved=tuple(miss for miss in before.missed_deadlines if miss not in new_misses),
        pools=_pool_changes(before.pools, after.pools),
    )


def _instances(runs: Iterable[RunTrace]) -> Counter[TaskName]:
    return Counter((run.dag_id, task.task_id) for run in runs for task in run.tasks)


def _run_change(old: RunTrace, new: RunTrace) -> RunChange | None:
    if (old.state, old.started_at, old.ended_at) == (new.state, new.started_at, new.ended_at):
        return None
    return RunChange(
        dag_id=new.dag_id,
        run_id=new.run_id,
        logical_date=new.logical_date,
        state_before=old.state,
        state_after=new.state,
        start_later_seconds=_seconds(old.started_at, new.started_at),
        end_later_seconds=_seconds(old.ended_at, new.ended_at),
        duration_before_seconds=_seconds(old.started_at, old.ended_at),
        duration_after_seconds=_seconds(new.started_at, new.ended_at),
    )


def _seconds(earlier: datetime | None, later: datetime | None) -> float | None:
    return None if earlier is None or later is None else (later - earlier).total_seconds()


def _pool_changes(before: Iterable[PoolUse], after: Iterable[PoolUse]) -> tuple[PoolChange, ...]:
    old, new = ({use.pool: use for use in uses} for uses in (before, after))
    names = sorted(old.keys() | new.keys())
    pairs = ((name, zip(_figures(old.get(name)), _figures(new.get(name)), strict=True)) for name in names)
    return tuple(PoolChange(name, *chain.from_iterable(figures)) for name, figures in pairs)


def _figures(use: PoolUse | None) -> tuple[Any, ...]:
    """Return the figures of a pool in the order of PoolChange."""
    if use is None:
        return None, 0, 0.0, 0.0, 0.0
    return use.slots, use.peak, use.mean, use.full_seconds, use.longest_wait_seconds
