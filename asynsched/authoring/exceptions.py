"""What a task raises to say how it ends, and what DAG files are told when they are wrong.

AsynschedError
├── AsynschedException                  a task failed
│   ├── AsynschedFailException          failed, and no retry
│   │   └── AsynschedSensorTimeout      a sensor waited too long
│   ├── AsynschedNotFoundException      no such variable, connection or XCom (also a KeyError)
│   │   └── XComNotFound
│   ├── AsynschedSkipException          the task is skipped
│   └── AsynschedRescheduleException    the sensor is poked again later
├── ParamValidationError (DagError)     a param has no value that fits its schema
├── DuplicateTaskIdFound (DagError)     a task_id or group_id is used twice
└── TaskNotFound (DagError)             the DAG has no such task

AsynschedTaskTimeout is a BaseException, so that `except Exception` in a task does not hide it.
"""

from __future__ import annotations

from asynsched.errors import AsynschedError, DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime


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


class AsynschedTaskTimeout(BaseException):
    """A task's `execution_timeout` is over."""


class ParamValidationError(DagError, ValueError):
    """A param has no value, or one that its schema does not allow."""


class DuplicateTaskIdFound(DagError):
    """A task_id or group_id is used twice in a DAG."""


class TaskNotFound(DagError):
    """A DAG has no task, or a task group no child, of that name."""
