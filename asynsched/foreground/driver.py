"""Drives the scheduler's own evaluation through one run, whose tries run in this process one after another.

Unlike with a scheduler, nothing is stored, a retry starts at once, and the run has no time limit.
"""

import asyncio
import datetime as dt
import itertools
import logging
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import msgspec

from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import (
    AsynschedFailException,
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferred,
)
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.retry_policy import RetryAction, ask
from asynsched.authoring.running.context import Context, CurrentContext, context_variables
from asynsched.authoring.running.execution import TaskResult, execute, run_callbacks
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.running.try_context import build_context
from asynsched.authoring.supervisor import ask as ask_supervisor
from asynsched.authoring.timezone import coerce_datetime, utcnow
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.triggers.base import (
    TRIGGER_FAILURE,
    TRIGGER_TIMEOUT,
    BaseTaskEndEvent,
    Resumption,
    TriggerEvent,
    failed_resumption,
    first_event,
    make_trigger,
)
from asynsched.foreground.interruption import Interruption
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion, Ended, EndState, RunContext, Started, TaskInstanceFacts
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.schema import CallbackRequest
from sandbox.run import Span, of_result

log = logging.getLogger("asynsched.test")
AT_ONCE = 1
"""Tries that run at once."""


@dataclass(frozen=True, slots=True)
class TryEnd:
    """How a try ended.

    `retry` is False if the task asked to fail without a retry; `again_at` is when a sensor pokes again.
    """

    state: TaskInstanceState
    reason: str = ""
    retry: bool = True
    result: TaskResult | None = None
    exception: BaseException | None = None
    context: Context | None = None
    again_at: dt.datetime | None = None


class ForegroundDriver:
    """One run of a DAG.

    Args:
        dag: The DAG.
        facts: Its run.
        supervisor: Keeps the tasks' XComs.
        mark_success: Tasks whose whole task_id matches this regular expression succeed without running.
        interruption: Ends the run even if the code of a task has caught the KeyboardInterrupt.

    Attributes:
        ends: The end of the last try of each task instance, by task_id and map index.
        results: The results, likewise.

    Raises:
        DagError: The DAG is not coherent.
    """

    def __init__(
        self,
        dag: DAG,
        facts: RunContext,
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
        """Run the tasks until the run has ended."""
        self._evaluation.start_run(self.run, utcnow())
        while granted := self._step():
            for task in granted:
                self._interruption.check()
                self._try(task)
                self._interruption.check()

    def _step(self) -> list[ActiveTask]:
        """Apply the events so far, and return the task instances to run next; none if the run is over or stuck."""
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
        """Wait for the next poke of a sensor, but not for a retry."""
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
                # Its asset events, or the name of its instance, cannot be serialized.
                end = self.ends[task.task_id, task.map_index] = failed(end, exc)
                ended = _ended(token, Span(started_at, utcnow()), end)
            self._keep_result(task, end)
        self._evaluation.try_ended(ended, utcnow())

    def _keep_result(self, task: ActiveTask, end: TryEnd) -> None:
        if end.result is not None and end.result.written is not None:
            kept = self._supervisor.keep_result(task.task_id, end.result.written, task.map_index)
            self.results[task.task_id, task.map_index] = kept

    def _context_maker(self, task: ActiveTask, looked_since: datetime | None = None) -> Callable[[], Context]:
        """Return a function that makes a task instance's context; `looked_since`: the first poke of the sensor."""

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

    def _call_back(self, row: CallbackRequest) -> None:
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

    def _call_back_dag(self, row: CallbackRequest) -> None:
        last = self._dag.topological_sort()[-1]
        context = self._context_maker(ActiveTask(self.run, self.run.structure.tasks[last.task_id]))()
        context["reason"] = row.reason
        context["dag_run"].state = str(self.run.state)
        with CurrentContext(context), environment_of(context):
            run_callbacks(getattr(self._dag, f"{row.event}_callback"), context, last)


def _evaluation(dag: SerializedDag, pending: PendingBatch) -> Evaluation:
    ready = ReadyQueues(AT_ONCE, AT_ONCE)
    ready.resize_pools({task.pool: None for task in dag.tasks})
    numbers = itertools.count()
    return Evaluation(
        ready=ready,
        pending=pending,
        new_token=lambda: f"try-{next(numbers)}",
        max_machine_kills=0,
    )


def _active_run(dag: SerializedDag, facts: RunContext) -> ActiveRun:
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


def attempt(task: BaseOperator, make_context: Callable[[], Context]) -> TryEnd:
    """Run a task once, in this process, in the context that `make_context` returns."""
    with ExitStack() as environment:

        def make_known_context() -> Context:
            context = make_context()
            environment.enter_context(environment_of(context))  # until all is done that belongs to the try
            return context

        return _attempt(task, make_known_context)


def _attempt(task: BaseOperator, make_context: Callable[[], Context]) -> TryEnd:
    context: Context | None = None
    resumption: Resumption | None = None
    deferred: TaskDeferred | None = None
    while True:
        if deferred is not None:
            # Outside the `except`: its errors would be shown with the frames that led to the deferral.
            fired = wait_for_trigger(deferred)
            if isinstance(fired, BaseTaskEndEvent):
                return _ended_by(fired, context)
            resumption = fired
        try:
            context = make_context()
            with _interrupted_after(task.execution_timeout):
                return TryEnd(TaskInstanceState.SUCCESS, result=execute(task, context, resumption), context=context)
        except TaskDeferred as exc:
            log.info("task %s: %s", task.task_id, exc)
            deferred = exc
        except AsynschedRescheduleException as exc:
            log.info("task %s: %s", task.task_id, exc)
            state = TaskInstanceState.UP_FOR_RESCHEDULE
            return TryEnd(state, str(exc), context=context, again_at=exc.reschedule_date)
        except AsynschedSkipException as exc:
            return TryEnd(TaskInstanceState.SKIPPED, str(exc), exception=exc, context=context)
        except KeyboardInterrupt:
            if context is not None:
                _on_kill(context)
            raise
        except BaseException as exc:
            log.exception("task %s failed", task.task_id, exc_info=(type(exc), exc, user_frames(exc)))
            retry = not isinstance(exc, AsynschedFailException) and _policy_allows_retry(task, exc, context)
            return TryEnd(TaskInstanceState.FAILED, one_line(exc), retry, exception=exc, context=context)


def failed(end: TryEnd, exc: Exception) -> TryEnd:
    """Return the end of a try whose code returned, but whose result cannot be serialized."""
    return TryEnd(TaskInstanceState.FAILED, one_line(exc), exception=exc, context=end.context)


def _on_kill(context: Context) -> None:
    try:
        context["ti"].task.on_kill()
    except Exception:
        log.exception("on_kill failed")


def _ended_by(event: BaseTaskEndEvent, context: Context | None) -> TryEnd:
    for key, value in (event.xcoms or {}).items():
        ask_supervisor("xcom_push", key=key, value=to_transport(value, f"XCom {key!r} of the trigger's event"))
    state = TaskInstanceState(event.task_instance_state)
    return TryEnd(state, "its trigger has ended it", retry=False, context=context)


def _policy_allows_retry(task: BaseOperator, exc: BaseException, context: Context | None) -> bool:
    if task.retry_policy is None or context is None:
        return True
    return ask(task.retry_policy, exc, context).action != RetryAction.FAIL


@contextmanager
def _interrupted_after(limit: dt.timedelta | None) -> Iterator[None]:
    """Within, raise AsynschedTaskTimeout after a time; only in the main thread, which alone receives signals."""
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise AsynschedTaskTimeout(f"execution_timeout of {limit.total_seconds():g} s is over")

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit.total_seconds())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


@contextmanager
def environment_of(context: Context) -> Iterator[None]:
    """Within, set the `AIRFLOW_CTX_*` variables of a task."""
    variables = context_variables(context)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def wait_for_trigger(deferred: TaskDeferred) -> Resumption | BaseTaskEndEvent:
    """Run a trigger until it fires. Returns how the task goes on, or the event that ends it.

    All values are serialized as between processes, so that a value that cannot be is found here, too.
    """
    try:
        given = _carried(deferred.kwargs or {})
        event = asyncio.run(_first_event(deferred))
        payload = _carried(event.payload)
    except TimeoutError:
        return failed_resumption(TRIGGER_TIMEOUT, f"{deferred.trigger!r} did not fire within {deferred.timeout}")
    except Exception as exc:  # noqa: BLE001 - a trigger is user code
        # The task logs it when it resumes in order to fail.
        lines = traceback.format_exception(type(exc), exc, user_frames(exc))
        return failed_resumption(TRIGGER_FAILURE, one_line(exc), "".join(lines).splitlines())
    if isinstance(event, BaseTaskEndEvent):
        return event
    return Resumption(deferred.method_name, {**given, "event": payload})


async def _first_event(deferred: TaskDeferred) -> TriggerEvent:
    classpath, kwargs = deferred.trigger.serialize()
    seconds = None if deferred.timeout is None else deferred.timeout.total_seconds()
    async with asyncio.timeout(seconds):
        try:
            event = await first_event(make_trigger(classpath, _carried(kwargs)))
        except TimeoutError as exc:
            # An error of the trigger itself, like its others.
            raise RuntimeError(f"TimeoutError: {exc}") from exc
    return event


def _carried(value: Any) -> Any:
    return from_transport(to_transport(value))
