"""The services of a scheduler, in the order in which they start and stop."""

from dataclasses import dataclass

from asynsched.assembly.claim import Claim
from asynsched.executors.base import Executor
from asynsched.executors.heartbeat import ExecutorHeartbeat
from asynsched.health import Vitals
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.watching.watcher import Watcher
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.creation.triggering import ManualRuns
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.triggerer.triggerer import Triggerer
from asynsched.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a scheduler.

    The consumers start first. When the scheduler stops, the producers stop, then the executor drains, then the
    consumers stop: what the last tries report is still taken, and stored.
    """

    parser: SandboxParser
    executor: Executor
    manual_runs: ManualRuns
    vitals: Vitals

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
        """Those that make work."""
        return (self.watcher, self.dispatcher, self.creator, self.sweeper, *self.listeners)

    @property
    def consumers(self) -> tuple[Service, ...]:
        """Those that finish work, and those that hold the claim to it."""
        return (
            self.heartbeat,
            self.evaluator,
            self.callbacks,
            self.deadlines,
            self.triggerer,
            self.waiters,
            *self.claim.services,
        )

    @property
    def are_idle(self) -> bool:
        """Whether nothing is left to parse, to create, to run or to call back."""
        return self.evaluator.is_idle and self._others_are_idle

    @property
    def are_at_a_standstill(self) -> bool:
        """Whether nothing is left to do but to wait for active runs that do not go on by themselves."""
        return self.evaluator.is_at_a_standstill and self._others_are_idle

    @property
    def _others_are_idle(self) -> bool:
        return (
            self.dispatcher.is_idle
            and self.creator.is_idle
            and self.deadlines.is_idle
            and self.callbacks.is_idle
            and self.heartbeat.is_idle
        )

    @property
    def are_settled(self) -> bool:
        """Whether all that the executor has reported is stored, and the executor knows that."""
        return (
            self.evaluator.is_settled
            and self.callbacks.is_settled
            and self.triggerer.is_settled
            and self.heartbeat.is_idle
        )
