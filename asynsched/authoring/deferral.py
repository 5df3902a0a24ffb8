"""How a task defers itself with `self.defer(...)`, and how it is resumed."""

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
"""In place of a method, as in Airflow: the trigger did not fire, and the task is resumed to fail."""
TRIGGER_FAILURE = "Trigger failure"
TRIGGER_TIMEOUT = "Trigger timeout"


class Resumption:
    """How a deferred task is resumed: the method to call, and its keyword arguments, including `event`."""

    __slots__ = ("kwargs", "method_name")

    def __init__(self, method_name: str, kwargs: dict[str, Any]) -> None:
        self.method_name = method_name
        self.kwargs = kwargs


class Deferrable:
    """The part of BaseOperator for deferral."""

    task_id: str
    start_from_trigger = False
    """Whether the task begins by waiting for the trigger of `start_trigger_args` instead of calling `execute`."""
    start_trigger_args: StartTriggerArgs | None = None

    @property
    def log(self) -> logging.Logger:
        raise NotImplementedError

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> NoReturn:
        """End this process and release its slots until `trigger` fires. This method never returns.

        A new process then calls `method_name(context, event=payload, **kwargs)` of this task, within the same try.

        Args:
            trigger: The trigger to wait for.
            method_name: A method of this operator.
            kwargs: The method's arguments in addition to `event`, of the types that `BaseTrigger.serialize` may return.
            timeout: The longest wait, as a timedelta or seconds; after it, the task fails with TaskDeferralTimeout.

        Raises:
            TaskDeferred: Always, if the arguments are valid.
            DagError: An argument is invalid.
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
        """Continue after a deferral, and return the task's result. Operators may override it.

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
