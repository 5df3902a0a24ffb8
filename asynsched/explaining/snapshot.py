"""The decisions that a scheduler would make at one instant, from the stored state; they are stored nowhere.

The production evaluation takes up every active run, as a starting scheduler does, and decides what to start now.
The runs and tasks that it did not start are to be explained.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from asynsched.channels import Channels
from asynsched.errors import DagError, NotFound
from asynsched.explaining.owners import Owners
from asynsched.explaining.reason import Reason
from asynsched.home import SOURCES
from asynsched.keys import DagRunKey
from asynsched.scheduling.admission import earliest_start
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import Limit, ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.loading import VersionCache
from asynsched.scheduling.places import Places
from asynsched.scheduling.rules.verdict import Verdict
from asynsched.settings import Settings
from asynsched.states import FINISHED_RUN_STATES, DagRunState
from asynsched.store.database import Database
from asynsched.store.runs.pools import pool_capacities, pools_including_deferred
from asynsched.store.runs.queue import running_runs, runs_by_id
from asynsched.store.schedulers import list_schedulers
from asynsched.store.schema import DagRunRow
from asynsched.store.tickets import Whereabouts, whereabouts

P = ParamSpec("P")
T = TypeVar("T")


class Snapshot:
    """A scheduler's next steps: the runs and tasks that it would start now.

    Attributes:
        evaluation: The active runs, also those that would start now.
        starting: The task instances that it would start.
        elsewhere: Where tries on other machines are, by their tokens.
        unserved: Why no scheduler works; None if one serves.
    """

    def __init__(
        self,
        database: Database,
        evaluation: Evaluation,
        intake: RunIntake,
        *,
        now: datetime,
        unserved: Reason | None,
        owners: Owners | None,
    ) -> None:
        self._database = database
        self.evaluation = evaluation
        self.now = now
        self.unserved = unserved
        self.starting: frozenset[ActiveTask] = frozenset()
        self.elsewhere: Mapping[str, Whereabouts] = {}
        self._intake = intake
        self._owners = owners
        self._holders: dict[Limit, list[ActiveTask]] = {}

    def lack_of_owner(self, run: ActiveRun | None) -> Reason | None:
        """Return why no scheduler works on a run that is stored as running; None if its scheduler does."""
        if run is None or self._owners is None or run.stored_state is not DagRunState.RUNNING:
            return None
        return self._owners.lack(run.stored_epoch)

    def admission(self, run: DagRunRow) -> Verdict:
        """Return whether a queued run may start."""
        return self._intake.places.queue.verdict(run.dag_id, run.backfill_id, earliest_start(run))

    def lacking(self, task: ActiveTask) -> list[Limit]:
        """Return the limits that have no room for a ready task."""
        return self.evaluation.ready.lacking(task)

    def holders(self, limit: Limit) -> list[ActiveTask]:
        """Return the task instances that occupy a limit, in order of their keys."""
        if limit not in self._holders:
            tasks = (task for run in self.evaluation.runs.values() for task in run.all_instances())
            found = (task for task in tasks if limit.holds(task) and limit in self.evaluation.ready.limits_of(task))
            self._holders[limit] = sorted(found, key=lambda task: task.key)
        return self._holders[limit]

    async def run(self, run_row_id: int, key: DagRunKey) -> ActiveRun | None:
        """Return a run with its task instances; None if it would not start now, or cannot be read.

        A run that is stored as running may have ended here: this process does not know the processes that it waits for.
        """
        if key in self.evaluation.runs:
            return self.evaluation.runs[key]
        for ended in self.evaluation.pending.ended_runs:
            if ended.key == key:
                return ended
        for row in await self._database.read(runs_by_id, [run_row_id]):
            if row.state in FINISHED_RUN_STATES:
                run = await self._intake.loader.run(row)
                run.add_tasks(await self._intake.loader.tasks(run))
                return run
        return None


async def take_snapshot(
    database: Database,
    settings: Settings,
    now: datetime,
    *,
    unserved: Reason | None = None,
    owners: Owners | None = None,
) -> Snapshot:
    """Return the decisions that a scheduler would make at `now` from the stored state.

    Args:
        unserved: Why no scheduler works; None if one serves.
        owners: Which scheduler owns which run; None: schedulers that all work.
    """
    tokens = count()
    serving = await database.read(list_schedulers, now)
    executors: Counter[str] = Counter()
    for scheduler in serving:
        executors.update(scheduler.executors)
    parallelism = sum(found.parallelism for found in serving) or settings.parallelism
    evaluation = Evaluation(
        ready=ReadyQueues(parallelism, settings.max_active_tasks_per_dag, dict(executors), settings.keep_slots),
        pending=PendingBatch("", 0),
        max_machine_kills=settings.max_machine_kills,
        new_token=lambda: f"explained-{next(tokens)}",
    )
    evaluation.ready.resize_pools(await database.read(pool_capacities), await database.read(pools_including_deferred))
    seen = _Unwritten(database)
    intake = RunIntake(
        database=seen,
        versions=VersionCache(seen, settings.home_path / SOURCES, settings.dags_path, in_thread=False),
        evaluation=evaluation,
        channels=Channels(),
        places=Places(settings.max_dagruns_per_loop_to_schedule),
    )
    await _take_up_running(database, intake, evaluation, now)
    await intake.sweep(now)
    snapshot = Snapshot(database, evaluation, intake, now=now, unserved=unserved, owners=owners)
    evaluation.time_passed(now)
    while True:
        await intake.start(now)
        evaluation.grant(now)
        if not intake.may_start_any:
            break
    snapshot.starting = frozenset(evaluation.pending.granted)
    snapshot.elsewhere = await database.read(whereabouts)
    return snapshot


async def _take_up_running(database: Database, intake: RunIntake, evaluation: Evaluation, now: datetime) -> None:
    for row in await database.read(running_runs):
        try:
            run = await intake.loader.run(row)
        except (NotFound, DagError):
            continue  # the scheduler leaves it alone, too
        tasks = await intake.loader.fill(run)
        intake.take_up(row)
        evaluation.resume_run(run, tasks, now)
        intake.places.begin(row.key)


class _Unwritten(Database):
    """A database that drops all writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(query, *args, **kwargs)

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return None  # type: ignore[return-value]  # these writers use no result

    async def close(self) -> None:
        pass
