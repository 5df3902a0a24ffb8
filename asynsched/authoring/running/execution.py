"""Running a task's code: conditions, templates, hooks, `execute`, and the meaning of its result."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from asynsched.authoring.exceptions import (
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    DownstreamTasksSkipped,
    TaskDeferred,
)
from asynsched.authoring.mapped_results import MappableSequence, is_mappable
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.python import finished, keyword_arguments, result_of
from asynsched.authoring.running.context import CurrentContext, outlet_events
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.supervisor import ask
from asynsched.authoring.transport import to_transport
from asynsched.authoring.xcom import written_xcom
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from asynsched.airflow.installation import Installation
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.triggers.base import Resumption

log = logging.getLogger("asynsched.task")


installation: Installation | None = None
"""The plugins, policies and listeners of this process; None without any."""
MOMENT = 1e-6
"""The shortest time of a timer, in seconds: zero would disarm it."""


class TaskResult(NamedTuple):
    """The result of a task that succeeded.

    Attributes:
        value: The XCom `return_value`; None for none.
        written: The value as `written_xcom` writes it.
        follow: For a branch, the task_ids to run, with groups resolved to their first tasks; otherwise None.
        skips: The task_ids that `SkipMixin.skip` skips; None without a call of it.
        short_circuit: For a short circuit whose condition was false, whether downstream trigger rules are ignored;
            otherwise None.
        outlet_events: The fields of `asynsched.protocol.messages.OutletEvent` for each event the task described.
    """

    value: Any = None
    written: Any = None
    follow: tuple[str, ...] | None = None
    short_circuit: bool | None = None
    skips: tuple[str, ...] | None = None
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
        if installation is None:
            return _run(task, context, resumption)
        installation.begins(context)
        try:
            result = _run(task, context, resumption)
        except (TaskDeferred, AsynschedRescheduleException):
            raise
        except AsynschedSkipException as exc:
            installation.has_ended(context, "skipped", exc)
            raise
        except BaseException as exc:
            installation.has_ended(context, "failed", exc)
            raise
        installation.has_ended(context, "success", None)
        return result


def render(task: BaseOperator, context: Context) -> BaseOperator:
    """Render a copy of a task for one try, which becomes the task of the context. Raises what its templates raise."""
    task = task.for_try(context)
    context["task"] = context["ti"].task = task
    task.prepare_template()
    task.render_template_fields(context)
    return task


def render_for_callbacks(task: BaseOperator, context: Context) -> None:
    """Render a task as its try did. Where that fails, callbacks get the task as far as it is rendered."""
    try:
        rendered = render(task, context)
    except Exception as exc:  # noqa: BLE001 - user code; often the reason why the callbacks are called
        log.warning("Its templates cannot be rendered for the callbacks: %s", exc)
    else:
        with suppress(Exception):
            _render_map_index(rendered, context)


def _run(task: BaseOperator, context: Context, resumption: Resumption | None) -> TaskResult:
    task = render(task, context)
    ti = context["ti"]
    if context.has_rendered:
        _keep_fields(task, context)
    if installation is not None:
        installation.runs(context)
    try:
        result = _result(task, context, resumption)
    except BaseException as exc:
        # The name helps to find the failed instance; the values it needs may be missing.
        with suppress(Exception):
            _render_map_index(task, context)
        # A try that is ended from outside has no time left for the code of links.
        if isinstance(exc, (Exception, TaskDeferred, AsynschedTaskTimeout)):
            _finalize(task, context)
        raise
    _finalize(task, context)
    return result._replace(
        follow=ti.follow, skips=ti.skips, short_circuit=ti.short_circuit, outlet_events=outlet_events(context)
    )


def _result(task: BaseOperator, context: Context, resumption: Resumption | None) -> TaskResult:
    try:
        value = _execute(task, context, resumption)
    except DownstreamTasksSkipped as skipped:
        if context["ti"].follow is None:
            context["ti"].skips = _skipped_ids(skipped)
        _render_map_index(task, context)
        return TaskResult()
    _render_map_index(task, context)
    if not task.do_xcom_push:
        value = None
    if task.is_mapped_over and task.mapped_from is None:
        _check_mappable(task, context, value)
    if value is None:
        return TaskResult()
    if isinstance(value, MappableSequence):
        value = list(value)
    written = written_xcom(value, f"what task {task.task_id!r} returned", XCOM_RETURN_KEY, context["ti"])
    if task.multiple_outputs:
        _push_items(task, context, value)
    return TaskResult(value, written)


def _skipped_ids(skipped: DownstreamTasksSkipped) -> tuple[str, ...]:
    tasks = [skipped.tasks] if isinstance(skipped.tasks, str) else skipped.tasks
    return tuple(task if isinstance(task, str) else task[0] for task in tasks)


def _execute(task: BaseOperator, context: Context, resumption: Resumption | None) -> Any:
    if task.pre_execute_hook is not None:
        _call(task.pre_execute_hook, context)
    if getattr(task.pre_execute, "__func__", None) is not BaseOperator.pre_execute:
        _call(task.pre_execute, context)
    run_callbacks(task.on_execute_callback, context, task)
    if resumption is not None:
        value = task.resume_execution(resumption.method_name, resumption.kwargs, context)
    else:
        if task.start_from_trigger:
            task.defer_at_start(context)
        value = task.execute(context)
    value = finished(value)
    if task.post_execute_hook is not None:
        _call(task.post_execute_hook, context, value)
    if getattr(task.post_execute, "__func__", None) is not BaseOperator.post_execute:
        # Airflow calls it without the result, so it need not have the parameter.
        known = keyword_arguments(task.post_execute, (context,), {"result": value}, {})
        _call(task.post_execute, context, **known)
    return value


def _call(function: Callable[..., Any], context: Context, *args: Any, **kwargs: Any) -> Any:
    return result_of(function, function(context, *args, **kwargs), context)


def run_callbacks(callbacks: list[Any], context: Context, task: BaseOperator) -> list[str]:
    """Call callbacks in order. A failed callback is logged, and the others still run.

    Returns:
        One line for each failure.
    """
    failures = []
    for callback in callbacks:
        try:
            _call(callback, context)
        except Exception as exc:
            name = getattr(callback, "__name__", None) or type(callback).__name__
            failures.append(f"callback {name} failed: {one_line(exc)}")
            task.log.exception("Callback %s failed", name, exc_info=(type(exc), exc, user_frames(exc)))
    return failures


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


def _keep_fields(task: BaseOperator, context: Context) -> None:
    """Keep the template fields as they are now, for people."""
    # A task without templates does not load this.
    from asynsched.authoring.running.rendered_fields import fields_as_json

    context["ti"].rendered_fields = fields_as_json(task)


def _finalize(task: BaseOperator, context: Context) -> None:
    """Keep the fields that `execute` has set, and log and push the addresses of the task's work in other systems.

    As in Airflow, every try does so whose code is not cut off. The addresses are XComs.
    """
    if task.overwrite_rtif_after_execution:
        _keep_fields(task, context)
    ti = context["ti"]
    of_plugins = () if installation is None else installation.plugins.links_of(type(task))
    for link in (*task.operator_extra_links, *of_plugins):
        try:
            address = link.get_link(task, ti_key=ti)
            if address:
                task.log.info("%s: %s", link.name, address)
                # As it is: commands show links.
                ask("xcom_push", key=link.xcom_key, value=to_transport(address))
        except Exception as exc:  # noqa: BLE001 - the code of a link may raise anything
            task.log.warning("The link %s has no address: %s", type(link).__name__, one_line(exc))


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
