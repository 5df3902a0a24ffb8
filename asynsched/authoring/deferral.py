"""How a task defers itself, and how it goes on: `self.defer(...)`, and the method that is called afterwards."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import TaskDeferralError, TaskDeferralTimeout, TaskDeferred
from asynsched.authoring.operators import arguments
from asynsched.authoring.triggers.base import BaseTrigger, StartTriggerArgs, make_trigger
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any, NoReturn

    from asynsched.authoring.running.context import Context

FAIL_METHOD = "__fail__"
"""Stands for a method when the trigger did not fire, as in Airflow: the task is resumed in order to fail."""
TRIGGER_FAILURE = "Trigger failure"
TRIGGER_TIMEOUT = "Trigger timeout"


class Resumption:
    """How a deferred task goes on: the method that is called, and its keyword arguments, `event` among them."""

    __slots__ = ("kwargs", "method_name")

    def __init__(self, method_name: str, kwargs: dict[str, Any]) -> None:
        self.method_name = method_name
        self.kwargs = kwargs


class Deferrable:
    """The part of BaseOperator that defers and resumes."""

    task_id: str
    start_from_trigger = False
    """Whether the task begins by waiting for the trigger of `start_trigger_args`, in place of `execute`."""
    start_trigger_args: StartTriggerArgs | None = None

    @property
    def log(self) -> logging.Logger:
        """The task's logger."""
        raise NotImplementedError

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> NoReturn:
        """End this process and give up its slots until `trigger` fires; never returns.

        Then a new process calls the method `method_name(context, event=payload, **kwargs)` of this task, as a part of
        the same try.

        Args:
            trigger: What is waited for.
            method_name: A method of this operator.
            kwargs: What the method is given beside `event`; values that `BaseTrigger.serialize` may return.
            timeout: Longest wait, timedelta or seconds; then the task fails with TaskDeferralTimeout.

        Raises:
            TaskDeferred: Always, unless an argument is wrong: then DagError.
        """
        who = f"task {self.task_id!r}: defer()"
        if not isinstance(trigger, BaseTrigger):
            raise DagError(f"{who}: trigger must be a BaseTrigger, not {trigger!r}")
        if method_name != FAIL_METHOD and not callable(getattr(self, method_name, None)):
            raise DagError(f"{who}: {type(self).__name__} has no method {method_name!r}")
        raise TaskDeferred(
            trigger=trigger,
            method_name=method_name,
            kwargs=kwargs,
            timeout=arguments.optional_duration(who, "timeout", timeout),
        )

    def defer_at_start(self) -> NoReturn:
        """Wait for the trigger of `start_trigger_args`. Raises TaskDeferred."""
        given = self.start_trigger_args
        if given is None:
            raise DagError(f"task {self.task_id!r} has start_from_trigger, but no start_trigger_args")
        self.defer(
            trigger=make_trigger(given.trigger_cls, given.trigger_kwargs or {}),
            method_name=given.next_method,
            kwargs=given.next_kwargs,
            timeout=given.timeout,
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral, and return the task's result. Operators that end in a way of their own override it.

        Raises:
            TaskDeferralTimeout: The trigger did not fire in time.
            TaskDeferralError: The trigger failed.
        """
        given = next_kwargs or {}
        if next_method != FAIL_METHOD:
            return getattr(self, next_method)(context, **given)
        if given.get("traceback"):
            self.log.error("Trigger failed:\n%s", "\n".join(given["traceback"]))
        error, detail = given.get("error", TRIGGER_FAILURE), given.get("detail", "")
        message = f"{error}: {detail}" if detail else error
        raise TaskDeferralTimeout(message) if error == TRIGGER_TIMEOUT else TaskDeferralError(message)


def failed_resumption(error: str, detail: str, traceback: list[str] | None = None) -> Resumption:
    """Return the resumption of a task whose trigger did not fire."""
    return Resumption(FAIL_METHOD, {"error": error, "detail": detail, "traceback": traceback or []})
