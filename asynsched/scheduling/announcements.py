"""Announces a stored batch of changes: messages to other services, launches, metrics and log lines.

Writing a log line takes as long as a decision about a task. So a thousand failures at once must not write a line
each: beyond MOST_LINES, they are counted.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from asynsched.authoring.triggers.base import FAIL_METHOD, TRIGGER_FAILURE, TRIGGER_TIMEOUT
from asynsched.channels import (
    AssetsUpdated,
    CallbackRequested,
    Channels,
    DagChanged,
    PoolsChanged,
    RunEnded,
    TaskReady,
    TriesStored,
    TriggerUnwanted,
    TriggerWanted,
    TryReported,
    TryUnwanted,
)
from asynsched.executors.base import Held
from asynsched.executors.log_paths import callback_log_path, log_path
from asynsched.executors.tokens import boot_mark, is_callback_token, key_of_token
from asynsched.keys import TaskInstanceKey
from asynsched.loggers import get_logger
from asynsched.metrics.base import Metrics
from asynsched.protocol.messages import CausingTry, CodeVersion, Ended, Launch, Resume, RunContext
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.changes import StoredDeferral, TryResult
from asynsched.scheduling.evaluation.decisions import Obstacle, unwanted_try
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.settings import CallbacksSettings
from asynsched.states import FINISHED_RUN_STATES, SLOT_TASK_STATES, DagRunState, DagRunType
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs.deadlines import MISS_EVENT
from asynsched.store.runs.transitions import Stale
from asynsched.store.schema import CallbackRequest, DeadlineRow, ListenerCall

log = get_logger(__name__)

_OF_RUN = attrgetter(*RunContext.__struct_fields__[2:])
NOT_AWAITED = "its task instance was changed meanwhile"
"""The reason for ending a try for which no task instance waits."""
SPAN = timedelta(seconds=10)
MOST_LINES = 20
"""How many failed tries are logged one by one within a SPAN."""
FAILED_STATES = frozenset({State.FAILED, State.UP_FOR_RETRY})


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The counters and timers of a scheduler's runs."""

    metrics: Metrics

    def stored(self, pending: PendingBatch, stale: Stale) -> None:
        """Update the metrics from a stored batch, except its stale changes. Call this before `mark_stored`."""
        if not self.metrics.are_wanted:
            return
        for changed in pending.tasks.values():
            if changed.run.id not in stale.run_ids:
                self._task(changed)
        for ended, task in pending.ends:
            if task is not None and task.run.id not in stale.run_ids:
                self._end(ended, task)
        for run in pending.runs.values():
            if run.id not in stale.runs:
                self._run(run)
        if pending.asset_events:
            self.metrics.count("asset.updates", n=len(pending.asset_events))

    def _run(self, run: ActiveRun) -> None:
        dag_id = run.key.dag_id
        if run.state in FINISHED_RUN_STATES:
            self._time(f"dagrun.duration.{run.state}", run.started_at, run.ended_at, dag_id)
        elif run.stored_state is DagRunState.QUEUED and run.run_type == DagRunType.SCHEDULED:
            self._time("dagrun.schedule_delay", run.run_after, run.started_at, dag_id)

    def _task(self, task: ActiveTask) -> None:
        before, after, key = task.stored_state, task.state, (task.run.key.dag_id, task.task_id)
        if after is State.QUEUED and before is not State.QUEUED:
            self._time("task.scheduled_duration", task.scheduled_at, task.queued_at, *key)
        elif after is State.RUNNING and before is State.QUEUED:
            self._begun(task, key)

    def _begun(self, task: ActiveTask, key: tuple[str, str]) -> None:
        self.metrics.count("ti.start", *key)
        self._time("task.queued_duration", task.queued_at, task.started_at, *key)

    def _end(self, ended: Ended, task: ActiveTask) -> None:
        key = (task.run.key.dag_id, task.task_id)
        if ended.started_at is not None and task.stored_state is State.QUEUED:
            self._begun(task, key)
        self.metrics.count("ti.finish", *key, str(task.state))
        self._time("task.duration", ended.started_at, ended.ended_at, *key)
        if ended.state == "success":
            self.metrics.count("ti_successes", *key)
            self.metrics.count("operator_successes", task.task.task_type)
        elif ended.state == "failed" and ended.cause == "task":
            self.metrics.count("ti_failures", *key)
            self.metrics.count("operator_failures", task.task.task_type)

    def _time(self, name: str, start: datetime | None, end: datetime | None, *labels: str) -> None:
        if start is not None and end is not None:
            self.metrics.time(name, max(0.0, (end - start).total_seconds()), *labels)


class TryLog:
    """Logs `run.started`, `try.failed` and `tries.failed`, and `try.started` and `try.ended` if it `tells_all`."""

    def __init__(self, *, tells_all: bool) -> None:
        self._tells_all = tells_all
        self._n_told = 0
        self._n_untold = 0
        self._n_interrupted = 0
        self._span_ends_at: datetime | None = None

    @property
    def due_at(self) -> datetime | None:
        """When to call `time_passed`, which logs the failures that were only counted."""
        return self._span_ends_at if self._n_untold else None

    def stored(self, pending: PendingBatch, stale: Stale, now: datetime) -> None:
        """Log a stored batch, except its stale changes. Call this before `mark_stored`."""
        self.time_passed(now)
        for run in pending.runs.values():
            has_started = run.stored_state is DagRunState.QUEUED and run.state is not DagRunState.QUEUED
            if has_started and run.started_at is not None and run.id not in stale.runs:
                log.info("run.started", dag_id=run.key.dag_id, run_id=run.key.run_id)
        if self._tells_all:
            for task in pending.tasks.values():
                before = task.stored_state
                if task.state is State.RUNNING and before is not task.state and not is_stale(task, stale):
                    log.debug("try.started", **_names(task, task.try_number))
        for result in pending.results:
            if not is_stale(result.task, stale):
                self._ended(result, now)

    def time_passed(self, now: datetime) -> None:
        """Begin to log failures one by one again, if the span is over."""
        if self._span_ends_at is not None and now >= self._span_ends_at:
            self.flush()

    def flush(self) -> None:
        if self._n_untold:
            seconds = int(SPAN.total_seconds())
            log.warning("tries.failed", n_more=self._n_untold, beside=f"the {self._n_told} of the same {seconds} s")
        self._n_told = self._n_untold = 0
        self._span_ends_at = None

    def stopped(self) -> None:
        """Log what was only counted, and how many running tries the stop has ended."""
        self.flush()
        if self._n_interrupted:
            log.warning("tries.interrupted", n_tries=self._n_interrupted, then="they begin again at the next start")
        self._n_interrupted = 0

    def _ended(self, result: TryResult, now: datetime) -> None:
        self._n_interrupted += result.ended.cause == "interrupted" and result.ended.started_at is not None
        if result.outcome.state in FAILED_STATES:
            if self._span_ends_at is None:
                self._span_ends_at = now + SPAN
            if self._n_told < MOST_LINES or self._tells_all:
                self._n_told += 1
                log.warning("try.failed", **_facts_of_try(result))
            else:
                self._n_untold += 1
        elif self._tells_all:
            log.debug("try.ended", **_facts_of_try(result))


def _names(task: ActiveTask, try_number: int) -> dict[str, Any]:
    key = task.key
    index = {} if key.map_index < 0 else {"map_index": key.map_index}
    return {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, **index, "try_number": try_number}


def _facts_of_try(result: TryResult) -> dict[str, Any]:
    ended, outcome = result.ended, result.outcome
    facts = _names(result.task, result.try_number) | {"state": str(outcome.state)}
    if outcome.reason:
        facts["reason"] = outcome.reason
    if ended.started_at is not None:
        facts["seconds"] = round((ended.ended_at - ended.started_at).total_seconds(), 3)
    if outcome.state is State.UP_FOR_RETRY and outcome.next_try_at is not None:
        facts["retry_at"] = outcome.next_try_at.isoformat(timespec="seconds")
    return facts


def run_context(run: ActiveRun) -> RunContext:
    """Return the facts of a run that its tasks and callbacks get."""
    return RunContext(*run.key, *_OF_RUN(run))


def task_launch(task: ActiveTask, max_map_length: int) -> Launch:
    """Return the launch of a task instance that has been granted its slots and given a token."""
    if task.token is None:
        raise ValueError(f"{task.key} has no token")
    return Launch(
        token=task.token,
        task_id=task.task_id,
        map_index=task.map_index,
        try_number=task.try_number,
        max_tries=task.max_tries,
        executor=task.route.executor,
        queue=task.route.queue,
        pool=task.route.pool,
        pool_slots=task.route.pool_slots,
        priority_weight=task.route.priority_weight,
        executor_config=task.route.executor_config,
        run=run_context(task.run),
        code=task.run.code,
        log_path=log_path(task.key, task.try_number),
        execution_timeout=task.task.execution_timeout,
        # Whatever the task is: of a try that begins, only a reschedule leaves the start of an earlier process.
        reschedule_started_at=task.started_at if task.deferral is None else None,
        started_at=None if task.deferral is None else task.started_at,
        resume=_resumption(task.deferral),
        max_map_length=max_map_length,
    )


def _resumption(stored: StoredDeferral | None) -> Resume | None:
    """Return the resumption of a task instance; None for one that begins."""
    if stored is None or stored.outcome is None:
        return None
    outcome, deferral = stored.outcome, stored.deferral
    if outcome.kind == "event":
        return Resume(deferral.method_name, {**deferral.method_kwargs, "event": outcome.payload})
    error = TRIGGER_TIMEOUT if outcome.kind == "timeout" else TRIGGER_FAILURE
    return Resume(FAIL_METHOD, {"error": error, "detail": outcome.detail, "traceback": list(outcome.traceback)})


def callback_launch(
    request: CallbackRequest,
    run: ActiveRun,
    token: str,
    settings: CallbacksSettings,
    deadlines: Iterable[DeadlineRow],
) -> Launch:
    """Return the launch of a callback of a run, or of one of its task instances, under this token.

    The try number of a missed deadline's callback is the deadline's among `deadlines`.
    """
    callback: dict[str, Any] = {"event": request.event, "reason": request.reason}
    if request.event == MISS_EVENT:
        found = [deadline for deadline in deadlines if deadline.number == request.try_number]
        told = [
            {"id": str(UUID(int=one.id)), "number": one.number, "name": one.name, "due_at": one.due_at.isoformat()}
            for one in found
        ]
        callback["deadline"] = told[0] if told else {}
    key = TaskInstanceKey(*run.key, request.task_id, request.map_index)
    caused_by = msgspec.json.decode(request.caused_by, type=CausingTry) if request.caused_by else None
    return Launch(
        token=token,
        task_id=request.task_id,
        map_index=request.map_index,
        try_number=request.try_number,
        max_tries=0 if caused_by is None else caused_by.max_tries,
        run=run_context(run),
        code=run.code,
        log_path=callback_log_path(key, request.event, request.try_number),
        execution_timeout=settings.timeout,
        executor=settings.executor or None,
        callback=callback,
        caused_by=caused_by,
    )


def listener_launch(call: ListenerCall, dags_folder: str, token: str, timeout_seconds: float, now: datetime) -> Launch:
    """Return the launch of a call of listeners that belongs to no run: its process loads no DAG file."""
    return Launch(
        token=token, task_id="", map_index=-1, try_number=0, max_tries=0, run=RunContext("", "", "", now),
        code=CodeVersion("", dags_folder), log_path=f"listeners/{call.event}.log", execution_timeout=timeout_seconds,
        callback={"event": call.event, "subjects": call.subjects},
    )  # fmt: skip


@dataclass(eq=False)
class Announcer:
    """Announces changes once they are durable, never before.

    Attributes:
        obstacle: Returns why a task can never start under the present limits.
        max_map_length: How many values a task may return when other tasks are mapped over its result.
        boot: Name of this boot of the machine. No try that was submitted in another boot is started.
    """

    channels: Channels
    obstacle: Obstacle
    max_map_length: int
    boot: str

    def __post_init__(self) -> None:
        self._boot_mark = boot_mark(self.boot)

    def announce(self, pending: PendingBatch, stale: Stale) -> None:
        """Announce a batch, except its stale changes."""
        if stale:
            log.warning("state.stale", n_tasks=len(stale.tasks), n_runs=len(stale.runs))
        self._warn_of_obstacles(pending)
        for task in pending.granted:
            if not is_stale(task, stale):
                self.launch(task)
        self._acknowledge(pending, stale)
        for trigger in pending.triggers:
            if stale and isinstance(trigger, TriggerUnwanted):
                # Of a run that is another scheduler's by now, the external job must go on.
                trigger = TriggerUnwanted(trigger.trigger_id)
            self.channels.triggers.put_nowait(trigger)
        for token, reason in pending.unwanted:
            self.channels.ready.put_nowait(TryUnwanted(token, reason))
        self._announce_ends(pending, stale)
        if pending.callbacks or any(event.listens for event in pending.asset_events):
            self.channels.callbacks.put_nowait(CallbackRequested())
        if pending.asset_events:
            self.channels.dag_changes.offer(AssetsUpdated())

    def announce_taken_over(self, tasks: Iterable[ActiveTask], held: Held, now: datetime) -> None:
        """Announce the tries of a run that was taken over: lost ones, those to end, and those to start."""
        tasks = list(tasks)
        lost = {event.token: event for event in lost_tries(tasks, held, self._boot_mark, now)}
        for task in tasks:
            if task.token in lost:
                self.channels.reports.put_nowait(TryReported(lost[task.token]))
            elif task.state is State.RESTARTING and task.token is not None:
                self.channels.ready.put_nowait(TryUnwanted(task.token, task.reason))
            elif task.state in SLOT_TASK_STATES:
                # It may never have been launched. A token starts one try at most, so launching it again does no harm.
                self.launch(task)
                if unwanted := unwanted_try(task):
                    # The scheduler that stopped the run may have died before it announced that.
                    self.channels.ready.put_nowait(TryUnwanted(*unwanted))

    def tell_of_takeover(self, dag_ids: Iterable[str]) -> None:
        """Ask for other schedulers' use of the limits to be read again: this scheduler has taken over part of it."""
        self.channels.limits.offer(PoolsChanged())
        for dag_id in sorted(dag_ids):
            self.channels.limits.offer(DagChanged(dag_id))

    def end_strays(self, held: Held, awaited: Collection[str]) -> None:
        """Order the end of the tasks' tries that an executor still holds and no task instance waits for any more."""
        for token in sorted(held.starting | held.running):
            if token not in awaited and not is_callback_token(token) and key_of_token(token) is None:
                self.channels.ready.put_nowait(TryUnwanted(token, NOT_AWAITED))

    def end_tries(self, tokens: Iterable[str], tasks: Iterable[ActiveTask] = ()) -> None:
        """Order the end of a run's known tries, except those that its task instances still wait for."""
        kept = {task.token for task in tasks if task.state in SLOT_TASK_STATES - {State.RESTARTING}}
        for token in tokens:
            if token not in kept:
                self.channels.ready.put_nowait(TryUnwanted(token, NOT_AWAITED))

    def kill_triggers(self, trigger_ids: Iterable[str]) -> None:
        """Order the kill of triggers whose task instances a request, which is stored, has ended or cleared."""
        for trigger_id in trigger_ids:
            self.channels.triggers.put_nowait(TriggerUnwanted(trigger_id, is_killed=True))

    def launch(self, task: ActiveTask) -> None:
        """Order the start of a task instance's try, under the token that it was given."""
        self.channels.ready.put_nowait(TaskReady(task.run.id, task_launch(task, self.max_map_length)))

    def announce_wanted_triggers(self, pending: PendingBatch) -> None:
        """Send the batch's wanted triggers to the triggerer before the batch is stored, and drop them from it.

        Those that are unwanted in the end stay: a host forgets the outcome of such a trigger, so its task must have
        ended first.
        """
        unwanted: dict[str, TriggerUnwanted] = {}
        for message in pending.triggers:
            if isinstance(message, TriggerWanted):
                unwanted.pop(message.trigger.id, None)  # its run was released, and taken up again
                self.channels.triggers.put_nowait(message)
            else:
                unwanted[message.trigger_id] = message
        pending.triggers[:] = unwanted.values()

    def _acknowledge(self, pending: PendingBatch, stale: Stale) -> None:
        """Acknowledge stored ends; an end whose decision was stale is put back, to be decided again."""
        stored = []
        for event, task in pending.ends:
            if task is not None and is_stale(task, stale):
                self.channels.reports.put_nowait(TryReported(event))
            else:
                stored.append(event.token)
        if stored:
            self.channels.ready.put_nowait(TriesStored(tuple(stored)))

    def _announce_ends(self, pending: PendingBatch, stale: Stale) -> None:
        for run in pending.ended_runs:
            if run.id in stale.runs:
                continue
            ended = RunEnded(run.key, run.state)
            self.channels.run_ends.put_nowait(ended)
            self.channels.dag_changes.offer(ended)
            log.info("run.ended", dag_id=run.key.dag_id, run_id=run.key.run_id, state=run.state, **_facts_of_run(run))

    def _warn_of_obstacles(self, pending: PendingBatch) -> None:
        """Warn of ready tasks that cannot start, once for each DAG and reason."""
        held: dict[tuple[str, str], list[ActiveTask]] = {}
        for task in pending.tasks.values():
            # A ready task may have another reason: why its last try was handed back.
            if task.state is State.SCHEDULED and task.reason and (obstacle := self.obstacle(task.route)):
                held.setdefault((task.run.key.dag_id, obstacle), []).append(task)
        for (dag_id, obstacle), tasks in held.items():
            others = {"n_tasks": len(tasks)} if len(tasks) > 1 else {}
            log.warning(
                "task.cannot_start", dag_id=dag_id, run_id=tasks[0].run.key.run_id, task_id=tasks[0].task_id,
                reason=obstacle, **others,
            )  # fmt: skip


def _facts_of_run(run: ActiveRun) -> dict[str, Any]:
    """Return the fields that the log shows of a run that has ended."""
    facts: dict[str, Any] = {"reason": run.reason, "n_tasks": sum(map(len, run.instances.values()))}
    if run.started_at is not None and run.ended_at is not None:
        facts["seconds"] = round((run.ended_at - run.started_at).total_seconds(), 3)
    return facts


def is_stale(task: ActiveTask, stale: Stale) -> bool:
    """Whether a batch's change of a task instance was not stored."""
    return task.run.id in stale.runs or task.row_key in stale.tasks


def lost_tries(tasks: Iterable[ActiveTask], held: Held, boot_mark: str, now: datetime) -> Iterator[Ended]:
    """Yield the end of each try that began, or may have begun, and that the executor does not know.

    A queued try may have begun if it was submitted before the machine was started: the record of that may be lost.

    Args:
        boot_mark: The prefix of the tokens given since the machine was started.
    """
    for task in tasks:
        if task.token is None or task.token in held.known:
            continue
        if task.state in (State.RUNNING, State.RESTARTING):
            reason = "the try was lost: its keeper is gone, and left no record of its end"
        elif task.state is State.QUEUED and not task.token.startswith(boot_mark):
            reason = "the try was not submitted since the machine was started: it may have begun before that"
        else:
            continue
        yield Ended(task.token, "failed", now, task.started_at, reason, cause="machine")
