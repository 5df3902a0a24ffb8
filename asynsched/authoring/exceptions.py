"""What a task raises to say how it ends, and what DAG files are told when they are wrong.

AsynschedError
├── AsynschedException                  a task failed
│   ├── AsynschedFailException          failed, and no retry
│   │   └── AsynschedSensorTimeout      a sensor waited too long
│   ├── AsynschedNotFoundException      no such variable, connection or XCom (also a KeyError)
│   │   └── XComNotFound
│   ├── TaskDeferralError               the trigger of a deferred task failed
│   │   └── TaskDeferralTimeout         it did not fire in time
│   ├── AsynschedSkipException          the task is skipped
│   └── AsynschedRescheduleException    the sensor is poked again later
├── ParamValidationError (DagError)     a param has no value that fits its schema
├── DuplicateTaskIdFound (DagError)     a task_id or group_id is used twice
└── TaskNotFound (DagError)             the DAG has no such task

AsynschedTaskTimeout and TaskDeferred are BaseExceptions, so that `except Exception` in a task does not hide them.
"""

from __future__ import annotations

from asynsched.errors import AsynschedError, DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Any

    from asynsched.authoring.triggers.base import BaseTrigger


class AsynschedException(AsynschedError):
    """A task failed; it is retried as its settings say."""


class AsynschedFailException(AsynschedException):
    """Raised by a task that fails and must not be retried."""


class AsynschedSensorTimeout(AsynschedFailException):
    """A sensor's `timeout` is over; as in Airflow, it is not retried."""


class AsynschedNotFoundException(AsynschedException, KeyError):
    """There is no such variable or connection."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class XComNotFound(AsynschedNotFoundException):
    """A task has pushed no XCom of that key."""


class AsynschedSkipException(AsynschedException):
    """Raised by a task that is skipped."""


class AsynschedRescheduleException(AsynschedException):
    """Raised by a sensor that gives up its slot until `reschedule_date`."""

    def __init__(self, reschedule_date: datetime) -> None:
        super().__init__(f"wait until {reschedule_date.isoformat()}")
        self.reschedule_date = reschedule_date


class TaskDeferralError(AsynschedException):
    """The trigger that a deferred task waited for has failed."""


class TaskDeferralTimeout(TaskDeferralError):
    """The trigger that a deferred task waited for did not fire in time."""


class TaskDeferred(BaseException):
    """Raised by `self.defer(...)`: the task waits for a trigger, and its process ends.

    Attributes:
        trigger: The BaseTrigger.
        method_name: Method of the operator to go on with.
        kwargs: What the method is given beside `event`.
        timeout: Longest wait, a timedelta; None for no limit.
    """

    def __init__(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        super().__init__(f"waits for {trigger!r}")
        self.trigger = trigger
        self.method_name = method_name
        self.kwargs = kwargs
        self.timeout = timeout


class AsynschedTaskTimeout(BaseException):
    """A task's `execution_timeout` is over."""


class ParamValidationError(DagError, ValueError):
    """A param has no value, or one that its schema does not allow."""


class DuplicateTaskIdFound(DagError):
    """A task_id or group_id is used twice in a DAG."""


class TaskNotFound(DagError):
    """A DAG has no task, or a task group no child, of that name."""
