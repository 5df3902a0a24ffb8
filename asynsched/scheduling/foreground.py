"""One run of a DAG in this process, task after task: `DAG.test()`.

The rules are the scheduler's own; what a scheduler adds (a database, processes, limits, waiting for a retry's delay)
is left out.
"""

import datetime as dt
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from asynsched.authoring.context import CurrentContext, build_context
from asynsched.authoring.dag import DAG
from asynsched.authoring.dag_run import RunFacts
from asynsched.authoring.execution import TaskResult, run_callbacks
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.params import ParamsDict, resolve_params
from asynsched.authoring.supervisor import Supervisor, current_supervisor, set_supervisor
from asynsched.authoring.task_instance import TaskInstanceFacts
from asynsched.authoring.timezone import coerce_datetime, convert_to_utc, utcnow
from asynsched.scheduling.foreground_logs import LogsOnTerminal
from asynsched.scheduling.foreground_try import TryEnd, attempt
from asynsched.scheduling.memory_supervisor import MemorySupervisor
from asynsched.scheduling.rules.branching import skipped_by_branch, skipped_by_short_circuit
from asynsched.scheduling.rules.run_state import RunEndCause, TaskEnd, decide_run_state
from asynsched.scheduling.rules.run_stop import failing_fast
from asynsched.scheduling.rules.trigger_rule import UpstreamCounts, evaluate
from asynsched.scheduling.structure import DagStructure, compile_structure
from asynsched.serialization.encode import serialize_dag
from asynsched.states import FINISHED_TASK_STATES, DagRunState, DagRunType, TaskInstanceState

log = logging.getLogger("asynsched.test")


@dataclass(slots=True)
class ForegroundTask:
    """A task of such a run. `result` is what it returned, None for nothing; `exception` is why it failed."""

    task_id: str
    state: str | None = None
    reason: str = ""
    try_number: int = 0
    result: Any = None
    exception: BaseException | None = None


@dataclass(slots=True)
class ForegroundRun:
    """Such a run; `tasks` are in topological order."""

    dag_id: str
    run_id: str
    state: str = DagRunState.RUNNING
    reason: str = ""
    tasks: tuple[ForegroundTask, ...] = ()

    def task(self, task_id: str) -> ForegroundTask:
        """Return a task by its id. Raises KeyError."""
        return {task.task_id: task for task in self.tasks}[task_id]


def run_in_foreground(
    dag: DAG,
    *,
    run_after: dt.datetime | None = None,
    logical_date: dt.datetime | None = None,
    conf: Mapping[str, Any] | None = None,
    mark_success_pattern: str | None = None,
    variables: Mapping[str, str] | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
) -> ForegroundRun:
    """Run all tasks of a DAG once, in this process, with logs on the terminal.

    Args:
        dag: The DAG.
        run_after: The run's `run_after`; now, unless given.
        logical_date: The run's logical date, None for a run without one.
        conf: The run's conf.
        mark_success_pattern: Tasks whose whole task_id matches this regular expression succeed without running.
        variables: Variables that tasks may read, before those of the home that `ASYNSCHED_HOME` names.
        connections: Connections that tasks may use, before those of the home: their fields, by conn_id.

    Raises:
        DagError: The DAG is not coherent, or the conf does not fit its params. Nothing has run then.
    """
    for task_params in (ParamsDict(), *(task.params for task in dag.tasks)):
        resolve_params(dag.params, task_params, conf, owner=f"the conf of DAG {dag.dag_id!r}")
    facts = _run_facts(dag, convert_to_utc(run_after) or utcnow(), convert_to_utc(logical_date, dag.timezone), conf)
    earlier = current_supervisor()
    with ExitStack() as stack:
        stack.callback(set_supervisor, earlier)
        names = _names_of_home(stack) if earlier is None else earlier
        supervisor = MemorySupervisor(variables or {}, connections or {}, names)
        set_supervisor(supervisor)
        stack.enter_context(LogsOnTerminal())
        return _Foreground(dag, facts, supervisor, mark_success_pattern).run()


def _names_of_home(stack: ExitStack) -> Supervisor | None:
    if not os.environ.get("ASYNSCHED_HOME"):
        return None
    from asynsched.scheduling.stored_names import names_of_home  # it loads the database

    names = names_of_home(os.environ)
    if names is not None:
        stack.callback(names.close)
    return names


def _run_facts(
    dag: DAG, run_after: dt.datetime, logical_date: dt.datetime | None, conf: Mapping[str, Any] | None
) -> RunFacts:
    interval = None
    if logical_date is not None:
        interval = dag.timetable.infer_manual_data_interval(run_after=logical_date)
    return RunFacts(
        dag_id=dag.dag_id,
        run_id=f"{DagRunType.MANUAL}__{(logical_date or run_after).isoformat()}",
        run_type=DagRunType.MANUAL,
        run_after=run_after,
        logical_date=logical_date,
        data_interval_start=None if interval is None else interval.start,
        data_interval_end=None if interval is None else interval.end,
        started_at=utcnow(),
        conf=conf,
    )


@dataclass(slots=True)
class _Progress:
    """Where the run stands."""

    structure: DagStructure
    tasks: dict[str, ForegroundTask] = field(default_factory=dict)
    counts: dict[str, UpstreamCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for task_id, upstream in self.structure.upstream.items():
            n_setups = sum(self.structure.tasks[name].is_setup for name in upstream)
            self.tasks[task_id] = ForegroundTask(task_id)
            self.counts[task_id] = UpstreamCounts(total=len(upstream), n_setups=n_setups)

    def settle(self, task_id: str, state: TaskInstanceState, reason: str) -> None:
        """Note how a task ended, for those that follow it."""
        task = self.tasks[task_id]
        task.state, task.reason = state, reason
        log.info("task %s: %s%s", task_id, state, f" ({reason})" if reason else "")
        for after in self.structure.downstream[task_id]:
            self.counts[after].add(state, is_setup=self.structure.tasks[task_id].is_setup)

    def skip(self, task_ids: frozenset[str], reason: str) -> None:
        """Skip tasks that have not ended."""
        for task_id in sorted(task_ids, key=self.structure.position.__getitem__):
            if self.tasks[task_id].state is None:
                self.settle(task_id, TaskInstanceState.SKIPPED, reason)


class _Foreground:
    def __init__(self, dag: DAG, facts: RunFacts, supervisor: MemorySupervisor, mark_success: str | None) -> None:
        self._dag = dag
        self._facts = facts
        self._supervisor = supervisor
        self._mark_success = None if mark_success is None else re.compile(mark_success)
        self._progress = _Progress(compile_structure(serialize_dag(dag)))

    def run(self) -> ForegroundRun:
        progress = self._progress
        log.info("run %s of DAG %s", self._facts.run_id, self._dag.dag_id)
        # In topological order, every upstream of a task has ended when its turn comes.
        for task_id in progress.structure.tasks:
            if progress.tasks[task_id].state is None:
                self._take_turn(self._dag.get_task(task_id))
        run = ForegroundRun(self._dag.dag_id, self._facts.run_id, tasks=tuple(progress.tasks.values()))
        deciding = progress.structure.deciding
        verdict = decide_run_state(
            TaskEnd(task.task_id, _state(task), task.task_id in deciding, task.state not in FINISHED_TASK_STATES)
            for task in run.tasks
        )
        if verdict is not None:
            run.state, run.reason = verdict.state, verdict.reason
        log.info("run %s: %s (%s)", run.run_id, run.state, run.reason)
        self._call_back_dag(run, None if verdict is None else verdict.cause)
        return run

    def _take_turn(self, task: BaseOperator) -> None:
        verdict = evaluate(task.trigger_rule, self._progress.counts[task.task_id])
        if verdict.settle_as is not None:
            self._progress.settle(task.task_id, verdict.settle_as, verdict.reason)
        elif not verdict.met:
            self._progress.tasks[task.task_id].reason = verdict.reason
        elif self._mark_success is not None and self._mark_success.fullmatch(task.task_id):
            self._progress.settle(task.task_id, TaskInstanceState.SUCCESS, "marked, not run")
        else:
            self._run_task(task)

    def _run_task(self, task: BaseOperator) -> None:
        noted = self._progress.tasks[task.task_id]
        self._supervisor.running_task = task.task_id
        while True:
            noted.try_number += 1
            end = attempt(task, self._context_maker(task, noted.try_number))
            if end.state is not TaskInstanceState.FAILED or not end.retry or noted.try_number > task.retries:
                break
            log.warning(
                "task %s: try %d failed, and is retried at once: %s", task.task_id, noted.try_number, end.reason
            )
            self._call_back(task, "on_retry", end)
        noted.exception = end.exception
        if end.result is not None and end.result.value is not None:
            noted.result = self._supervisor.keep_result(task.task_id, end.result.value)
        self._progress.settle(task.task_id, end.state, end.reason)
        self._skip_downstream(task, end.result)
        if end.state is TaskInstanceState.FAILED and self._dag.fail_fast:
            given_up = (found.task_id for found in self._dag.tasks if not found.is_teardown)
            self._progress.skip(frozenset(given_up), failing_fast(task.task_id).reason)
        self._call_back(task, _EVENTS[end.state], end)

    def _context_maker(self, task: BaseOperator, try_number: int) -> Callable[[dt.datetime | None], Any]:
        def make(rescheduled_since: dt.datetime | None) -> Any:
            facts = TaskInstanceFacts(
                try_number=try_number,
                max_tries=task.retries,
                started_at=utcnow(),
                reschedule_started_at=rescheduled_since,
                test_mode=True,
            )
            return build_context(task, self._facts, facts)

        return make

    def _skip_downstream(self, task: BaseOperator, result: TaskResult | None) -> None:
        structure = self._progress.structure
        if result is not None and result.follow is not None:
            skipped = skipped_by_branch(task.task_id, result.follow, structure.downstream)
            self._progress.skip(skipped, f"branch {task.task_id} followed others")
        if result is not None and result.short_circuit is not None:
            skipped = skipped_by_short_circuit(
                task.task_id,
                structure.downstream,
                structure.teardowns,
                ignore_downstream_trigger_rules=result.short_circuit,
            )
            self._progress.skip(skipped, f"the condition of {task.task_id} was false")

    def _call_back(self, task: BaseOperator, event: str, end: TryEnd) -> None:
        callbacks = getattr(task, f"{event}_callback")
        if callbacks and end.context is not None:
            ti = end.context["ti"]
            ti.state = "up_for_retry" if event == "on_retry" else str(end.state)
            ti.end_date = coerce_datetime(utcnow())
            end.context["reason"] = end.reason
            if end.state is TaskInstanceState.FAILED:
                end.context["exception"] = end.exception
            with CurrentContext(end.context):
                run_callbacks(callbacks, end.context, task)

    def _call_back_dag(self, run: ForegroundRun, cause: RunEndCause | None) -> None:
        event = "on_success" if run.state == DagRunState.SUCCESS else "on_failure"
        callbacks = getattr(self._dag, f"{event}_callback")
        if callbacks and run.tasks:
            last = self._dag.get_task(run.tasks[-1].task_id)
            context = self._context_maker(last, 1)(None)
            context["reason"] = cause
            context["dag_run"].state = str(run.state)
            with CurrentContext(context):
                run_callbacks(callbacks, context, last)


_EVENTS = {
    TaskInstanceState.SUCCESS: "on_success",
    TaskInstanceState.SKIPPED: "on_skipped",
    TaskInstanceState.FAILED: "on_failure",
}


def _state(task: ForegroundTask) -> TaskInstanceState | None:
    return None if task.state is None else TaskInstanceState(task.state)
