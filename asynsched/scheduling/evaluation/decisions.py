"""Decisions after an event or an upstream's end: functions of a run in its present state, which return changes.

Nothing here changes anything or reads a clock. Each function looks at one task instance and at the counters of its run,
however many tasks the run has; a decision about all instances, such as a stop, is a series of steps.

Source: Apache Airflow's `TaskMap.expand_mapped_task` and `DagRun._revise_map_indexes_if_mapped` for mapped tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from asynsched.errors import StoreError
from asynsched.protocol.messages import CausingTry, Ended, Route, Started, TriggerOutcome
from asynsched.scheduling.evaluation.changes import (
    Change,
    Expanded,
    Killed,
    NewInstances,
    Row,
    RunChange,
    Stopped,
    StoredDeferral,
    TaskChange,
    TryResult,
)
from asynsched.scheduling.evaluation.run import MOST_INSTANCES, WAITING, ActiveRun, ActiveTask
from asynsched.scheduling.rules.assets import updates_of
from asynsched.scheduling.rules.branching import Skips, not_previously_skipped, skips_of
from asynsched.scheduling.rules.clearing import EMPTIED_BY_CLEAR
from asynsched.scheduling.rules.past_depends import past_depends, within_task_dates
from asynsched.scheduling.rules.run_end import RunStop, RunVerdict, decide_run_state, failing_fast, on_stop, stopped_try
from asynsched.scheduling.rules.trigger_rule import evaluate, evaluate_setups, mapped_upstream
from asynsched.scheduling.rules.try_end import EMPTY_TASK, after_try, retry_jitter_seed, tries_at_end
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import CallbackEvent
from asynsched.states import FINISHED_TASK_STATES, PARKED_TASK_STATES, SLOT_TASK_STATES, DagRunState
from asynsched.states import TaskInstanceState as State
from asynsched.store.assets import AssetEventRow
from asynsched.store.rows import check_name
from asynsched.store.runs.transitions import RenderedFieldsWrite, XComDeletion, XComWrite
from asynsched.store.runs.xcoms import LONGEST_KEY
from asynsched.store.schema import CallbackRequest, HistoryRow
from asynsched.timetables.partitions import check_events_of_try

SKIPMIXIN_KEY = "skipmixin_key"
"""XCom key (Airflow's name) of a branch's or short circuit's decision, which still holds when a task that it skipped is
cleared."""
Obstacle = Callable[[Route], str]
"""Returns why a try can never start with the present pools and executors; empty if it can."""


# Dependencies, without limits such as pools


def verdict_of(task: ActiveTask) -> Verdict:
    """Return whether a task instance may start: the first verdict that ends it, else the first that is not met."""
    held: Verdict | None = None
    for name, dependency in DEPENDENCIES.items():
        if name in task.ignored:
            continue
        verdict = dependency(task)
        if verdict.ends_as is State.SKIPPED and not may_be_skipped(task):
            return Verdict(met=False, reason=f"to be skipped, but first: {_past(task).reason}")
        if verdict.ends_as is not None:
            return verdict
        if not verdict.met and held is None:
            held = verdict
    return held or MET


def may_be_skipped(task: ActiveTask) -> bool:
    """Whether a task instance need not wait for its past before it is skipped."""
    return not task.task.wait_for_past_depends_before_skipping or _past(task).met


def _mapped_upstream(task: ActiveTask) -> Verdict:
    sources = task.run.structure.map_sources[task.task_id]
    if not sources:
        return MET
    unexpanded = (task.run.instances[source].get(-1) for source in sources)
    return mapped_upstream([source.state for source in unexpanded if source is not None])


def _previously_skipped(task: ActiveTask) -> Verdict:
    decisions = {}
    for upstream_id in task.run.structure.deciders[task.task_id]:
        instances = task.run.instances[upstream_id]
        upstream = instances.get(task.map_index) or instances.get(-1)
        if upstream is not None and upstream.is_finished:
            decisions[upstream_id] = upstream.skips
    return not_previously_skipped(task.task_id, decisions)


def _setups(task: ActiveTask) -> Verdict:
    setups = task.run.ends_of(task).setups
    return evaluate_setups(setups, map_index=task.map_index) if setups.total else MET


def _teardown_scope(task: ActiveTask) -> Verdict:
    for other in task.run.structure.scopes.get(task.task_id, ()):
        if task.run.unfinished_of[other] and not all(one.is_finished for one in task.run.instances_beside(task, other)):
            reason = f"it is a teardown, and the task {other} after its setup has not ended"
            return Verdict(met=False, reason=reason)
    return MET


def _past(task: ActiveTask) -> Verdict:
    return past_depends(task.task, task.run.past.get(task.task_id))


DEPENDENCIES: dict[str, Callable[[ActiveTask], Verdict]] = {
    "task_dates": lambda task: within_task_dates(task.task, task.run.logical_date, task.run.run_type),
    "mapped_upstream": _mapped_upstream,
    "previously_skipped": _previously_skipped,
    "setups": _setups,
    "trigger_rule": lambda task: evaluate(
        task.task.trigger_rule, task.run.ends_of(task).direct, map_index=task.map_index
    ),
    "teardown_scope": _teardown_scope,
    "depends_on_past": _past,
}
"""Every dependency by name, in the order in which they decide."""
IGNORABLE = frozenset(DEPENDENCIES) - {"mapped_upstream"}
"""The dependencies that forcing a task may ignore. Without its mapped upstream, a mapped task has no instances."""


# Waiting task instances


def examine(task: ActiveTask, obstacle: Obstacle, now: datetime) -> Sequence[Change]:
    """Return the changes of a task instance after a dependency has changed; none while it still waits."""
    # First, because the numbers of instances decide which upstream instances it depends on. It is examined again then.
    if task.task_id in task.run.to_be_remapped and (changes := _refit(task, now)):
        return changes
    if task.state not in WAITING:
        return ()
    verdict = verdict_of(task)
    if verdict.ends_as is not None:
        return (_end_as(task, verdict.ends_as, verdict.reason, now),)
    if not verdict.met:
        return ()
    if task.is_unexpanded:
        return (_expansion(task, now),)
    if task.task.is_empty:
        return (_empty_success(task, now),)
    return (ready(task, obstacle, now),)


def _empty_success(task: ActiveTask, now: datetime) -> TaskChange:
    """Return the success of an empty task, which counts as a try, as in Airflow."""
    number = task.try_number + 1
    return _change(
        task, State.SUCCESS, EMPTY_TASK, try_number=number, started_at=now, ended_at=now, scheduled_at=now
    )  # fmt: skip


def _change(
    task: ActiveTask,
    state: State | None,
    reason: str = "",
    *,
    rows: tuple[Row, ...] = (),
    result: TryResult | None = None,
    **values: Any,
) -> TaskChange:
    """Return the change of a task instance, as it is now, into a state, with the values of its other fields."""
    return TaskChange(task, task.state, task.token, state, reason, values, rows, result)


def ready(task: ActiveTask, obstacle: Obstacle, now: datetime, **values: Any) -> TaskChange:
    """Make a task instance wait for room: where the version says, unless its try goes on after a trigger."""
    if task.state is State.UP_FOR_RETRY:
        values["started_at"] = None
    # A deferred try keeps its route, whatever a later version says: it may have slots there.
    route = task.route if task.state in PARKED_TASK_STATES else task.route_after(task.try_number)
    if route is not task.route:
        values |= {"route": route, "limits": None}
    return _change(task, State.SCHEDULED, obstacle(route), scheduled_at=now, **values)


def of_next_try(task: ActiveTask, obstacle: Obstacle, now: datetime) -> TaskChange:
    """Make a task instance whose retry or poke is due wait for room; or for its dependencies, if they changed."""
    verdict = verdict_of(task)
    if verdict.met:
        return ready(task, obstacle, now)
    started_at = None if task.state is State.UP_FOR_RETRY else task.started_at
    return _change(task, None, verdict.reason, started_at=started_at, next_try_at=None)


def _end_as(task: ActiveTask, state: State, reason: str, now: datetime) -> TaskChange:
    """End a task instance without a try. One that waited, such as for a retry, ends now; its last try ended before."""
    ended_at = task.ended_at if task.state in FINISHED_TASK_STATES else None
    n_tries = tries_at_end(task.state, task.try_number, task.started_at)
    return _change(task, state, reason, try_number=n_tries, ended_at=ended_at or now)


def _expansion(task: ActiveTask, now: datetime) -> TaskChange | Expanded:
    n_instances = task.run.map_count(task.task_id)
    if n_instances is None:
        sources = ", ".join(task.run.structure.map_sources[task.task_id])
        reason = f"there is nothing to map over: of {sources}, not all have returned values that can be mapped over"
        return _end_as(task, State.UPSTREAM_FAILED, reason, now)
    if n_instances == 0:
        return _end_as(task, State.SKIPPED, "it is mapped over nothing", now)
    if n_instances > MOST_INSTANCES:
        return _end_as(task, State.FAILED, _too_many(n_instances), now)
    return Expanded(task.run, _instances(task, n_instances))


def _too_many(n_instances: int) -> str:
    return f"it would have {n_instances} instances, and may have {MOST_INSTANCES}: map it over fewer values"


def _instances(task: ActiveTask, n_instances: int) -> Iterator[Change | None]:
    """Make the instances of an unexpanded one. They become visible only when all are made, so a crash loses nothing."""
    made = []
    for map_index in range(n_instances):
        made.append(task.run.new_instance(task.task, map_index))
        yield None
    # A rule may have ended the unexpanded one meanwhile, or will: it is on the agenda then.
    if task.state in WAITING and (verdict := verdict_of(task)).met and verdict.ends_as is None:
        yield NewInstances(task.run, task.task_id, made, task)


def _refit(task: ActiveTask, now: datetime) -> list[Change]:
    """Fit a mapped task's number of instances to the present results; see `ActiveRun.to_be_remapped`.

    This happens once after a run was taken up, when all tasks that the task is mapped over have ended: they may have
    been cleared, and run again. A task that has ended by then stays as it is; one that it is mapped over may have
    decided to skip it.
    """
    run, task_id = task.run, task.task_id
    if not run.unfinished_of[task_id] or any(map(run.unfinished_of.get, run.structure.map_sources[task_id])):
        return []
    if run.stop is not None and on_stop(run.stop, task.task, None) == "skip":
        return []  # a new instance would begin after the stop
    n_instances = run.map_count(task_id)
    if n_instances is None:
        return [NewInstances(run, task_id, None)]
    instances = run.instances[task_id]
    if n_instances > MOST_INSTANCES:
        waiting = [found for found in instances.values() if found.state in WAITING]
        failed = [_end_as(found, State.FAILED, _too_many(n_instances), now) for found in waiting]
        return [*failed, NewInstances(run, task_id, None)]
    reason = f"it is mapped over {n_instances} values now"
    surplus = [found for index, found in instances.items() if index >= n_instances and found.state is not State.REMOVED]
    new = [run.new_instance(task.task, index) for index in range(n_instances) if index not in instances]
    return [*(_end_as(found, State.REMOVED, reason, now) for found in surplus), NewInstances(run, task_id, new)]


# Tries


def of_grant(task: ActiveTask, token: str, now: datetime) -> TaskChange:
    """Begin a try of a task instance that was granted its slots; unless it resumes, it finds no XComs of another.

    Source: Apache Airflow's `ti_run`, which returns the keys of the XComs to delete.
    """
    is_resumed = task.deferral is not None and task.deferral.outcome is not None
    rows = (XComDeletion(*task.row_key),) if task.token is not None and not is_resumed else ()
    return _change(
        task, State.QUEUED, rows=rows, try_number=task.try_number + 1, token=token, queued_at=now, ended_at=None,
        next_try_at=None,
    )  # fmt: skip


def of_refusal(task: ActiveTask) -> TaskChange:
    """Make a task instance wait again: its try was not stored, because other schedulers had taken the slots."""
    number = task.try_number - 1
    return _change(task, State.SCHEDULED, task.reason, try_number=number, token=None, queued_at=None)


def of_start(task: ActiveTask, event: Started) -> TaskChange:
    """User code of a try has begun."""
    return _change(task, State.RUNNING, started_at=task.started_at or event.started_at)


def of_end(
    task: ActiveTask, event: Ended, now: datetime, max_machine_kills: int, number: int | None = None
) -> list[Change]:
    """Return the changes that follow from the end of a try, beginning with its task instance's.

    Args:
        number: The number of the try, if it is not the task instance's `try_number`.
    """
    run, number = task.run, task.try_number if number is None else number
    goes_on = run.stop is None or on_stop(run.stop, task.task, task.state) == "nothing"
    if goes_on and task.state is State.RESTARTING:
        return [_restart(task, event)]
    event = _believed(event)
    if run.stop is not None:
        has_begun = task.state is State.RUNNING or event.started_at is not None
        event = stopped_try(run.stop, task.task, event, has_begun=has_begun)
    outcome = after_try(
        task.task,
        event,
        jitter_seed=retry_jitter_seed(run.key.dag_id, task.task_id, run.logical_date),
        try_number=number,
        max_tries=task.max_tries,
        machine_kills=task.machine_kills,
        max_machine_kills=max_machine_kills,
    )
    skips = None
    if event.decision is not None:
        skips = skips_of(event.decision, task.task_id, run.structure.downstream, run.structure.teardowns)
    changes: list[Change] = [_end(task, TryResult(task, number, event, outcome), skips, now)]
    if skips is not None:
        changes += _left_out(task, skips, now)
    if outcome.state is State.FAILED and run.structure.dag.fail_fast and run.stop is None:
        changes += of_stop(run, failing_fast(task.task_id), now)
    return changes


def _believed(event: Ended) -> Ended:
    """Return the end of a try; a failure if its outlet events cannot be stored: user code may have sent them."""
    if event.state != "success":
        return event
    try:
        check_events_of_try(
            [told.partition_key for told in event.outlet_events if told.partition_key],
            sum(1 for told in event.outlet_events if told.alias),
        )
    except ValueError as exc:
        return Ended(event.token, "failed", event.ended_at, event.started_at, f"its outlet events: {exc}")
    return event


def of_trigger(
    task: ActiveTask, outcome: TriggerOutcome, obstacle: Obstacle, now: datetime, max_machine_kills: int
) -> list[Change]:
    """Return the changes that follow from a trigger's outcome: its task resumes in a process, or ends without one."""
    assert task.deferral is not None
    ended = _end_of(outcome, now)
    if ended is None:
        return [ready(task, obstacle, now, deferral=StoredDeferral(task.deferral.deferral, outcome))]
    if problem := _unstorable(outcome.xcoms):
        ended, outcome = Ended(outcome.id, "failed", now, reason=problem, retry=False), TriggerOutcome("", "failed")
    rows = tuple(XComWrite(*task.row_key, name, _json(value), now) for name, value in outcome.xcoms.items())
    # The try ends here, without the process that would have counted it.
    first, *others = of_end(task, ended, now, max_machine_kills, task.try_number + 1)
    assert isinstance(first, TaskChange)
    return [msgspec.structs.replace(first, rows=rows + first.rows), *others]


def _unstorable(xcoms: Iterable[str]) -> str:
    """Return why XComs of these keys, which user code has chosen, cannot be stored; empty if they can.

    A row that the database refuses would hold up all others.
    """
    try:
        for key in xcoms:
            check_name("XCom key", key, LONGEST_KEY)
    except StoreError as exc:
        return f"the event of its trigger: {exc}"
    return ""


def _end_of(outcome: TriggerOutcome, now: datetime) -> Ended | None:
    """Return the end of a task instance that its trigger has ended; None when it goes on in a process."""
    reason = "its trigger has ended it"
    match outcome.kind:
        case "success" | "skipped" as state:
            return Ended(outcome.id, state, now, reason=reason)
        case "failed":
            return Ended(outcome.id, "failed", now, reason=reason, retry=False)
    return None


def after_end(stored: StoredDeferral | None, ended: Ended) -> StoredDeferral | None:
    """Return the deferral to keep after a try: a new one; the same if the try was only handed back; else None."""
    if ended.state == "deferred" and ended.deferral is not None:
        return StoredDeferral(ended.deferral)
    return stored if ended.cause == "interrupted" else None


def _restart(task: ActiveTask, event: Ended) -> TaskChange:
    """Move a killed try into the history, and make the task instance wait as if it were new."""
    started_at = task.started_at or event.started_at
    history = _history(task, task.try_number, task.reason, started_at=started_at, ended_at=event.ended_at)
    values: dict[str, Any] = dict.fromkeys(EMPTIED_BY_CLEAR) | {"skips": frozenset()}
    return _change(task, None, rows=(history, XComDeletion(*task.row_key)), **values)


def _end(task: ActiveTask, result: TryResult, skips: Skips | None, now: datetime) -> TaskChange:
    _, number, event, outcome = result
    started_at, ended_at = _span(task, event)
    values: dict[str, Any] = {
        "started_at": started_at,
        "ended_at": ended_at or (now if outcome.state in FINISHED_TASK_STATES else None),
        "next_try_at": outcome.next_try_at,
        "deferral": after_end(task.deferral, event),
        "try_number": number if outcome.counts else number - 1,
    }
    if outcome.by_machine:
        values["machine_kills"] = task.machine_kills + 1
        values["max_tries"] = task.max_tries + 1
    if event.rendered_map_index:
        values["rendered_map_index"] = event.rendered_map_index
    if outcome.state is State.SCHEDULED:
        values["scheduled_at"] = now
    if outcome.state is State.SUCCESS and event.return_value:
        values["result_length"] = -1 if event.result_length is None else event.result_length
    if skips is not None:
        values["skips"] = skips.task_ids
    rows = tuple(_rows_of_end(task, result, values, skips, now))
    return _change(task, outcome.state, outcome.reason, rows=rows, result=result, **values)


def _rows_of_end(
    task: ActiveTask, result: TryResult, values: Mapping[str, Any], skips: Skips | None, now: datetime
) -> Iterator[Row]:
    _, number, event, outcome = result
    key = task.row_key
    if outcome.is_retry:
        times = {"started_at": values["started_at"], "ended_at": values["ended_at"]}
        yield _history(task, number, outcome.reason, **times)
    if outcome.state is State.SUCCESS and event.return_value:
        yield XComWrite(*key, "return_value", bytes(event.return_value).decode(), now)
    if event.rendered_fields:
        yield RenderedFieldsWrite(*key, number, event.rendered_fields)
    if outcome.state is State.SUCCESS and task.task.outlets:
        for ordinal, update in enumerate(updates_of(task.task.outlets, event.outlet_events)):
            is_of_run = not update.partition_key or update.partition_key == task.run.partition_key
            yield AssetEventRow(
                update.name, update.uri, update.extra, now, update.aliases, update.group, update.asset_extra,
                task.run.id, *task.key, task.token, ordinal, update.partition_key or task.run.partition_key,
                task.run.partition_date if is_of_run else None, "on_asset_created" in task.run.structure.dag.callbacks,
            )  # fmt: skip
    if outcome.callback in task.task.callbacks:
        max_tries = values.get("max_tries", task.max_tries)
        about = CausingTry(max_tries, values["started_at"], values["ended_at"], event.exception)
        yield CallbackRequest(
            dag_run_id=task.run.id, task_id=task.task_id, map_index=task.map_index, try_number=number,
            event=outcome.callback, reason=outcome.reason, created_at=now, caused_by=_json(about),
        )  # fmt: skip
    if skips is not None:
        yield XComWrite(*key, SKIPMIXIN_KEY, _json({"skipped": sorted(skips.task_ids)}), now)


def _left_out(task: ActiveTask, skips: Skips, now: datetime) -> list[TaskChange]:
    """Skip the task instances that an ended branch or short circuit decided to leave out."""
    beside = task.run.instances_beside
    targets = [target for task_id in sorted(skips.task_ids) for target in beside(task, task_id)]
    return [
        _end_as(target, State.SKIPPED, skips.reason, now)
        for target in targets
        if _may_be_left_out(target, skips) and _all_leave_out(task, target, skips)
    ]


def _all_leave_out(task: ActiveTask, target: ActiveTask, skips: Skips) -> bool:
    """Return whether no instance of a mapped task may still choose what comes after all of them.

    In a mapped group, each instance decides for itself.
    """
    if task.task.map_length is None or skips.are_named:
        return True
    others = (other for other in task.run.instances[task.task_id].values() if other is not task)
    return all(other.is_finished and target.task_id in other.skips for other in others)


def _may_be_left_out(target: ActiveTask, skips: Skips) -> bool:
    is_open = not target.is_finished or target.state is State.UPSTREAM_FAILED
    return is_open and target.state not in SLOT_TASK_STATES and (skips.are_named or may_be_skipped(target))


def _span(task: ActiveTask, event: Ended) -> tuple[datetime | None, datetime | None]:
    """Return when a try began and ended.

    A try that a stop of the scheduler interrupted has neither time, and begins again. Its start is kept only if it is
    earlier than that try: a sensor's first look, or the start of the try that deferred.
    """
    started_at = task.started_at or event.started_at
    if event.cause != "interrupted":
        return started_at, event.ended_at
    is_older = started_at is not None and task.queued_at is not None and started_at < task.queued_at
    return (started_at if task.deferral is not None or is_older else None), None


def _history(task: ActiveTask, number: int, reason: str, **times: Any) -> HistoryRow:
    return HistoryRow(
        dag_run_id=task.run.id, task_id=task.task_id, map_index=task.map_index, try_number=number, state=State.FAILED,
        reason=reason, token=task.token, scheduled_at=task.scheduled_at, queued_at=task.queued_at,
        pool=task.route.pool, pool_slots=task.route.pool_slots, queue=task.route.queue, executor=task.route.executor,
        priority_weight=task.route.priority_weight, **times,
    )  # fmt: skip


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Runs


def of_stop(run: ActiveRun, stop: RunStop, now: datetime) -> Sequence[Stopped]:
    """Stop a run. A stop that fails the run is final: no other follows it."""
    return () if run.stop is not None and run.stop.fails_run else (Stopped(run, stop, _stopping(run, stop, now)),)


def _stopping(run: ActiveRun, stop: RunStop, now: datetime) -> Iterator[Change | None]:
    """Stop the task instances of a run one by one; a killed one ends when its try has ended."""
    for task in list(run.all_instances()):
        match on_stop(stop, task.task, task.state):
            case "kill":
                yield Killed(run, task.token or "", stop.reason)
            case "skip" | "fail" as end:
                yield _end_as(task, State.FAILED if end == "fail" else State.SKIPPED, stop.reason, now)
            case _:
                yield None


def time_is_over(run: ActiveRun, now: datetime) -> timedelta | None:
    """Return a run's `dagrun_timeout` if the run takes longer, else None.

    A run whose tasks have all ended in time does not fail because of anything else that it waits for.
    """
    timeout = timedelta(seconds=run.structure.dag.dagrun_timeout or 0)
    if not timeout or run.state is not DagRunState.RUNNING or run.started_at is None or not run.n_unfinished:
        return None
    return timeout if run.started_at + timeout <= now else None


def unwanted_try(task: ActiveTask) -> tuple[str, str] | None:
    """Return the token of a task instance's try if its run's stop kills it, with the reason; else None."""
    stop = task.run.stop
    if stop is None or task.token is None or on_stop(stop, task.task, task.state) != "kill":
        return None
    return task.token, stop.reason


_END_EVENTS: dict[DagRunState, tuple[CallbackEvent, CallbackEvent]] = {
    DagRunState.SUCCESS: ("on_success", "on_dag_run_success"),
    DagRunState.FAILED: ("on_failure", "on_dag_run_failed"),
}
"""The DAG's callback, and the event of listeners."""
_DECIDING = {DagRunState.SUCCESS: State.SUCCESS, DagRunState.FAILED: State.FAILED}
"""For each end of a run, the state of the task instances that decide it: the last one of them is its cause."""


def end_of_run(run: ActiveRun, now: datetime) -> Sequence[RunChange]:
    """Return the end of a run in which nothing can happen any more; nothing while it is under way."""
    if run.state is not DagRunState.RUNNING or not run.may_have_ended:
        return ()
    verdict = decide_run_state(run.ends(), run.structure.upstream)
    if verdict is None:
        return ()
    if run.stop is not None and run.stop.fails_run:
        verdict = RunVerdict(DagRunState.FAILED, run.stop.reason, "timed_out")
    callback, heard = _END_EVENTS[verdict.state]
    events = (heard,) if run.stop is not None and run.stop.is_by_hand else (callback, heard)
    rows = _callbacks_of(run, events, verdict.cause, now, _DECIDING[verdict.state])
    return (RunChange(run, run.state, verdict.state, verdict.reason, run.started_at, run.last_end(now), rows),)


def callbacks_of_start(run: ActiveRun, now: datetime) -> tuple[Row, ...]:
    """Return the requests for the listeners of a run that begins."""
    return _callbacks_of(run, ("on_dag_run_running",), "", now)


def _callbacks_of(
    run: ActiveRun, events: Iterable[CallbackEvent], reason: str, now: datetime, decided_by: State | None = None
) -> tuple[Row, ...]:
    """Return requests for the callbacks and listeners that a run's DAG has for these events.

    They are about the task instance in the state `decided_by` that ended last, if there is one, as in Airflow.
    """
    wanted = [event for event in events if event in run.structure.dag.callbacks]
    ended = [task for task in run.all_instances() if task.state is decided_by] if wanted and decided_by else []
    about = ""
    if ended:
        last = max(ended, key=lambda task: (task.ended_at or run.queued_at, task.key))
        about = _json(
            CausingTry(
                last.max_tries, last.started_at, last.ended_at, task_id=last.task_id, map_index=last.map_index,
                try_number=last.try_number, state=str(last.state),
            )
        )  # fmt: skip
    return tuple(
        CallbackRequest(dag_run_id=run.id, event=event, reason=reason, created_at=now, caused_by=about)
        for event in wanted
    )
