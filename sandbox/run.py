"""One try, in a process of its own: a fork of a template or a zygote.

It takes its launch from the control socket, runs the task's code or its callbacks, reports the end, and exits: a thread
or an exit hook that user code has left does not keep it.
"""

import logging
import os
import signal
import socket
import sys
from _thread import get_ident
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import msgspec

from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import (
    AsynschedException,
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferred,
)
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.running.context import Context, CurrentContext, context_variables
from asynsched.authoring.running.execution import TaskResult, execute, run_callbacks
from asynsched.authoring.running.tracebacks import user_frames
from asynsched.authoring.running.try_context import build_context
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.timezone import coerce_datetime
from asynsched.authoring.transport import from_transport
from asynsched.authoring.triggers.base import Resumption
from asynsched.protocol.frames import ProtocolError
from asynsched.protocol.messages import CausingTry, CodeVersion, Ended, Launch, Started, TaskInstanceFacts
from sandbox.processes import adopt_orphans
from sandbox.running import try_outcome
from sandbox.running.loading import Ask, LoadedFile
from sandbox.running.scheduler_link import SchedulerLink
from sandbox.running.try_logging import flush_streams
from sandbox.running.try_outcome import Span, TaskTerminated, decided_by_policy, rebuilt
from sandbox.supervision import lifeline
from sandbox.titles import of_launch, set_title

Loader = Callable[[CodeVersion, Ask], LoadedFile]
log = logging.getLogger("asynsched.task")
_STATE_AT = {
    "on_execute": "running",
    "on_success": "success",
    "on_failure": "failed",
    "on_retry": "up_for_retry",
    "on_skipped": "skipped",
}
_MISS = "on_deadline_miss"


class TryDescriptors(NamedTuple):
    """The descriptors of a new process: its end of the control socket, its output, and its tie to the keeper."""

    control: int
    output: int
    tie: int


def become_try(descriptors: TryDescriptors, load: Loader) -> NoReturn:
    """Run one try in this process, which was forked for it, and exit.

    Args:
        load: Returns the version's DAGs, which a template has already; it may ask the scheduler for a source.
    """
    status = 1
    try:
        _settle(descriptors)
        # Given its kind, the socket does not ask the kernel for it.
        link = SchedulerLink(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptors.control))
        launch = link.receive_launch()
        set_title(of_launch(launch))
        _Forks().watch()
        file = load(launch.code, lambda content_hash: link.request("source_get", content_hash=content_hash))
        ended = run_launch(launch, link, file)
        flush_streams()
        _report(link, ended)
        status = 0
    except BaseException:
        # Only the log is left to tell.
        log.exception("The try could not be run")
        flush_streams()
    finally:
        os._exit(status)


def run_launch(launch: Launch, link: SchedulerLink, file: LoadedFile) -> Ended:
    """Run a launch's task, or its callbacks, and return how that ended."""
    started_at = datetime.now(UTC)
    if launch.trigger_host is not None and not file.reason:
        with own_sandbox():
            from sandbox.trigger_host import run_host  # loads asyncio, which a try has no need of

        return run_host(launch, link)
    if file.reason or launch.run.dag_id not in file.dags:
        reason = file.reason or f"the file makes no DAG {launch.run.dag_id!r} when its tasks run"
        log.error("%s\n%s", reason, file.traceback)
        return Ended(launch.token, "failed", datetime.now(UTC), started_at=started_at, reason=reason)
    set_supervisor(link)
    dag = file.dags[launch.run.dag_id]
    context = Context()
    try:
        task = callback_task(launch, dag) if launch.callback else dag.get_task(launch.task_id)
        context = _context(launch, task, started_at)
        started_at = datetime.now(UTC)
        link.send(Started(launch.token, started_at, os.getpid()))
        # They stay: this process is the task's own.
        for name, value in context_variables(context).items():
            os.environ[name] = value
        with Termination(launch, started_at):
            result = _call(launch, dag, task, context)
        span = Span(started_at, datetime.now(UTC))
        return try_outcome.of_result(launch.token, span, result, context["ti"].rendered_map_index)
    except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of user code included
        span = Span(started_at, datetime.now(UTC))
        _log_end(exc)
        if isinstance(exc, (AsynschedTaskTimeout, TaskTerminated)):
            _on_kill(context)
        ended = try_outcome.of_exception(launch.token, span, exc, _rendered_map_index(context))
        policy = None if launch.callback or "task" not in context else context["task"].retry_policy
        return decided_by_policy(ended, policy, exc, context)


class Termination:
    """The effect of SIGTERM on user code: it is interrupted by an exception, once, so that it can clean up.

    The keeper sends the signal, to end a try or when `execution_timeout` is over, and SIGKILL some seconds later.
    Processes that the task forks end by it as any other does: see `_Forks`.
    """

    def __init__(self, launch: Launch, started_at: datetime) -> None:
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
            raise AsynschedTaskTimeout(self._launch.timeout_reason)
        raise TaskTerminated("ended from outside by SIGTERM")


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


def _call(launch: Launch, dag: DAG, task: BaseOperator, context: Context) -> TaskResult:
    if launch.callback:
        failures = call_back(launch, dag, context)
        if failures:
            # The log has their tracebacks already.
            raise CallbacksFailed("; ".join(failures))
        return TaskResult()
    if launch.resume is None:
        return execute(task, context)
    kwargs = {name: from_transport(value) for name, value in launch.resume.kwargs.items()}
    return execute(task, context, Resumption(launch.resume.method_name, kwargs))


def _context(launch: Launch, task: BaseOperator, started_at: datetime) -> Context:
    caused_by = launch.caused_by or CausingTry(launch.max_tries, started_at)
    facts = TaskInstanceFacts(
        map_index=launch.map_index,
        try_number=launch.try_number,
        max_tries=caused_by.max_tries,
        started_at=caused_by.started_at,
        ended_at=caused_by.ended_at,
        reschedule_started_at=launch.reschedule_started_at,
        max_map_length=launch.max_map_length,
    )
    return build_context(task, launch.run, facts)


def _rendered_map_index(context: Context) -> str | None:
    return context["ti"].rendered_map_index if "ti" in context else None


def _settle(descriptors: TryDescriptors) -> None:
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


def _log_end(exc: BaseException) -> None:
    if isinstance(exc, AsynschedSkipException):
        log.info("Skipped: %s", exc)
    elif isinstance(exc, AsynschedRescheduleException):
        log.info("Rescheduled: %s", exc)
    elif isinstance(exc, TaskDeferred):
        log.info("Deferred: %s", exc)
    elif not isinstance(exc, CallbacksFailed):
        log.error("Task failed", exc_info=(type(exc), exc, user_frames(exc)))


def _on_kill(context: Context) -> None:
    """Call the operator's `on_kill`, which ends the processes that it started, within the keeper's kill time."""
    try:
        context["ti"].task.on_kill()
    except Exception:
        log.exception("on_kill failed")


def _report(link: SchedulerLink, ended: Ended) -> None:
    try:
        link.send(ended)
    except ProtocolError as exc:
        reason = f"the task's result or deferral is too large or nested too deeply: {exc}"
        log.exception("Task failed")
        flush_streams()
        nothing: dict[str, Any] = {
            "return_value": msgspec.UNSET, "decision": None, "deferral": None, "outlet_events": ()
        }  # fmt: skip
        link.send(msgspec.structs.replace(ended, state="failed", reason=reason, **nothing))


class CallbacksFailed(AsynschedException):
    """Callbacks of an event raised exceptions; each is in the log."""


def callback_task(launch: Launch, dag: DAG) -> BaseOperator:
    """Return the task whose context the callbacks get: for callbacks of a DAG its last one, as in Airflow."""
    return dag.get_task(launch.task_id) if launch.task_id else dag.topological_sort()[-1]


def call_back(launch: Launch, dag: DAG, context: Context) -> list[str]:
    """Run the callbacks of the launch's event, and return their errors; one that fails keeps no other from running."""
    event, reason = launch.callback["event"], launch.callback.get("reason", "")
    if event == _MISS:
        return _call_for_deadline(launch, dag, context)
    owner = context["task"] if launch.task_id else dag
    if launch.task_id:
        context["ti"].state = _STATE_AT.get(event)
    context["reason"] = reason
    if launch.task_id and event in ("on_failure", "on_retry"):
        context["exception"] = rebuilt(launch.caused_by.exception if launch.caused_by else None, reason)
    with CurrentContext(context):
        return run_callbacks(list(getattr(owner, f"{event}_callback", None) or ()), context, context["task"])


def _call_for_deadline(launch: Launch, dag: DAG, context: Context) -> list[str]:
    told = launch.callback["deadline"]
    if told["number"] >= len(dag.deadline):
        return [f"the version of DAG {dag.dag_id!r} that this run has, has no deadline {told['number'] + 1}"]
    context["reason"] = launch.callback.get("reason", "")
    context["deadline"] = {
        "name": told["name"],
        "deadline_time": coerce_datetime(datetime.fromisoformat(told["due_at"])),
    }
    with CurrentContext(context):
        return run_callbacks([dag.deadline[told["number"]].callback], context, context["task"])
