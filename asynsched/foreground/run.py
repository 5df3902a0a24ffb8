"""One run of a DAG in this process, task after task: `DAG.test()`.

The scheduler's own evaluation decides. Unlike with a scheduler, nothing is stored, the run has no time limit, and
retries start at once.
"""

import asyncio
import datetime as dt
import itertools
import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from asynsched.airflow import installation
from asynsched.airflow.alerts import callbacks_of
from asynsched.airflow.finder import served_in_program
from asynsched.airflow.local_filesystem import values_of_files
from asynsched.airflow.processes import patch_environ
from asynsched.authoring import exceptions
from asynsched.authoring.dag import DAG
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.params import ParamsDict, params_of_run, resolve_params
from asynsched.authoring.retry_policy import RetryAction, ask
from asynsched.authoring.running.context import Context, CurrentContext, context_variables
from asynsched.authoring.running.execution import TaskResult, execute, interrupted_after, run_callbacks
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.running.try_context import build_context
from asynsched.authoring.supervisor import Supervisor, current_supervisor, set_supervisor
from asynsched.authoring.supervisor import ask as ask_supervisor
from asynsched.authoring.timezone import coerce_datetime, to_utc, utcnow
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.triggers import base as triggers
from asynsched.authoring.triggers.shared_stream import SharedStreams
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.keys import DagRunKey
from asynsched.protocol.frames import ProtocolError
from asynsched.protocol.messages import (
    CausingTry,
    CodeVersion,
    Ended,
    EndState,
    RunContext,
    Started,
    TaskInstanceFacts,
)
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.store.schema import CallbackRequest
from sandbox.processes import flush_streams
from sandbox.run import Span, encode_message, failed_to_report, of_result

log = logging.getLogger("asynsched.test")


@dataclass(slots=True)
class ForegroundTask:
    """A task instance of a foreground run, with its result or the exception that made it fail."""

    task_id: str
    map_index: int = -1
    state: str | None = None
    reason: str = ""
    try_number: int = 0
    result: Any = None
    exception: BaseException | None = None
    rendered_map_index: str | None = None


@dataclass(slots=True)
class ForegroundRun:
    """A run in the foreground. `tasks` are in topological order, the instances of a mapped task by their index.

    The dates are pendulum DateTimes.
    """

    dag_id: str
    run_id: str
    state: str = DagRunState.RUNNING
    reason: str = ""
    tasks: tuple[ForegroundTask, ...] = ()
    run_type: str = DagRunType.MANUAL
    conf: dict[str, Any] = field(default_factory=dict)
    logical_date: dt.datetime | None = None
    data_interval_start: dt.datetime | None = None
    data_interval_end: dt.datetime | None = None
    start_date: dt.datetime | None = None
    end_date: dt.datetime | None = None

    def task(self, task_id: str, map_index: int = -1) -> ForegroundTask:
        """Return a task instance. Raises KeyError."""
        if (found := self.get_task_instance(task_id, map_index)) is None:
            raise KeyError((task_id, map_index))
        return found

    def get_task_instance(self, task_id: str, map_index: int = -1) -> ForegroundTask | None:
        """Return a task instance; None if there is none."""
        return next((task for task in self.tasks if (task.task_id, task.map_index) == (task_id, map_index)), None)

    def get_task_instances(self, state: str | Iterable[str | None] | None = None) -> list[ForegroundTask]:
        """Return the task instances, or those in a state, or in one of several."""
        states = [state] if isinstance(state, str) else None if state is None else list(state)
        return [task for task in self.tasks if states is None or task.state in states]


def run_in_foreground(
    dag: DAG,
    *,
    run_after: dt.datetime | None = None,
    logical_date: dt.datetime | None = None,
    conf: Mapping[str, Any] | None = None,
    mark_success_pattern: str | None = None,
    variable_file: str | None = None,
    connection_file: str | None = None,
    check_interruption: Callable[[], None] = lambda: None,
) -> ForegroundRun:
    """Run all tasks of a DAG once, in this process, with logs on the terminal.

    Args:
        run_after: The run's `run_after`; now, unless given.
        logical_date: The run's logical date, None for a run without one.
        mark_success_pattern: Tasks whose whole task_id matches this regular expression succeed without running.
        variable_file: A file of variables (JSON, YAML or `name=value` lines) that hide those of the home that
            `ASYNSCHED_HOME` names.
        connection_file: Such a file of connections.
        check_interruption: Raises KeyboardInterrupt if the run is to end, even if the code of a task has caught that.

    Raises:
        DagError: The DAG is not coherent, or the conf does not fit its params. Nothing has run then.
    """
    for task_params in (ParamsDict(), *map(params_of_run, dag.tasks)):
        resolve_params(dag.params, task_params, conf, owner=f"the conf of DAG {dag.dag_id!r}")
    facts = _run_facts(dag, to_utc(run_after) or utcnow(), to_utc(logical_date, dag.timezone), conf)
    earlier = current_supervisor()
    with ExitStack() as stack:
        stack.callback(set_supervisor, earlier)
        outer = _supervisor_of_home(stack) if earlier is None else earlier
        supervisor = MemorySupervisor(*values_of_files(variable_file, connection_file), outer)
        supervisor.run = facts.dag_id, facts.run_id
        set_supervisor(supervisor)
        stack.enter_context(served_in_program())
        stack.enter_context(_logs_on_terminal())
        return ForegroundDriver(dag, facts, supervisor, mark_success_pattern, check_interruption).drive()


def _supervisor_of_home(stack: ExitStack) -> Supervisor | None:
    if not os.environ.get("ASYNSCHED_HOME"):
        return None
    with own_sandbox():
        from asynsched.foreground.home_supervisor import supervisor_of_home  # it loads the database

    supervisor = supervisor_of_home(os.environ)
    if supervisor is not None:
        stack.callback(supervisor.close)
    return supervisor


def _run_facts(
    dag: DAG, run_after: dt.datetime, logical_date: dt.datetime | None, conf: Mapping[str, Any] | None
) -> RunContext:
    interval = None
    if logical_date is not None:
        interval = dag.timetable.infer_manual_data_interval(run_after=logical_date)
    return RunContext(
        dag_id=dag.dag_id,
        run_id=f"{DagRunType.MANUAL}__{(logical_date or run_after).isoformat()}",
        run_type=DagRunType.MANUAL,
        run_after=run_after,
        logical_date=logical_date,
        data_interval_start=None if interval is None else interval.start,
        data_interval_end=None if interval is None else interval.end,
        started_at=utcnow(),
        conf=dict(conf or {}),
    )


@contextmanager
def _logs_on_terminal() -> Iterator[None]:
    """Show all logs on standard error during the block, as a task's process does, unless the program shows them."""
    logger = logging.getLogger()
    if logger.handlers or logging.getLogger("asynsched").handlers:
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


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
    """One run of a DAG, whose tries run in this process one after another.

    Raises:
        DagError: The DAG is not coherent.
    """

    def __init__(
        self,
        dag: DAG,
        facts: RunContext,
        supervisor: MemorySupervisor,
        mark_success: str | None,
        check_interruption: Callable[[], None],
    ) -> None:
        self._dag = dag
        self._facts = facts
        self._supervisor = supervisor
        self._mark_success = None if mark_success is None else re.compile(mark_success)
        self._check_interruption = check_interruption
        self._pending = PendingBatch("foreground", 1)
        serialized = msgspec.structs.replace(serialize_dag(dag), dagrun_timeout=None)
        self._evaluation = _evaluation(serialized, self._pending)
        self._run = supervisor.active = _active_run(serialized, facts)
        self._ends: dict[tuple[str, int], TryEnd] = {}
        self._results: dict[tuple[str, int], Any] = {}

    def drive(self) -> ForegroundRun:
        """Run the tasks until the run has ended."""
        run = self._run
        log.info("run %s of DAG %s", run.key.run_id, run.key.dag_id)
        self._evaluation.start_run(run, utcnow())
        while granted := self._step():
            for task in granted:
                self._check_interruption()
                self._try(task)
                self._check_interruption()
        log.info("run %s: %s (%s)", run.key.run_id, run.state, run.reason)
        dates = (run.logical_date, run.data_interval_start, run.data_interval_end, run.started_at, run.ended_at)
        tasks = tuple(map(self._outcome, run.all_instances()))
        shown = (None if date is None else coerce_datetime(date) for date in dates)
        return ForegroundRun(*run.key, run.state, run.reason, tasks, DagRunType(run.run_type), run.conf, *shown)

    def _outcome(self, task: ActiveTask) -> ForegroundTask:
        key = task.task_id, task.map_index
        return ForegroundTask(
            *key,
            state=task.state,
            reason=task.reason,
            try_number=task.try_number,
            result=self._results.get(key),
            exception=self._ends[key].exception if key in self._ends else None,
            rendered_map_index=task.rendered_map_index,
        )

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
            if granted or due is None or self._run.state is not DagRunState.RUNNING:
                return granted
            if not any(task.state is TaskInstanceState.UP_FOR_RETRY for task in self._run.all_instances()):
                time.sleep(max(0.0, (due - utcnow()).total_seconds()))  # until the next poke of a sensor
            self._evaluation.time_passed(max(due, utcnow()))

    def _say_what_ended(self) -> None:
        for task in self._pending.tasks.values():
            if task.is_finished:
                log.info("task %s: %s%s", task.name, task.state, f" ({task.reason})" if task.reason else "")
            elif task.state is TaskInstanceState.UP_FOR_RETRY:
                log.warning("task %s: try %d failed: %s", task.name, task.try_number, task.reason)

    def _try(self, task: ActiveTask) -> None:
        token, started_at, looked_since = task.token or "", utcnow(), task.started_at
        self._evaluation.try_started(Started(token, started_at, os.getpid()), started_at)
        if self._mark_success is not None and self._mark_success.fullmatch(task.task_id):
            ended = Ended(token, "success", utcnow(), started_at, "marked, not run")
        else:
            self._supervisor.running_task, self._supervisor.running_index = task.task_id, task.map_index
            with ExitStack() as environment:
                make_context = self._context_maker(task, looked_since, environment)
                end = attempt(self._dag.get_task(task.task_id), make_context)
            ended, end = _reported(token, task.task_id, started_at, end)
            self._ends[task.task_id, task.map_index] = end
            if end.result is not None and end.result.written is not None:
                kept = self._supervisor.keep_result(task.task_id, end.result.written, task.map_index)
                self._results[task.task_id, task.map_index] = kept
        self._evaluation.try_ended(ended, utcnow())

    def _context_maker(
        self, task: ActiveTask, looked_since: datetime | None = None, environment: ExitStack | None = None
    ) -> Callable[[], Context]:
        """Return a function that makes a task instance's context.

        Args:
            looked_since: The first poke of the sensor.
            environment: Takes the context's environment variables; None: they are not set.
        """

        def make() -> Context:
            facts = TaskInstanceFacts(
                map_index=task.map_index,
                try_number=max(task.try_number, 1),
                max_tries=task.max_tries,
                started_at=utcnow(),
                reschedule_started_at=looked_since,
                max_map_length=self._supervisor.max_map_length,
                test_mode=True,
                route=task.route,
            )
            context = build_context(self._dag.get_task(task.task_id), self._facts, facts)
            if environment is not None:
                environment.enter_context(patch_environ(context_variables(context)))
            return context

        return make

    def _call_back(self, row: CallbackRequest) -> None:
        """Run callbacks of a task or of the DAG. One that wants to end its process ends only the callbacks."""
        try:
            with _ending_forks():
                self._call_back_for(row)
        except SystemExit as exc:
            log.warning("callbacks of %s have ended with %s", row.task_id or self._dag.dag_id, exc.code)

    def _call_back_for(self, row: CallbackRequest) -> None:
        if not row.task_id:
            self._call_back_dag(row)
            return
        task = self._run.instance(row.task_id, row.map_index)
        end = self._ends.get((row.task_id, row.map_index))
        context = end.context if end is not None and end.context is not None else self._context_maker(task)()
        context["ti"].state = str(task.state)
        context["ti"].end_date = coerce_datetime(utcnow())
        context["reason"] = task.reason
        failed = end if end is not None and end.state is TaskInstanceState.FAILED else None
        context["exception"] = None if failed is None else failed.exception
        operator = self._dag.get_task(row.task_id)
        with CurrentContext(context), patch_environ(context_variables(context)):
            run_callbacks(callbacks_of(operator, row.event), context, operator)

    def _call_back_dag(self, row: CallbackRequest) -> None:
        about = msgspec.json.decode(row.caused_by, type=CausingTry) if row.caused_by else None
        if about is None:
            last = self._dag.topological_sort()[-1]
            context = self._context_maker(ActiveTask(self._run, self._run.structure.tasks[last.task_id]))()
        else:
            last = self._dag.get_task(about.task_id)
            context = self._context_maker(self._run.instance(about.task_id, about.map_index))()
            context["ti"].state = about.state
        context["reason"] = row.reason
        context["dag_run"].state = str(self._run.state)
        with CurrentContext(context), patch_environ(context_variables(context)):
            if row.event.startswith("on_dag_run_"):
                assert installation.loaded is not None
                installation.loaded.hears_run(row.event, context, row.reason)
                return
            run_callbacks(getattr(self._dag, f"{row.event}_callback"), context, last)


def _evaluation(dag: SerializedDag, pending: PendingBatch) -> Evaluation:
    ready = ReadyQueues(1, 1)  # one try at a time
    ready.resize_pools({pool: None for task in dag.tasks for pool in task.pools})
    numbers = itertools.count()
    return Evaluation(ready=ready, pending=pending, new_token=lambda: f"try-{next(numbers)}", max_machine_kills=0)


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


def _reported(token: str, task_id: str, started_at: datetime, end: TryEnd) -> tuple[Ended, TryEnd]:
    """Return the report of a try's end, and the end: failed, if no message could have reported it to a scheduler."""
    try:
        ended = _ended(token, Span(started_at, utcnow()), end)
    except (TypeError, ValueError, RecursionError) as exc:
        # Its asset events, or the name of its instance, cannot be serialized.
        end = TryEnd(TaskInstanceState.FAILED, one_line(exc), exception=exc, context=end.context)
        ended = _ended(token, Span(started_at, utcnow()), end)
    try:
        encode_message(ended)
    except ProtocolError as exc:
        ended = failed_to_report(ended, task_id, exc)
        error = exceptions.AsynschedException(ended.reason)
        end = TryEnd(TaskInstanceState.FAILED, ended.reason, exception=error, context=end.context)
    return ended, end


def _ended(token: str, span: Span, end: TryEnd) -> Ended:
    name = None if end.context is None else end.context["ti"].rendered_map_index
    if end.result is not None:
        ended = of_result(token, span, end.result)
        return msgspec.structs.replace(ended, reason=end.reason, rendered_map_index=name)
    state = cast("EndState", str(end.state))
    return Ended(
        token, state, span.ended_at, span.started_at, end.reason, retry=end.retry, rendered_map_index=name,
        reschedule_at=end.again_at,
    )  # fmt: skip


def attempt(task: BaseOperator, make_context: Callable[[], Context]) -> TryEnd:
    """Run a task once, in this process, in the context that `make_context` returns."""
    context: Context | None = None
    resumption: triggers.Resumption | None = None
    deferred: exceptions.TaskDeferred | None = None
    while True:
        if deferred is not None:
            # Outside the `except`: its errors would be shown with the frames that led to the deferral.
            fired = wait_for_trigger(deferred)
            if isinstance(fired, triggers.BaseTaskEndEvent):
                return _ended_by(fired, context)
            resumption = fired
        try:
            context = make_context()
            with _ending_forks(), _limit_of(task):
                return TryEnd(TaskInstanceState.SUCCESS, result=execute(task, context, resumption), context=context)
        except exceptions.TaskDeferred as exc:
            log.info("task %s: %s", task.task_id, exc)
            deferred = exc
        except exceptions.AsynschedRescheduleException as exc:
            log.info("task %s: %s", task.task_id, exc)
            state = TaskInstanceState.UP_FOR_RESCHEDULE
            return TryEnd(state, str(exc), context=context, again_at=exc.reschedule_date)
        except exceptions.AsynschedSkipException as exc:
            return TryEnd(TaskInstanceState.SKIPPED, str(exc), exception=exc, context=context)
        except KeyboardInterrupt:
            if context is not None:
                _on_kill(context)
            raise
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything, also SystemExit
            return _failed(task, exc, context)


def _failed(task: BaseOperator, exc: BaseException, context: Context | None) -> TryEnd:
    log.exception("task %s failed", task.task_id, exc_info=(type(exc), exc, user_frames(exc)))
    if isinstance(exc, exceptions.AsynschedTaskTimeout) and context is not None:
        _on_kill(context)
    retry = not isinstance(exc, exceptions.AsynschedFailException) and _policy_allows_retry(task, exc, context)
    return TryEnd(TaskInstanceState.FAILED, one_line(exc), retry, exception=exc, context=context)


@contextmanager
def _ending_forks() -> Iterator[None]:
    """End a process that the code of a task forks and lets come back: it must not go on as the run."""
    process, code = os.getpid(), 1
    try:
        yield
        code = 0
    except SystemExit as exc:
        code = 0 if exc.code is None else exc.code if isinstance(exc.code, int) else 1
        raise
    finally:
        if os.getpid() != process:
            flush_streams()
            os._exit(code & 0xFF)


def _on_kill(context: Context) -> None:
    try:
        context["ti"].task.on_kill()
    except Exception:
        log.exception("on_kill failed")


def _ended_by(event: triggers.BaseTaskEndEvent, context: Context | None) -> TryEnd:
    for key, value in (event.xcoms or {}).items():
        ask_supervisor("xcom_push", key=key, value=to_transport(value, f"XCom {key!r} of the trigger's event"))
    state = TaskInstanceState(event.task_instance_state)
    return TryEnd(state, "its trigger has ended it", retry=False, context=context)


def _policy_allows_retry(task: BaseOperator, exc: BaseException, context: Context | None) -> bool:
    if task.retry_policy is None or context is None:
        return True
    return ask(task.retry_policy, exc, context).action != RetryAction.FAIL


def _limit_of(task: BaseOperator) -> AbstractContextManager[None]:
    """Return a context in which a try is interrupted after its execution_timeout; only the main thread can be."""
    limit = task.execution_timeout
    if limit is None or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    seconds = limit.total_seconds()
    return interrupted_after(seconds, exceptions.AsynschedTaskTimeout(f"execution_timeout of {seconds:g} s is over"))


def wait_for_trigger(deferred: exceptions.TaskDeferred) -> triggers.Resumption | triggers.BaseTaskEndEvent:
    """Run a trigger until it fires. Returns how the task goes on, or the event that ends it.

    All values are serialized as between processes, so that a value that cannot be is found here, too.
    """
    try:
        given = _carried(deferred.kwargs or {})
        event = asyncio.run(_first_event(deferred))
        payload = _carried(event.payload)
    except TimeoutError:
        return triggers.failed_resumption(
            triggers.TRIGGER_TIMEOUT, f"{deferred.trigger!r} did not fire within {deferred.timeout}"
        )
    except Exception as exc:  # noqa: BLE001 - a trigger is user code
        # The task logs it when it resumes in order to fail.
        lines = traceback.format_exception(type(exc), exc, user_frames(exc))
        return triggers.failed_resumption(triggers.TRIGGER_FAILURE, one_line(exc), "".join(lines).splitlines())
    if isinstance(event, triggers.BaseTaskEndEvent):
        return event
    return triggers.Resumption(deferred.method_name, {**given, "event": payload})


async def _first_event(deferred: exceptions.TaskDeferred) -> triggers.TriggerEvent:
    classpath, kwargs = deferred.trigger.serialize()
    seconds = None if deferred.timeout is None else deferred.timeout.total_seconds()
    async with asyncio.timeout(seconds):
        try:
            event = await triggers.first_event(triggers.make_trigger(classpath, _carried(kwargs)), SharedStreams())
        except TimeoutError as exc:
            # An error of the trigger itself, like its others.
            raise RuntimeError(f"TimeoutError: {exc}") from exc
    return event


def _carried(value: Any) -> Any:
    return from_transport(to_transport(value))
