"""Drives the scheduler's own evaluation through one run, whose tries run in this process, one after the other.

Less than a scheduler does: nothing is stored, a retry does not wait for its delay, and the run has no time limit.
"""

import itertools
import logging
import os
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import msgspec

from asynsched.authoring.dag import DAG
from asynsched.authoring.running.context import Context, CurrentContext
from asynsched.authoring.running.dag_run import RunFacts
from asynsched.authoring.running.execution import run_callbacks
from asynsched.authoring.running.task_instance import TaskInstanceFacts
from asynsched.authoring.running.try_context import build_context
from asynsched.authoring.timezone import coerce_datetime, utcnow
from asynsched.foreground.attempt import TryEnd, attempt, failed
from asynsched.foreground.environment import environment_of
from asynsched.foreground.interruption import Interruption
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion, Ended, EndState, Started
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.scheduling.evaluation.ready_queues import ReadyQueues
from asynsched.scheduling.evaluation.run_limits import RunLimits
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.runs.changes import CallbackRow
from sandbox.running.try_outcome import Span, of_result

log = logging.getLogger("asynsched.test")
AT_ONCE = 1
"""Tries that run at the same time."""


class ForegroundDriver:
    """One run of a DAG.

    Args:
        dag: The DAG.
        facts: Its run.
        supervisor: Keeps what the tasks return.
        mark_success: Tasks whose whole task_id matches this regular expression succeed without running.
        interruption: What may have ended the run, though the code of a task has gone on.

    Attributes:
        ends: How the last try of each task instance ended, by task_id and map index.
        results: What each returned.

    Raises:
        DagError: The DAG is not coherent.
    """

    def __init__(
        self,
        dag: DAG,
        facts: RunFacts,
        supervisor: MemorySupervisor,
        mark_success: str | None,
        interruption: Interruption | None = None,
    ) -> None:
        self._dag = dag
        self._facts = facts
        self._supervisor = supervisor
        self._mark_success = None if mark_success is None else re.compile(mark_success)
        self._interruption = interruption or Interruption()
        self._pending = PendingBatch("foreground", 1)
        serialized = msgspec.structs.replace(serialize_dag(dag), dagrun_timeout=None)
        self._evaluation = _evaluation(serialized, self._pending)
        self.run = _active_run(serialized, facts)
        self.ends: dict[tuple[str, int], TryEnd] = {}
        self.results: dict[tuple[str, int], Any] = {}

    def drive(self) -> None:
        """Take the run to its end."""
        self._evaluation.start_run(self.run, utcnow())
        while granted := self._step():
            for task in granted:
                self._interruption.check()
                self._try(task)
                self._interruption.check()

    def _step(self) -> list[ActiveTask]:
        """Take in what has happened, and return what is to run next: nothing when the run is over, or is stuck."""
        while True:
            self._evaluation.grant(utcnow())
            granted = list(self._pending.granted)
            self._say_what_ended()
            callbacks = list(self._pending.callbacks)
            self._pending.mark_stored()
            self._pending.clear()
            for row in callbacks:
                self._call_back(row)
            due = self._evaluation.next_timer
            if granted or due is None or self.run.state is not DagRunState.RUNNING:
                return granted
            self._wait(due)
            self._evaluation.time_passed(max(due, utcnow()))

    def _wait(self, due: datetime) -> None:
        """Wait for a sensor that is to look again; a retry is not waited for."""
        if not any(task.state is TaskInstanceState.UP_FOR_RETRY for task in self.run.all_instances()):
            time.sleep(max(0.0, (due - utcnow()).total_seconds()))

    def _say_what_ended(self) -> None:
        for task in self._pending.tasks.values():
            if task.is_finished:
                log.info("task %s: %s%s", _name(task), task.state, f" ({task.reason})" if task.reason else "")
            elif task.state is TaskInstanceState.UP_FOR_RETRY:
                log.warning("task %s: try %d failed: %s", _name(task), task.try_number, task.reason)

    def _try(self, task: ActiveTask) -> None:
        token, started_at, looked_since = task.token or "", utcnow(), task.started_at
        self._evaluation.try_started(Started(token, started_at, os.getpid()), started_at)
        if self._mark_success is not None and self._mark_success.fullmatch(task.task_id):
            ended = Ended(token, "success", utcnow(), started_at, "marked, not run")
        else:
            self._supervisor.running_task, self._supervisor.running_index = task.task_id, task.map_index
            end = attempt(self._dag.get_task(task.task_id), self._context_maker(task, looked_since))
            self.ends[task.task_id, task.map_index] = end
            try:
                ended = _ended(token, Span(started_at, utcnow()), end)
            except (TypeError, ValueError, RecursionError) as exc:
                # What it said of assets, or how it named its instance, cannot be passed on.
                end = self.ends[task.task_id, task.map_index] = failed(end, exc)
                ended = _ended(token, Span(started_at, utcnow()), end)
            self._keep_result(task, end)
        self._evaluation.try_ended(ended, utcnow())

    def _keep_result(self, task: ActiveTask, end: TryEnd) -> None:
        if end.result is not None and end.result.written is not None:
            kept = self._supervisor.keep_result(task.task_id, end.result.written, task.map_index)
            self.results[task.task_id, task.map_index] = kept

    def _context_maker(self, task: ActiveTask, looked_since: datetime | None = None) -> Callable[[], Context]:
        """Return what makes a task instance's context; `looked_since` is when a rescheduling sensor looked first."""

        def make() -> Context:
            facts = TaskInstanceFacts(
                map_index=task.map_index,
                try_number=max(task.try_number, 1),
                max_tries=task.max_tries,
                started_at=utcnow(),
                reschedule_started_at=looked_since,
                max_map_length=self._supervisor.max_map_length,
                test_mode=True,
            )
            return build_context(self._dag.get_task(task.task_id), self._facts, facts)

        return make

    def _call_back(self, row: CallbackRow) -> None:
        if not row.task_id:
            self._call_back_dag(row)
            return
        task = self.run.instance(row.task_id, row.map_index)
        end = self.ends.get((row.task_id, row.map_index))
        context = end.context if end is not None and end.context is not None else self._context_maker(task)()
        context["ti"].state = str(task.state)
        context["ti"].end_date = coerce_datetime(utcnow())
        context["reason"] = task.reason
        if end is not None and end.state is TaskInstanceState.FAILED:
            context["exception"] = end.exception
        operator = self._dag.get_task(row.task_id)
        with CurrentContext(context), environment_of(context):
            run_callbacks(getattr(operator, f"{row.event}_callback"), context, operator)

    def _call_back_dag(self, row: CallbackRow) -> None:
        last = self._dag.topological_sort()[-1]
        context = self._context_maker(ActiveTask(self.run, self.run.structure.tasks[last.task_id]))()
        context["reason"] = row.reason
        context["dag_run"].state = str(self.run.state)
        with CurrentContext(context), environment_of(context):
            run_callbacks(getattr(self._dag, f"{row.event}_callback"), context, last)


def _evaluation(dag: SerializedDag, pending: PendingBatch) -> Evaluation:
    queues = ReadyQueues(AT_ONCE)
    queues.resize_pools({task.pool: None for task in dag.tasks})
    numbers = itertools.count()
    return Evaluation(
        queues=queues,
        limits=RunLimits(AT_ONCE),
        pending=pending,
        new_token=lambda: f"try-{next(numbers)}",
        max_machine_kills=0,
    )


def _active_run(dag: SerializedDag, facts: RunFacts) -> ActiveRun:
    return ActiveRun(
        id=1,
        key=DagRunKey(facts.dag_id, facts.run_id),
        structure=compile_structure(dag),
        code=CodeVersion("", ""),
        version_id=1,
        run_type=facts.run_type,
        run_after=facts.run_after,
        queued_at=facts.started_at or facts.run_after,
        logical_date=facts.logical_date,
        data_interval_start=facts.data_interval_start,
        data_interval_end=facts.data_interval_end,
        conf=dict(facts.conf or {}),
    )


def _ended(token: str, span: Span, end: TryEnd) -> Ended:
    name = None if end.context is None else end.context["ti"].rendered_map_index
    if end.result is not None:
        return msgspec.structs.replace(of_result(token, span, end.result, name), reason=end.reason)
    state = cast("EndState", str(end.state))
    return Ended(
        token, state, span.ended_at, span.started_at, end.reason, retry=end.retry, rendered_map_index=name,
        reschedule_at=end.again_at,
    )  # fmt: skip


def _name(task: ActiveTask) -> str:
    return task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"
