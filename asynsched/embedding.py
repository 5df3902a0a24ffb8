"""What an embedding program asks of a scheduler that serves: runs, updates of assets, and waiting for them."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from asynsched.assembly.services import Services
from asynsched.channels import AssetsUpdated, Channels, RunCancelled, RunCreated, RunEdited
from asynsched.clock import Clock
from asynsched.errors import AsynschedError, NotFound, NotServing, Standstill, StoreError
from asynsched.explaining.standstill import explain_standstill
from asynsched.health import Health
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.results import FinishedRun, Running, RunningTry, read_finished_run
from asynsched.scheduling.creation.asset_updates import update_by_program
from asynsched.scheduling.requests.run_requests import submit_by_program
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.serving_state import NO_MORE, NOT_YET, ServingState
from asynsched.settings import Settings
from asynsched.store.runs.requests import (
    CancelRun,
    ClearTasks,
    MarkedRunState,
    MarkedTaskState,
    MarkRun,
    MarkTasks,
    RunRequest,
)
from asynsched.store.schedulers.schedulers import list_schedulers

if TYPE_CHECKING:
    from asynsched.authoring.assets.asset import Asset

log = structlog.get_logger(__name__)

STORE_SECONDS = 5.0
"""Longest that a cancelled caller of `run` waits until the cancellation of its run is stored."""


class Embedding:
    """The part of Scheduler that other code of its process calls while it serves.

    Attributes:
        started: Set once it serves.
        stopping: Set once it is asked to stop.
    """

    settings: Settings
    scheduler_id: str
    clock: Clock
    channels: Channels
    started: anyio.Event
    stopping: anyio.Event
    _services: Services | None
    _state: ServingState
    _waiters: RunWaiters

    async def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        has_logical_date: bool = True,
    ) -> DagRunKey:
        """Create a run of a DAG, to be started at once, and return what identifies it.

        While the DAG folder is read for the first time, this waits for a DAG that is not known yet. The logical date is
        the present moment, unless it is given or there is to be none.

        Raises:
            NotFound: There is no such DAG.
            DagError: The conf does not fit the DAG's params.
            AlreadyExists: There is a run with this run_id or logical date.
            NotServing: The scheduler does not serve yet, or no more.
        """
        await self._wait_for_dag(dag_id)
        assert self._services is not None
        key = await self._services.manual_runs.create(
            dag_id, actor="program", conf=conf, run_id=run_id, logical_date=logical_date,
            has_logical_date=has_logical_date,
        )  # fmt: skip
        await self.channels.active_runs.put(RunCreated(key))
        return key

    async def run(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None
    ) -> FinishedRun:
        """Create a run of a DAG, wait until it has ended, and return it. When this is cancelled, so is the run.

        The cancellation of the run is stored before this ends, so that a crash which follows does not undo it; while
        the database is away, the scheduler stores it later.

        Raises what `trigger` raises, and NotServing when the scheduler stops before the run has ended.
        """
        await self._wait_for_dag(dag_id)
        key = DagRunKey(dag_id, run_id or f"manual__{self.clock.now().isoformat()}")
        with self._waiters.waiting_for(key) as ended:
            # A run that was asked for is created, or not: a cancellation waits until it is known which.
            created = asyncio.ensure_future(self.trigger(dag_id, conf, run_id=key.run_id))
            try:
                await asyncio.shield(created)
                await self._state.unless_stopped(ended.wait)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([created])
                    if not created.cancelled() and created.exception() is None:
                        await self._cancel_for_caller(key)
                raise
        return await read_finished_run(self._state.database, key)

    async def _cancel_for_caller(self, run: DagRunKey) -> None:
        """End a run that nobody waits for any more. Where that cannot be stored soon, the evaluator goes on trying."""
        is_settled = False
        try:
            with anyio.move_on_after(STORE_SECONDS):
                await self.cancel_run(run)
                is_settled = True
        except StoreError as exc:  # the database is away, or somebody has changed the run at the same moment
            is_settled = isinstance(exc, NotFound)
        except AsynschedError as exc:  # it has ended meanwhile, or the scheduler has stopped
            log.info("run.not_cancelled", dag_id=run.dag_id, run_id=run.run_id, reason=str(exc))
            is_settled = True
        finally:
            if not is_settled:
                self.channels.active_runs.offer(RunCancelled(run))

    async def asset_changed(self, asset: "str | Asset", extra: Mapping[str, Any] | None = None) -> None:
        """Say that an asset was updated: the DAGs that wait for it may run.

        While the DAG folder is read for the first time, this waits for that.

        Args:
            asset: The asset, or its name or URI if a DAG names it.
            extra: JSON values that describe the update; tasks find them in the event.

        Raises:
            NotFound: No DAG names such an asset.
            DagError: The extra is no JSON.
            NotServing: The scheduler does not serve yet, or no more.
        """
        database = self._state.database
        if self._services is not None:
            await self._state.unless_stopped(self._services.dispatcher.progress.until_read)
        await database.write(update_by_program, asset, extra, now=self.clock.now())
        await self.channels.dag_changes.put(AssetsUpdated())

    async def cancel_run(self, run: DagRunKey) -> None:
        """End a run that is queued or running: its tries are killed, tasks that wait are skipped, the run fails.

        This returns when that is certain to happen, which may be before it has.

        Raises:
            NotFound: There is no such run.
            AsynschedError: It has ended already.
            NotServing: The scheduler does not serve yet, or no more.
        """
        await self._submit(run, CancelRun(), "run.cancel")

    async def clear_tasks(
        self,
        run: DagRunKey,
        task_ids: Iterable[str] = (),
        *,
        upstream: bool = False,
        downstream: bool = False,
        only_failed: bool = False,
        latest: bool = False,
    ) -> list[TaskInstanceKey]:
        """Let tasks of a run run again, or all of them; what runs is killed first. Returns what that concerns.

        Args:
            run: A run in any state; one that has ended starts again.
            task_ids: Which tasks; none are all.
            upstream: Also those upstream of them.
            downstream: Also those downstream of them.
            only_failed: Of all these, only those that have failed, or whose upstream has.
            latest: Move the run to the newest version of its DAG first.

        Raises:
            NotFound: There is no such run or task.
            AsynschedError: The run has no tasks yet.
            NotServing: The scheduler does not serve yet, or no more.
        """
        request = ClearTasks(tuple(task_ids), upstream, downstream, only_failed, latest=latest)
        return await self._submit(run, request, "task.clear")

    async def mark_tasks(
        self, run: DagRunKey, task_ids: Iterable[str], state: MarkedTaskState, *, downstream: bool = False
    ) -> list[TaskInstanceKey]:
        """Say that tasks of a run have ended as `success`, `failed` or `skipped`; what runs is killed.

        Returns what that concerns, and raises what `clear_tasks` raises.
        """
        return await self._submit(run, MarkTasks(tuple(task_ids), state, downstream=downstream), "task.mark")

    async def mark_run(self, run: DagRunKey, state: MarkedRunState) -> None:
        """Say that a run has ended as `success` or `failed`, as `asynsched runs mark` does.

        Raises what `clear_tasks` raises.
        """
        await self._submit(run, MarkRun(state), "run.mark")

    async def _submit(self, run: DagRunKey, request: RunRequest, action: str) -> list[TaskInstanceKey]:
        now = self.clock.now()
        taken = await self._state.database.write(submit_by_program, run, request, action=action, now=now)
        await self.channels.active_runs.put(RunEdited(run))
        return [TaskInstanceKey(*run, row.task_id, row.map_index) for row in taken.instances]

    def running(self) -> Running:
        """Return what was started here and has not ended. Reads memory only. Raises NotServing."""
        services = self._serving_now()
        tries = [
            RunningTry(*task.key, task.try_number, task.started_at)
            for task in services.evaluator.evaluation.tries.values()
        ]
        # What has not begun comes last.
        tries.sort(key=lambda one: (one.started_at is None, one.started_at or self.clock.now()))
        return Running(tuple(tries), services.callbacks.n_running)

    def health(self) -> Health:
        """Return how this scheduler is: the age of every loop, and the oldest step that has not ended.

        Reads memory only. Other threads may call it, also while the event loop stands still.

        Raises:
            NotServing: The scheduler does not serve yet, or no more.
        """
        return self._serving_now().vitals.health()

    def _serving_now(self) -> Services:
        services = self._services
        if services is None or self._state.stopped.is_set():
            raise NotServing(NO_MORE if self._state.stopped.is_set() else NOT_YET)
        return services

    async def _wait_for_dag(self, dag_id: str) -> None:
        database = self._state.database
        progress = self._services.dispatcher.progress if self._services is not None else None
        if progress is not None and not progress.is_complete:
            await self._state.unless_stopped(partial(progress.until_known, database, dag_id))

    async def wait_idle(self) -> None:
        """Wait until every known file is parsed, no run is active and none is due.

        Before `serve` is called, this waits for that, too.

        Raises:
            Standstill: Runs are active, and none of them goes on unless somebody does something: a task waits for the
                success of one that has failed in the run before, or for more slots than its pool has.
            NotServing: The scheduler stopped before, or could not start.
        """
        await self._state.unless_stopped(self._become_idle)

    async def wait_runs(self, n: int) -> None:
        """Wait until that many runs have ended since the start. Raises NotServing when the scheduler stops before."""
        await self._state.unless_stopped(partial(self._waiters.until_ended, n))

    async def _become_idle(self) -> None:
        await self.started.wait()
        while not (self._services is not None and self._services.are_idle):
            if self._services is not None and self._services.are_at_a_standstill:
                await self._settle_standstill()
            await self.clock.sleep(timedelta(milliseconds=50))

    async def _settle_standstill(self) -> None:
        """Raise Standstill, unless another scheduler of the database may let the runs go on."""
        database, now = self._state.database, self.clock.now()
        others = [found for found in await database.read(list_schedulers, now) if found.id != self.scheduler_id]
        reasons = "" if others else await explain_standstill(database, self.settings, now)
        if reasons and self._services is not None and self._services.are_at_a_standstill:
            raise Standstill(reasons)
        await self.clock.sleep(timedelta(seconds=1))
