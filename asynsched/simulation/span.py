"""A span of time, simulated: from what is in the DAG files and the home, to everything that happens in it."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from asynsched.serialization.schema import ParseReport
from asynsched.settings import Settings
from asynsched.simulation.clock_changes import ClockChange, clock_changes
from asynsched.simulation.expectations import Expectations
from asynsched.simulation.home_state import HomeState
from asynsched.simulation.past import store_last_runs
from asynsched.simulation.planner import Ask
from asynsched.simulation.pool_use import PoolUse, pool_uses
from asynsched.simulation.script import Assumption, ExpectedEnds, assumptions, mapped_over
from asynsched.simulation.simulation import Simulation
from asynsched.simulation.trace import RunTrace, read_trace
from asynsched.store.dags.dags import list_dags, set_paused
from asynsched.store.dags.files import list_errors
from asynsched.store.runs.deadlines import MissedDeadline, missed_deadlines
from asynsched.store.runs.pools import pool_capacities, set_pool

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
