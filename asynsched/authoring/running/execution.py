"""Running a task's code: conditions, templates, hooks, `execute`, and the meaning of its result."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from asynsched.authoring.mapped_results import MappableSequence, is_mappable
from asynsched.authoring.operators.branch import followed_tasks
from asynsched.authoring.operators.python import finished
from asynsched.authoring.running.context import CurrentContext, outlet_events
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.transport import to_transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.triggers.base import Resumption


MOMENT = 1e-6
"""The shortest time of a timer, in seconds: zero would disarm it."""


class TaskResult(NamedTuple):
    """The result of a task that succeeded.

    Attributes:
        value: The XCom `return_value`; None for none.
        written: The value as `to_transport` writes it.
        follow: For a branch, the task_ids to run, with groups resolved to their first tasks; otherwise None.
        short_circuit: For a short circuit whose condition was false, whether downstream trigger rules are ignored;
            otherwise None.
        outlet_events: The fields of `asynsched.protocol.messages.OutletEvent` for each event the task described.
    """

    value: Any = None
    written: Any = None
    follow: tuple[str, ...] | None = None
    short_circuit: bool | None = None
    outlet_events: Sequence[dict[str, Any]] = ()


def execute(task: BaseOperator, context: Context, resumption: Resumption | None = None) -> TaskResult:
    """Run a task once, in this process. A copy of the task is rendered and run.

    Args:
        resumption: How to resume a deferred task; None to run it from its beginning.

    Raises:
        AsynschedSkipException: The task is skipped.
        AsynschedFailException: The task failed, and must not be retried.
        AsynschedRescheduleException: The sensor must be checked again later.
        TaskDeferred: The task waits for a trigger.
        TypeError: The result cannot be passed on; the message names the type.
        Exception: Anything else that the task's code raised.
    """
    with CurrentContext(context):
        task = task.for_try(context)
        context["task"] = context["ti"].task = task
        task.prepare_template()
        task.render_template_fields(context)
        try:
            value = _execute(task, context, resumption)
        except BaseException:
            # The name helps to find the failed instance; the values it needs may be missing.
            with suppress(Exception):
                _render_map_index(task, context)
            raise
        _render_map_index(task, context)
        return _result(task, context, value)._replace(outlet_events=outlet_events(context))


def _call(task: BaseOperator, context: Context, resumption: Resumption | None) -> Any:
    if resumption is not None:
        return task.resume_execution(resumption.method_name, resumption.kwargs, context)
    if task.start_from_trigger:
        task.defer_at_start()
    return task.execute(context)


def _execute(task: BaseOperator, context: Context, resumption: Resumption | None) -> Any:
    if task.pre_execute_hook is not None:
        task.pre_execute_hook(context)
    task.pre_execute(context)
    run_callbacks(task.on_execute_callback, context, task)
    value = finished(_call(task, context, resumption))
    if task.post_execute_hook is not None:
        task.post_execute_hook(context, value)
    task.post_execute(context, value)
    return value


def run_callbacks(callbacks: list[Any], context: Context, task: BaseOperator) -> list[str]:
    """Call callbacks in order. A failed callback is logged, and the others still run.

    Returns:
        One line for each failure.
    """
    failures = []
    for callback in callbacks:
        try:
            finished(callback(context))
        except Exception as exc:
            name = getattr(callback, "__name__", None) or type(callback).__name__
            failures.append(f"callback {name} failed: {one_line(exc)}")
            task.log.exception("Callback %s failed", name, exc_info=(type(exc), exc, user_frames(exc)))
    return failures


def _result(task: BaseOperator, context: Context, value: Any) -> TaskResult:
    follow = followed_tasks(task.dag, task.task_id, value) if task.is_branch else None
    short_circuit = None
    if task.is_short_circuit and not value:
        short_circuit = bool(getattr(task, "ignore_downstream_trigger_rules", True))
    if isinstance(value, (set, frozenset)) and task.is_branch:
        value = sorted(value)
    if not task.do_xcom_push:
        value = None
    if task.is_mapped_over and task.mapped_from is None:
        _check_mappable(task, context, value)
    if value is None:
        return TaskResult(follow=follow, short_circuit=short_circuit)
    if isinstance(value, MappableSequence):
        value = list(value)
    written = to_transport(value, f"what task {task.task_id!r} returned")
    if task.multiple_outputs:
        _push_items(task, context, value)
    return TaskResult(value, written, follow, short_circuit)


def _check_mappable(task: BaseOperator, context: Context, value: Any) -> None:
    """Raise for a result that another task is mapped over, but cannot be. A mapped task returns one item each."""
    who, longest = f"what task {task.task_id!r} returned", context["ti"].max_map_length
    if not is_mappable(value):
        kind = "None" if value is None else type(value).__name__
        raise TypeError(f"{who} is mapped over by another task, so it must be a list or a dict, not {kind}")
    if len(value) > longest:
        raise ValueError(
            f"{who} is mapped over by another task, and has {len(value)} values: more than the setting"
            f" max_map_length = {longest} allows"
        )


def _push_items(task: BaseOperator, context: Context, value: Any) -> None:
    if not isinstance(value, dict):
        raise TypeError(
            f"task {task.task_id!r} has multiple_outputs, so it must return a dict, not {type(value).__name__}"
        )
    for key, item in value.items():
        context["ti"].xcom_push(key=key, value=item)


def _render_map_index(task: BaseOperator, context: Context) -> None:
    """Render the name of a task instance, which may depend on values that the task put into its context."""
    if task.map_index_template is not None:
        context["ti"].rendered_map_index = str(task.render_template(task.map_index_template, context))


@contextmanager
def interrupted_after(seconds: float, exc: BaseException) -> Iterator[None]:
    """Raise this exception in the block after a time. An outer limit of time that ends earlier stays in force.

    Only the main thread can be interrupted: it alone receives signals.

    Raises:
        ValueError: This is another thread.
    """
    import signal
    from time import monotonic  # noqa: TID251 - the machine's own time interrupts user code

    def interrupt(_number: int, _frame: object) -> None:
        raise exc

    earlier, began = signal.signal(signal.SIGALRM, interrupt), monotonic()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left <= seconds:
        signal.signal(signal.SIGALRM, earlier)
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - began), MOMENT), interval)
