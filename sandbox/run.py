"""One try, in a process of its own: a fork of a template or a zygote.

It takes its launch from the control socket, runs the task's code or its callbacks, reports the end, and exits: a thread
or an exit hook that user code has left does not keep it.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from asynsched.airflow import installation
from asynsched.airflow.alerts import callbacks_of
from asynsched.authoring import exceptions
from asynsched.authoring.dag import DAG
from asynsched.authoring.mapped_results import is_mappable
from asynsched.authoring.masking import shortened
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.retry_policy import RetryAction, RetryPolicy, ask
from asynsched.authoring.running.context import Context, CurrentContext, context_variables
from asynsched.authoring.running.execution import (
    TaskResult,
    execute,
    interrupted_after,
    render_for_callbacks,
    run_callbacks,
)
from asynsched.authoring.running.task_instance import DagRunOfDeadline, TaskInstance
from asynsched.authoring.running.tracebacks import one_line, text_of, user_frames
from asynsched.authoring.running.try_context import build_context
from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound, set_supervisor
from asynsched.authoring.timezone import coerce_datetime
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.triggers.base import Resumption
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY
from asynsched.protocol import messages
from asynsched.protocol.frames import DEEPEST, MAX_VALUE_BYTES, FrameReader, ProtocolError, TooLarge, encode_frame
from sandbox.loading import Ask, LoadedFile
from sandbox.processes import adopt_orphans, flush_streams, of_launch, set_title
from sandbox.supervision import lifeline

log = logging.getLogger("asynsched.task")
LIMIT_SECONDS = 30.0
"""Longest that a retry policy may think: the task holds its slot meanwhile."""
MAX_REASON = 500
LONGEST_MESSAGE = 10_000
_PLAIN = (str, int, float, bool, type(None))
_NOTE = "raised in the task's own process; the traceback is in the log of its try"
_STATE_AT = {
    "on_execute": "running",
    "on_success": "success",
    "on_failure": "failed",
    "on_retry": "up_for_retry",
    "on_skipped": "skipped",
}
READ_BYTES = 64 * 1024
DEEPEST_MESSAGE = DEEPEST - 20
"""Less than DEEPEST: a launch or an answer may hold a value at a deeper level than the message that brought it."""
encode_message = partial(encode_frame, deepest=DEEPEST_MESSAGE, largest=MAX_VALUE_BYTES)
"""Returns the bytes of a message of a try. Raises TooLarge, and ProtocolError if it is nested too deeply."""


class SchedulerLink:
    """Answers a task's requests (the Supervisor of `asynsched.authoring`) by asking the scheduler.

    A request waits as long as it takes: a scheduler that restarts answers when it is back.
    """

    def __init__(self, control: socket.socket) -> None:
        self.socket = control
        """For another reader, if this link makes no more requests."""
        self._reader = FrameReader(messages.Launch | messages.Reply)
        self._arrived: Iterator[Any] = iter(())
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._process = os.getpid()
        self._token = self._task_id = ""

    def receive_launch(self) -> messages.Launch:
        """Return the launch of this try. Raises ProtocolError when the keeper sends something else."""
        message = self._receive()
        if not isinstance(message, messages.Launch):
            raise ProtocolError(f"expected a launch, not {type(message).__name__}")
        self._token, self._task_id = message.token, message.task_id
        return message

    @property
    def is_of_this_process(self) -> bool:
        """Whether this is the try's own process, and no fork of it."""
        return os.getpid() == self._process

    def send(self, message: Struct) -> None:
        """Report something. Raises TooLarge, and ProtocolError when it is nested too deeply to be passed on."""
        self.socket.sendall(encode_message(message))

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask, and wait for the answer.

        Raises SupervisorNotFound, or SupervisorError if the scheduler could not answer, or in a fork of the process.
        """
        if not self.is_of_this_process:
            raise SupervisorError(f"{operation}: only the task's own process can ask; pass the value to the others")
        with self._lock:
            number = next(self._numbers)
            self.socket.sendall(encode_request(self._token, self._task_id, number, operation, arguments))
            reply = self._receive()
            while not (isinstance(reply, messages.Reply) and reply.request_id == number):
                # The answer to a request that a signal has interrupted.
                reply = self._receive()
        return answer_of(operation, reply)

    def _receive(self) -> Any:
        while (message := next(self._arrived, None)) is None:
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise SupervisorError("the keeper of this task is gone")
            self._arrived = self._reader.feed(data)
        return message


def encode_request(token: str, task_id: str, number: int, operation: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the bytes of a request of a try. Raises SupervisorError if it is too large or nested too deeply."""
    encoded = {name: json_of(value) for name, value in arguments.items()}
    try:
        return encode_message(messages.Request(token, number, operation, encoded))
    except TooLarge as exc:
        what = f"XCom {arguments['key']!r}" if operation == "xcom_push" else operation
        raise SupervisorError(_too_large(f"{what} of task {task_id!r}", exc)) from None
    except ProtocolError as exc:
        raise SupervisorError(f"{operation}: {exc}") from None


def answer_of(operation: str, reply: messages.Reply) -> Any:
    """Return the value of a reply. Raises SupervisorNotFound or SupervisorError."""
    if not reply.found:
        raise SupervisorNotFound(reply.error or f"{operation}: there is no such thing")
    if reply.error:
        raise SupervisorError(reply.error)
    return reply.value


def json_of(value: Any) -> msgspec.Raw:
    """Return a value as JSON text. Raises TypeError or ValueError for something that JSON does not have."""
    # Not msgspec's encoder: that refuses subclasses of str, int and dict, which are JSON just the same.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return msgspec.Raw(text.encode())


class TryDescriptors(NamedTuple):
    """The descriptors of a new process: its end of the control socket, its output, and its tie to the keeper."""

    control: int
    output: int
    tie: int


def become_try(descriptors: TryDescriptors, load: Callable[[messages.CodeVersion, Ask], LoadedFile]) -> NoReturn:
    """Run one try in this process, which was forked for it, and exit.

    `load` returns the version's DAGs, which a template has already; it may ask the scheduler for a source.
    """
    status = 1
    try:
        _detach(descriptors)
        # Given its kind, the socket does not ask the kernel for it.
        link = SchedulerLink(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptors.control))
        launch = link.receive_launch()
        set_title(of_launch(launch))
        _Forks().watch()
        set_supervisor(link, loads_file=True)  # the file may read variables at its top level
        file = load(launch.code, lambda content_hash: link.request("source_get", content_hash=content_hash))
        ended = run_launch(launch, link, file)
        flush_streams()
        if link.is_of_this_process:  # and not a fork that user code has let come back from the task
            _report(link, ended, launch.task_id)
        status = 0
    except SystemExit as exc:  # of such a fork
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        flush_streams()
    except BaseException:
        # Only the log is left to tell.
        log.exception("The try could not be run")
        flush_streams()
    finally:
        os._exit(status)


def _detach(descriptors: TryDescriptors) -> None:
    """Make this fork a process of its own: session, output, signals, and a death with its keeper."""
    os.setsid()
    lifeline.hold(descriptors.tie)
    adopt_orphans()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(descriptors.output, 1)
    os.dup2(descriptors.output, 2)
    os.close(descriptors.output)
    if "numpy.random" in sys.modules:
        # Python seeds its own generator again in every fork, but not NumPy's.
        sys.modules["numpy.random"].seed()


def _too_large(what: str, exc: TooLarge) -> str:
    """Return that a value is too large, and what to do; `what` names the value, e.g. `XCom 'rows' of task 'load'`."""
    backend = ", or set xcom_backend, which does that" if what.startswith("XCom") else ""
    return f"{what} is too large: {exc}. Write it to a file or an object storage and pass on the path{backend}."


def _largest_of(ended: messages.Ended) -> str:
    parts = {
        f"XCom {XCOM_RETURN_KEY!r}": ended.return_value,
        "the deferral": ended.deferral,
        "the asset events": ended.outlet_events,
    }
    return max(parts, key=lambda name: 0 if parts[name] is msgspec.UNSET else len(msgspec.json.encode(parts[name])))


def _report(link: SchedulerLink, ended: messages.Ended, task_id: str) -> None:
    try:
        link.send(ended)
    except ProtocolError as exc:
        log.exception("Task failed")
        flush_streams()
        link.send(failed_to_report(ended, task_id, exc))


def failed_to_report(ended: messages.Ended, task_id: str, error: ProtocolError) -> messages.Ended:
    """Return the end of a try whose own end cannot be passed on, because of its result, deferral or asset events."""
    if isinstance(error, TooLarge):
        reason = _too_large(f"{_largest_of(ended)} of task {task_id!r}", error)
    else:
        reason = f"the result or deferral of task {task_id!r} cannot be passed on: {error}"
    nothing: dict[str, Any] = {"return_value": msgspec.UNSET, "decision": None, "deferral": None, "outlet_events": ()}
    return msgspec.structs.replace(ended, state="failed", reason=reason, **nothing)


def run_launch(launch: messages.Launch, link: SchedulerLink, file: LoadedFile) -> messages.Ended:
    """Run a launch's task, or its callbacks, and return how that ended."""
    started_at = datetime.now(UTC)
    if launch.trigger_host is not None and not file.reason:
        with own_sandbox():
            from sandbox.trigger_host import run_host  # loads asyncio, which a try has no need of

        return run_host(launch, link)
    if launch.callback and not launch.run.dag_id:
        return _call_listeners(launch, link, started_at)
    if file.reason or launch.run.dag_id not in file.dags:
        reason = file.reason or f"the file makes no DAG {launch.run.dag_id!r} when its tasks run"
        log.error("%s\n%s", reason, file.traceback)
        return messages.Ended(launch.token, "failed", datetime.now(UTC), started_at=started_at, reason=reason)
    set_supervisor(link)
    dag = file.dags[launch.run.dag_id]
    context = Context()
    try:
        task = dag.task_dict.get(launch.task_id or (launch.caused_by.task_id if launch.caused_by else ""))
        if task is None:
            # Callbacks of a DAG that are about no task instance get the context of its last task.
            task = dag.get_task(launch.task_id) if launch.task_id else dag.topological_sort()[-1]
        context = _context(launch, task, started_at)
        started_at = datetime.now(UTC)
        link.send(messages.Started(launch.token, started_at, os.getpid()))
        # They stay: this process is the task's own.
        for name, value in context_variables(context).items():
            os.environ[name] = value
        with Termination(launch, started_at):
            result = _call(launch, dag, task, context)
        span = Span(started_at, datetime.now(UTC))
        return of_result(launch.token, span, result, context["ti"])
    except BaseException as exc:
        if not link.is_of_this_process:
            raise
        span = Span(started_at, datetime.now(UTC))
        _log_end(exc)
        if isinstance(exc, (exceptions.AsynschedTaskTimeout, TaskTerminated)):
            _on_kill(context)
        ended = of_exception(launch.token, span, exc, context.get("ti"))
        policy = None if launch.callback or "task" not in context else context["task"].retry_policy
        return decided_by_policy(ended, policy, exc, context)


def _call_listeners(launch: messages.Launch, link: SchedulerLink, started_at: datetime) -> messages.Ended:
    """Tell listeners of events that belong to no run. No DAG file is loaded: listeners belong to the installation."""
    set_supervisor(link)
    try:
        link.send(messages.Started(launch.token, started_at, os.getpid()))
        with Termination(launch, started_at):
            sys.path.append(launch.code.dags_folder)
            installation.load()
            event, own = launch.callback["event"], installation.loaded
            _check_failures([] if own is None else own.hears(event, launch.callback["subjects"]))
            return of_result(launch.token, Span(started_at, datetime.now(UTC)), TaskResult())
    except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of user code included
        _log_end(exc)
        return of_exception(launch.token, Span(started_at, datetime.now(UTC)), exc)


def _check_failures(failures: list[str]) -> None:
    """Raise CallbacksFailed for errors of callbacks. The log has their tracebacks already."""
    if failures:
        raise CallbacksFailed("; ".join(failures))


def _call(launch: messages.Launch, dag: DAG, task: BaseOperator, context: Context) -> TaskResult:
    if launch.callback:
        _check_failures(call_back(launch, dag, context))
        return TaskResult()
    if launch.resume is None:
        return execute(task, context)
    kwargs = {name: from_transport(value) for name, value in launch.resume.kwargs.items()}
    return execute(task, context, Resumption(launch.resume.method_name, kwargs))


def _context(launch: messages.Launch, task: BaseOperator, started_at: datetime) -> Context:
    caused_by = launch.caused_by or messages.CausingTry(launch.max_tries, launch.started_at or started_at)
    is_of_run = bool(caused_by.task_id)
    route = None if launch.callback else messages.Route(
        launch.pool, launch.pool_slots, launch.queue, launch.executor, launch.executor_config, launch.priority_weight,
    )  # fmt: skip
    facts = messages.TaskInstanceFacts(
        map_index=caused_by.map_index if is_of_run else launch.map_index,
        try_number=caused_by.try_number if is_of_run else launch.try_number,
        max_tries=caused_by.max_tries,
        started_at=caused_by.started_at,
        ended_at=caused_by.ended_at,
        reschedule_started_at=launch.reschedule_started_at,
        max_map_length=launch.max_map_length,
        route=route,
    )
    return build_context(task, launch.run, facts)


class Span(NamedTuple):
    """When user code ran: aware UTC, stamped in its own process."""

    started_at: datetime
    ended_at: datetime


def of_result(token: str, span: Span, result: TaskResult, ti: TaskInstance | None = None) -> messages.Ended:
    """Return the end of a try whose code returned. Raises ValueError for a value that JSON cannot express.

    Args:
        ti: Knows the texts that templates gave; None if there are none.
    """
    decision: messages.Decision | None = None
    if result.follow is not None:
        decision = messages.BranchDecision(tuple(result.follow))
    elif result.skips is not None:
        decision = messages.SkipDecision(tuple(result.skips))
    elif result.short_circuit is not None:
        decision = messages.ShortCircuitDecision(ignore_downstream_trigger_rules=result.short_circuit)
    return messages.Ended(
        token,
        "success",
        span.ended_at,
        started_at=span.started_at,
        return_value=msgspec.UNSET if result.written is None else json_of(result.written),
        decision=decision,
        rendered_map_index=None if ti is None else ti.rendered_map_index,
        rendered_fields=None if ti is None else ti.rendered_fields,
        result_length=_length(result.value),
        outlet_events=tuple(
            msgspec.json.decode(json_of(told), type=messages.OutletEvent) for told in result.outlet_events
        ),
    )


def _length(value: Any) -> int | None:
    """Return the number of values that `expand` would map over; -1 if it cannot map over this one, None for None."""
    if value is None:
        return None
    return len(value) if is_mappable(value) else -1


def of_exception(token: str, span: Span, exc: BaseException, ti: TaskInstance | None = None) -> messages.Ended:
    """Return the end of a try whose code raised. `ti` is as for `of_result`."""
    name, fields = (None, None) if ti is None else (ti.rendered_map_index, ti.rendered_fields)
    end = partial(messages.Ended, token, ended_at=span.ended_at, started_at=span.started_at, rendered_fields=fields)
    if isinstance(exc, exceptions.TaskDeferred):
        try:
            deferral = _deferral(exc)
        except Exception as wrong:  # noqa: BLE001 - a trigger's own code may raise anything
            exc = wrong
        else:
            reason = f"waits for the trigger {messages.class_name(deferral.classpath)}"
            if deferral.input is not None:
                reason = str(exc)
            return end("deferred", reason=reason, deferral=deferral)
    if isinstance(exc, exceptions.AsynschedSkipException):
        return end("skipped", reason=one_line(exc), rendered_map_index=name)
    if isinstance(exc, exceptions.AsynschedRescheduleException):
        return end("up_for_reschedule", reason=str(exc), reschedule_at=exc.reschedule_date)
    return end(
        "failed",
        reason=_reason(exc),
        rendered_map_index=name,
        retry=not isinstance(exc, exceptions.AsynschedFailException),
        cause="machine" if isinstance(exc, TaskTerminated) else "task",
        exception=None if isinstance(exc, TaskTerminated) else described(exc),
    )


def _deferral(exc: exceptions.TaskDeferred) -> messages.Deferral:
    """Return the deferral of a task. Raises TypeError for arguments that cannot be passed on."""
    classpath, kwargs = exc.trigger.serialize()
    timeout = None if exc.timeout is None else exc.timeout.total_seconds()
    awaited = exc.trigger.awaited_input()
    if awaited is not None:
        kwargs, own_timeout = {}, awaited.pop("timeout")
        timeout = timeout if own_timeout is None else own_timeout
        awaited["params"] = {key: to_transport(value, f"param {key!r}") for key, value in awaited["params"].items()}
    return messages.Deferral(
        classpath=classpath,
        trigger_kwargs={key: to_transport(value, f"trigger argument {key!r}") for key, value in kwargs.items()},
        method_name=exc.method_name,
        method_kwargs={
            key: to_transport(value, f"defer() argument {key!r}") for key, value in (exc.kwargs or {}).items()
        },
        timeout=timeout,
        input=None if awaited is None else msgspec.convert(awaited, messages.AwaitedInput),
    )


def _reason(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return f"sys.exit({exc.code!r}) was called"
    if isinstance(exc, (exceptions.AsynschedTaskTimeout, TaskTerminated)):
        return str(exc)
    return one_line(exc)


def _log_end(exc: BaseException) -> None:
    if isinstance(exc, exceptions.AsynschedSkipException):
        log.info("Skipped: %s", exc)
    elif isinstance(exc, exceptions.AsynschedRescheduleException):
        log.info("Rescheduled: %s", exc)
    elif isinstance(exc, exceptions.TaskDeferred):
        log.info("Deferred: %s", exc)
    elif not isinstance(exc, CallbacksFailed):
        log.error("Task failed", exc_info=(type(exc), exc, user_frames(exc)))


def _on_kill(context: Context) -> None:
    """Call the operator's `on_kill`, which ends the processes that it started, within the keeper's kill time."""
    try:
        context["ti"].task.on_kill()
    except Exception:
        log.exception("on_kill failed")


class Termination:
    """The effect of SIGTERM on user code: it is interrupted by an exception, once, so that it can clean up.

    The keeper sends the signal, to end a try or when `execution_timeout` is over, and SIGKILL some seconds later.
    Processes that the task forks end by it as any other does: see `_Forks`.
    """

    def __init__(self, launch: messages.Launch, started_at: datetime) -> None:
        self._launch = launch
        self._started_at = started_at
        self._is_armed = False

    def __enter__(self) -> None:
        self._is_armed = True
        signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        self._is_armed = False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_armed:
            return
        self._is_armed = False
        elapsed = (datetime.now(UTC) - self._started_at).total_seconds()
        limit = self._launch.execution_timeout
        if limit is not None and elapsed >= limit:
            raise exceptions.AsynschedTaskTimeout(self._launch.timeout_reason)
        raise TaskTerminated("ended from outside by SIGTERM")


class TaskTerminated(BaseException):
    """Raised in user code when the try is ended from outside; no `except Exception` hides it."""


class _Forks:
    """Lets SIGTERM end the processes that a task forks, unless the task has a handler of its own for that.

    `multiprocessing.Pool` ends its workers by SIGTERM, some before they have begun. With our handler such a worker
    might go on, and the task wait for it for ever: a fork forgets signals that it has not handled yet, and Python runs
    handlers between its instructions, so not for a signal that comes just before a process blocks. So the signal is
    held back from before the fork until it has its usual effect.
    """

    def __init__(self) -> None:
        self._masks: dict[int, set[Any]] = {}
        """Signals that were blocked before a fork, by the thread that forks."""

    def watch(self) -> None:
        """Watch every fork of this process. Call it once."""
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._let_end)

    def _block(self) -> None:
        self._masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(get_ident()))

    def _let_end(self) -> None:
        if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Termination):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._unblock()


class CallbacksFailed(exceptions.AsynschedException):
    """Callbacks of an event raised exceptions; each is in the log."""


def call_back(launch: messages.Launch, dag: DAG, context: Context) -> list[str]:
    """Run the callbacks of the launch's event, and return their errors; one that fails keeps no other from running."""
    event, reason = launch.callback["event"], launch.callback.get("reason", "")
    if event == "on_deadline_miss":
        return _call_for_deadline(launch, dag, context)
    if event == "deadline_place":
        return _place_deadline(launch, dag, context)
    if not launch.task_id:
        context["ti"].state = launch.caused_by.state if launch.caused_by else None
    if event.startswith("on_dag_run_"):
        with CurrentContext(context):
            return [] if installation.loaded is None else installation.loaded.hears_run(event, context, reason)
    owner = context["task"] if launch.task_id else dag
    if launch.task_id:
        context["ti"].state = _STATE_AT.get(event)
    context["reason"] = reason
    with CurrentContext(context):
        if launch.task_id:
            has_failed = event in ("on_failure", "on_retry")
            caused_by = launch.caused_by.exception if launch.caused_by else None
            context["exception"] = rebuilt(caused_by, reason) if has_failed else None
            render_for_callbacks(context["task"], context)
        return run_callbacks(callbacks_of(owner, event), context, context["task"])


def _place_deadline(launch: messages.Launch, dag: DAG, context: Context) -> list[str]:
    """Run the user code that says when a deadline of the run is due, and tell the scheduler. Returns its errors."""
    number = launch.try_number
    if number >= len(dag.deadline):
        return [_no_deadline(dag, number)]

    def place(context: Context) -> None:
        dag.deadline[number].place(number, context["dag_run"])

    with CurrentContext(context):
        return run_callbacks([place], context, context["task"])


def _no_deadline(dag: DAG, number: int) -> str:
    return f"the version of DAG {dag.dag_id!r} that this run has, has no deadline {number + 1}"


def _call_for_deadline(launch: messages.Launch, dag: DAG, context: Context) -> list[str]:
    told = launch.callback["deadline"]
    if told["number"] >= len(dag.deadline):
        return [_no_deadline(dag, told["number"])]
    context["reason"] = launch.callback.get("reason", "")
    context["dag_run"] = DagRunOfDeadline(context["dag_run"])
    context["deadline"] = {
        "id": told["id"],
        "name": told["name"],
        "deadline_time": coerce_datetime(datetime.fromisoformat(told["due_at"])),
    }
    with CurrentContext(context):
        return run_callbacks([dag.deadline[told["number"]].callback], context, context["task"])


class _TookTooLong(BaseException):
    """Raised in a policy when its time is over."""


def decided_by_policy(
    ended: messages.Ended, policy: RetryPolicy | None, exc: BaseException, context: Context
) -> messages.Ended:
    """Return the end of a try with the decision of the task's policy about its failure.

    The policy decides about no failure that asked for no retry, and about no try that was ended from outside.
    """
    if policy is None or ended.state != "failed" or not ended.retry or isinstance(exc, TaskTerminated):
        return ended
    try:
        with interrupted_after(LIMIT_SECONDS, _TookTooLong()):
            decision = ask(policy, exc, context)
    except _TookTooLong:
        log.exception("The retry policy took longer than %g s; the task's own settings decide", LIMIT_SECONDS)
        return ended
    if decision.action == RetryAction.DEFAULT:
        return ended
    log.info("The retry policy decided: %s", decision)
    reason = ended.reason
    if decision.reason:
        reason = f"{reason} ({shortened(' '.join(str(decision.reason).split()), MAX_REASON)})"
    if decision.action == RetryAction.FAIL:
        return msgspec.structs.replace(ended, retry=False, reason=reason)
    delay = None if decision.retry_delay is None else decision.retry_delay.total_seconds()
    return msgspec.structs.replace(ended, retry_delay=delay, reason=reason)


def described(exc: BaseException) -> messages.RaisedException:
    """Return the description of an exception, for callbacks in another process."""
    cls = type(exc)
    message = text_of(exc)
    raised = messages.RaisedException(str(cls.__module__), cls.__qualname__, shortened(message, LONGEST_MESSAGE))
    if len(message) > LONGEST_MESSAGE or not all(type(argument) in _PLAIN for argument in exc.args):
        return raised
    with_arguments = msgspec.structs.replace(raised, arguments=tuple(exc.args))
    try:
        msgspec.json.encode(with_arguments)
    except (ValueError, OverflowError):
        return raised
    return with_arguments


def rebuilt(raised: messages.RaisedException | None, reason: str) -> BaseException:
    """Return an exception like the one that was raised: of its class, with its words, without its traceback.

    The class must be loaded already, and is made without its `__init__`, whose other arguments are unknown. Where that
    fails, and for a try that was ended from outside, the result is an AsynschedException.
    """
    if raised is None:
        return exceptions.AsynschedException(reason)
    cls = _loaded_class(raised)
    if cls is not None:
        for arguments in (raised.arguments, (raised.message,)):
            exc = _made(cls, arguments)
            if exc is not None and text_of(exc) == raised.message:
                exc.add_note(_NOTE)
                return exc
    return exceptions.AsynschedException(f"{raised.qualname}: {raised.message}")


def _loaded_class(raised: messages.RaisedException) -> type[BaseException] | None:
    found: object = sys.modules.get(raised.module)
    for name in raised.qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _made(cls: type[BaseException], arguments: tuple[object, ...]) -> BaseException | None:
    try:
        exc = cls.__new__(cls, *arguments)
        exc.args = arguments
    except Exception:  # noqa: BLE001 - it is user code
        return None
    return exc
