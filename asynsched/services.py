"""The services of a scheduler as a whole: the order in which they start and stop, and the states that they share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import anyio

from asynsched.executors.base import Executor
from asynsched.executors.heartbeat import ExecutorHeartbeat
from asynsched.health import Vitals
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.lease.claim import Claim
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.watching.watcher import Watcher
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.creation.triggering import ManualRuns
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.triggerer import Triggerer
from asynsched.service import Service, Steps
from asynsched.store.database import Database
from asynsched.store.schedulers import set_room

SETTLE_SECONDS = 5.0
"""How long a stopping scheduler takes at most to store the reports of the drained tries."""
HURRIED_SETTLE_SECONDS = 2.0
"""The same limit for a scheduler that was told to hurry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a scheduler.

    The consumers start first. When the scheduler stops, the producers stop, then the executor drains, then the
    consumers stop: the reports of the last tries are still stored.

    Attributes:
        steps: Wakes callers that wait for a state of all services.
    """

    parser: SandboxParser
    executor: Executor
    manual_runs: ManualRuns
    vitals: Vitals
    steps: Steps

    watcher: Watcher
    dispatcher: ParseDispatcher
    creator: DagRunCreator
    sweeper: RetentionSweeper
    listeners: tuple[Service, ...]

    heartbeat: ExecutorHeartbeat
    evaluator: DependencyEvaluator
    callbacks: CallbackRunner
    deadlines: DeadlineWatcher
    triggerer: Triggerer
    waiters: RunWaiters
    claim: Claim

    @property
    def producers(self) -> tuple[Service, ...]:
        """The services that make work."""
        return (self.watcher, self.dispatcher, self.creator, self.sweeper, *self.listeners)

    @property
    def consumers(self) -> tuple[Service, ...]:
        """The services that finish work, and those that hold the lease."""
        return (
            self.heartbeat,
            self.evaluator,
            self.callbacks,
            self.deadlines,
            self.triggerer,
            self.waiters,
            *self.claim.services,
        )

    # State of all together

    @property
    def are_idle(self) -> bool:
        """Whether nothing is left to parse, to create, to run or to call back."""
        return self._others_are_idle and self.evaluator.is_idle

    @property
    def are_at_a_standstill(self) -> bool:
        """Whether all services wait for active runs that cannot progress."""
        return self._others_are_idle and self.evaluator.is_at_a_standstill

    @property
    def _others_are_idle(self) -> bool:
        others = (self.dispatcher, self.creator, self.deadlines, self.callbacks, self.heartbeat)
        return all(part.is_at_rest for part in (*others, self.evaluator)) and all(part.is_idle for part in others)

    @property
    def are_settled(self) -> bool:
        """Whether all that the executor has reported is stored, and the executor knows that."""
        return (
            self.heartbeat.is_idle
            and self.heartbeat.is_at_rest
            and self.evaluator.is_settled
            and self.callbacks.is_settled
            and self.triggerer.is_settled
        )

    # How they begin and end

    async def recover(self, database: Database, lease_epoch: int) -> None:
        """Start the executor, and take up the runs, callbacks and triggers of earlier schedulers."""
        executor, now = self.executor, self.evaluator.clock.now()
        held = await executor.start(lease_epoch)
        await self.evaluator.recover(held, now)
        await self.callbacks.recover(held)
        self.triggerer.recover(held, now)
        # Last, because a scheduler has room only while it serves: that tells a starting one from a stopping one.
        await database.write(set_room, self.claim.scheduler_id, executor.parallelism, executor.capacities)

    def stop_beginning(self) -> None:
        """Begin no task, callback or trigger from now on."""
        self.evaluator.stop_granting()
        self.callbacks.stop_beginning()
        self.triggerer.stop()

    async def drain(self, grace: timedelta, hurried: anyio.Event) -> None:
        """Wait a grace time for running tasks to end, interrupt the rest, and wait until all ends are stored.

        Args:
            grace: How long tasks may go on.
            hurried: Once it is set, nothing waits for tasks any more.
        """
        clock = self.evaluator.clock
        await cancelled_by(hurried, lambda: self.executor.drain(clock.now() + grace))
        if hurried.is_set():
            await self.executor.drain(clock.now())
        with anyio.move_on_after(HURRIED_SETTLE_SECONDS if hurried.is_set() else SETTLE_SECONDS):
            await self.steps.until(lambda: self.are_settled)


async def cancelled_by(event: anyio.Event, work: Callable[[], Awaitable[object]]) -> bool:
    """Do some work, and cancel it once an event is set. Returns whether the work was done.

    Raises:
        Exception: Raised by the work, without a group around it.
    """
    if event.is_set():
        return False
    failure: Exception | None = None
    is_done = False
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(cancel)
        try:
            await work()
            is_done = True
        except Exception as exc:  # noqa: BLE001 - it is raised below, where no group wraps it
            failure = exc
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return is_done
