"""The simulation of a span of time: from the DAG files and the home to all events in the span."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

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
from asynsched.simulation.expectations import Expectations
from asynsched.simulation.folder import Ask, HomeState
from asynsched.simulation.script import Assumption, ExpectedEnds, assumptions, mapped_over
from asynsched.simulation.simulation import Simulation
from asynsched.simulation.trace import PoolUse, RunTrace, pool_uses, read_trace
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.store.dags.dags import get_plan, get_version, list_dags, set_paused
from asynsched.store.dags.files import list_errors
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
    decode,
)

MOMENT = timedelta(microseconds=1)
MOST_RUNS = 100_000
"""Runs that are stepped over to find the last one before the span."""


def store_last_runs(
    conn: Connection, start: datetime, lease_epoch: int, known: Mapping[str, DataInterval]
) -> frozenset[int]:
    """Store, as successful, the last run of each active DAG that was due before `start`. Returns the row ids.

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
            continue  # the scheduler reports it when it examines the DAG
        last = known.get(dag.dag_id)
        if info is None and isinstance(timetable, OnceTimetable) and last is not None and last.end < start:
            info = DagRunInfo.interval(last.start, last.end)
        if info is not None:
            stored.append(_store(conn, dag, row.version_id, info, lease_epoch))
    return frozenset(stored)


def _last_planned(conn: Connection, dag: SerializedDag) -> DagRunInfo | None:
    """Return the run after which the plan of an author's own timetable begins: the plan has the runs of the span."""
    plan = get_plan(conn, dag.dag_id)
    return None if plan is None or plan.after is None else DagRunInfo.interval(plan.after.start, plan.after.end)


def last_run_before(dag: SerializedDag, timetable: KnownTimetable, start: datetime) -> DagRunInfo | None:
    """Return the last run of a DAG's schedule that is due before an instant; None if none is."""
    now = start - MOMENT
    # A schedule that is over has had its last run too.
    limits = restriction(dag)._replace(latest=None)
    if not (limits.catchup and _counts_from_its_start(timetable)):
        # The newest run is given without those before it.
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


def _counts_from_its_start(timetable: KnownTimetable) -> bool:
    """Whether a run can only be found from the run before it."""
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
        seed: Decides which tries fail.
        expectations: How long tasks take, and how they end.
        home: The state of the home's database.
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
    settings: Settings, reports: Iterable[ParseReport], plan: Plan, *, ask: Ask | None = None
) -> SpanReport:
    """Return the work of a scheduler with these settings on the DAGs of these files in a span of time.

    The result is a function of the arguments: no clock is read, and the home is not changed.

    Args:
        settings: The settings of the scheduler.
        reports: The DAGs of the files.
        plan: The span, and the expectations of its tasks.
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
        """Return the report of the span."""
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
