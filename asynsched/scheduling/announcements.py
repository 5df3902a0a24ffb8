"""The messages that other services get once a batch of changes is stored."""

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

import structlog

from asynsched.channels import (
    AssetsUpdated,
    CallbackRequested,
    Channels,
    DagChanged,
    PoolsChanged,
    RunEnded,
    TaskFinished,
    TaskReady,
    TriesStored,
    TryUnwanted,
)
from asynsched.executors.base import Held
from asynsched.executors.tokens import boot_mark, is_callback_token, key_of_token
from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.decisions import unwanted_try
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.launches import task_launch
from asynsched.states import SLOT_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.runs.transitions import Stale

log = structlog.get_logger(__name__)

_HAVE_PROCESSES = frozenset({TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING})
NOT_CLAIMED = "its task instance was changed meanwhile"
"""The reason for ending a try for which no task instance waits."""


class Announcer:
    """Announces changes once they are durable, never before.

    Args:
        channels: The channels to the other services.
        obstacle: Returns why a task can never start under the present limits.
        max_map_length: How many values a task may return when other tasks are mapped over its result.
        boot: Name of this boot of the machine. No try that was submitted in another boot is started.
    """

    def __init__(
        self,
        channels: Channels,
        obstacle: Callable[[ActiveTask], str],
        max_map_length: int,
        boot: str,
    ) -> None:
        self._boot_mark = boot_mark(boot)
        self._max_map_length = max_map_length
        self._channels = channels
        self._obstacle = obstacle

    def announce(self, pending: PendingBatch, stale: Stale) -> None:
        """Announce a batch, except its stale changes."""
        channels = self._channels
        if stale:
            log.warning("state.stale", n_tasks=len(stale.tasks), n_runs=len(stale.runs))
        self._warn_of_obstacles(pending)
        for task in pending.granted:
            if not is_stale(task, stale):
                self.launch(task)
        self._acknowledge(pending, stale)
        self.announce_triggers(pending)
        for token, reason in pending.unwanted:
            channels.ready.put_nowait(TryUnwanted(token, reason))
        self._announce_ends(pending, stale)
        if pending.callbacks:
            channels.callbacks.put_nowait(CallbackRequested())
        if pending.asset_events:
            channels.dag_changes.offer(AssetsUpdated())

    def settle(self, tasks: Iterable[ActiveTask], held: Held, now: datetime) -> None:
        """Announce the tries of a run that was taken over: lost ones, those to end, and those to start."""
        tasks = list(tasks)
        lost = {event.token: event for event in lost_tries(tasks, held, self._boot_mark, now)}
        for task in tasks:
            if task.token in lost:
                self._channels.finished.put_nowait(TaskFinished(lost[task.token]))
            elif task.state is TaskInstanceState.RESTARTING and task.token is not None:
                self._channels.ready.put_nowait(TryUnwanted(task.token, task.reason))
            elif task.state in SLOT_TASK_STATES:
                # It may never have been launched. A token starts one try at most, so launching it again does no harm.
                self.launch(task)
                if unwanted := unwanted_try(task):
                    # The scheduler that stopped the run may have died before it announced that.
                    self._channels.ready.put_nowait(TryUnwanted(*unwanted))

    def tell_of_takeover(self, dag_ids: Iterable[str]) -> None:
        """Request that other schedulers' use of the limits is read again: this scheduler has taken over part of it."""
        self._channels.limits.offer(PoolsChanged())
        for dag_id in sorted(dag_ids):
            self._channels.limits.offer(DagChanged(dag_id))

    def end_unclaimed(self, held: Held, claimed: Collection[str]) -> None:
        """Order the end of the tasks' tries that an executor still holds and no task instance waits for any more."""
        for token in sorted(held.starting | held.running):
            if token not in claimed and not is_callback_token(token) and key_of_token(token) is None:
                self._channels.ready.put_nowait(TryUnwanted(token, NOT_CLAIMED))

    def end_tries(self, tokens: Iterable[str], tasks: Iterable[ActiveTask] = ()) -> None:
        """Order the end of a run's known tries, except those that its task instances still wait for."""
        kept = {task.token for task in tasks if task.state in SLOT_TASK_STATES - {TaskInstanceState.RESTARTING}}
        for token in tokens:
            if token not in kept:
                self._channels.ready.put_nowait(TryUnwanted(token, NOT_CLAIMED))

    def launch_unknown(self, known: Collection[str], tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Launch a run's queued tries that memory did not know: the answer that they were stored was lost."""
        queued = [task for task in tasks if task.state is TaskInstanceState.QUEUED and task.token not in known]
        self.settle(queued, Held(), now)

    def launch(self, task: ActiveTask) -> None:
        """Order the start of a task instance's try, under the token that it was given."""
        self._channels.ready.put_nowait(TaskReady(task.run.id, task_launch(task, self._max_map_length)))

    def announce_triggers(self, pending: PendingBatch) -> None:
        """Send the batch's triggers to the triggerer, and drop them from the batch."""
        for trigger in pending.triggers:
            self._channels.triggers.put_nowait(trigger)
        pending.triggers.clear()

    def _acknowledge(self, pending: PendingBatch, stale: Stale) -> None:
        """Acknowledge stored ends; an end whose decision was stale is put back, to be decided again."""
        stored = []
        for event, task in pending.ends:
            if task is not None and is_stale(task, stale):
                self._channels.finished.put_nowait(TaskFinished(event))
            else:
                stored.append(event.token)
        if stored:
            self._channels.ready.put_nowait(TriesStored(tuple(stored)))

    def _announce_ends(self, pending: PendingBatch, stale: Stale) -> None:
        for run in pending.ended_runs:
            if run.id in stale.runs:
                continue
            ended = RunEnded(run.key, run.state)
            self._channels.run_ends.put_nowait(ended)
            self._channels.dag_changes.offer(ended)
            log.info("run.ended", dag_id=run.key.dag_id, run_id=run.key.run_id, state=run.state, **_facts(run))

    def _warn_of_obstacles(self, pending: PendingBatch) -> None:
        for task in pending.tasks.values():
            # A ready task may have another reason: why its last try was handed back.
            if task.state is TaskInstanceState.SCHEDULED and task.reason and (obstacle := self._obstacle(task)):
                key = task.run.key
                log.warning(
                    "task.cannot_start", dag_id=key.dag_id, run_id=key.run_id, task_id=task.task_id, reason=obstacle
                )


def _facts(run: ActiveRun) -> dict[str, Any]:
    """Return the fields that the log shows of a run that has ended."""
    facts: dict[str, Any] = {"reason": run.reason, "n_tasks": sum(map(len, run.instances.values()))}
    if run.started_at is not None and run.ended_at is not None:
        facts["seconds"] = round((run.ended_at - run.started_at).total_seconds(), 3)
    if run.state is DagRunState.FAILED and (task := _first_failure(run)) is not None:
        facts["error"] = f"{task.name}: {task.reason}"
    return facts


def _first_failure(run: ActiveRun) -> ActiveTask | None:
    """Return the first task instance in topological order that failed itself, not because of its upstream."""
    for task_id, instances in run.instances.items():
        if run.bad_of[task_id]:
            failed = (task for task in instances.values() if task.state is TaskInstanceState.FAILED)
            if (task := next(failed, None)) is not None:
                return task
    return None


def is_stale(task: ActiveTask, stale: Stale) -> bool:
    """Whether a batch's change of a task instance was not stored."""
    return task.run.id in stale.runs or (task.run.id, task.task_id, task.map_index) in stale.tasks


def lost_tries(tasks: Iterable[ActiveTask], held: Held, boot_mark: str, now: datetime) -> Iterator[Ended]:
    """Yield the end of each try that began, or may have begun, and that the executor does not know.

    A queued try may have begun if it was submitted before the machine was started: the record of that may be lost.

    Args:
        boot_mark: The prefix of the tokens given since the machine was started.
    """
    for task in tasks:
        if task.token is None or task.token in held.known:
            continue
        if task.state in _HAVE_PROCESSES:
            reason = "the try was lost: its keeper is gone, and left no record of its end"
        elif task.state is TaskInstanceState.QUEUED and not task.token.startswith(boot_mark):
            reason = "the try was not submitted since the machine was started: it may have begun before that"
        else:
            continue
        yield Ended(task.token, "failed", now, task.started_at, reason, cause="machine")
