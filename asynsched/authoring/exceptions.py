"""The exceptions that a task raises to end in a certain way, and those for mistakes in a DAG file.

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
└── TaskNotFound (DagError)             no such task in the DAG

AsynschedTaskTimeout and TaskDeferred are BaseExceptions, so that `except Exception` in a task does not hide them.
"""

from __future__ import annotations

from asynsched.errors import AsynschedError, DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from typing import Any

    from asynsched.authoring.triggers.base import BaseTrigger


class AsynschedException(AsynschedError):
    """A task failed; it is retried according to its settings."""


class AsynschedFailException(AsynschedException):
    """Raised by a task to fail without a retry."""


class AsynschedSensorTimeout(AsynschedFailException):
    """A sensor reached its `timeout`. As in Airflow, it is not retried."""


class AirflowRuntimeError(Exception):
    """An answer of Airflow's API reported an error.

    Args:
        error: The answer, with the attributes `error` and `detail`.
    """

    def __init__(self, error: Any) -> None:
        super().__init__(f"{error.error.value}: {error.detail}")
        self.error = error


class AsynschedNotFoundException(AsynschedException, AirflowRuntimeError, KeyError):
    """A variable or connection does not exist. It is also a KeyError and, as in Airflow 3, an AirflowRuntimeError."""

    def __init__(self, *args: object) -> None:
        Exception.__init__(self, *args)

    def __str__(self) -> str:
        return Exception.__str__(self)


class XComNotFound(AsynschedNotFoundException):
    """A task pushed no XCom under this key."""


class AsynschedSkipException(AsynschedException):
    """Raised by a task to be skipped."""


class AsynschedRescheduleException(AsynschedException):
    """Raised by a sensor to release its slot until `reschedule_date`."""

    def __init__(self, reschedule_date: datetime) -> None:
        super().__init__(f"wait until {reschedule_date.isoformat()}")
        self.reschedule_date = reschedule_date


class TaskDeferralError(AsynschedException):
    """The trigger of a deferred task failed."""


class TaskDeferralTimeout(TaskDeferralError):
    """The trigger of a deferred task did not fire in time."""


class TaskDeferred(BaseException):
    """Raised by `self.defer(...)`: the task waits for a trigger, and its process ends.

    Attributes:
        method_name: The operator's method to call when the trigger fires.
        kwargs: The arguments of the method in addition to `event`.
        timeout: The longest wait; None for no limit.
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


class DownstreamTasksSkipped(AsynschedException):
    """Raised by a task that skips others of its run; the task itself succeeds.

    Args:
        tasks: The task_ids; each may be in a pair with the map index -1, as in Airflow.
    """

    def __init__(self, *, tasks: Sequence[str | tuple[str, int]]) -> None:
        super().__init__()
        self.tasks = tasks

    def __str__(self) -> str:
        return f"skips {self.tasks}"


class AsynschedTaskTimeout(BaseException):
    """A task reached its `execution_timeout`."""


class ParamValidationError(AsynschedException, DagError, ValueError):
    """A param has no value, or its schema does not allow the value."""


class DuplicateTaskIdFound(AsynschedException, DagError):
    """A task_id or group_id is used twice in a DAG."""


class TaskNotFound(AsynschedException, DagError):
    """A DAG has no task, or a task group no child, with this name."""


class DagRunAlreadyExists(AsynschedFailException):
    """The DAG to trigger has a run with this run_id or logical date. As in Airflow, the task is not retried.

    Args:
        dag_run: That run, with the attributes `dag_id` and `run_id`; or a sentence about it.
    """

    def __init__(self, dag_run: Any) -> None:
        is_text = isinstance(dag_run, str)
        super().__init__(dag_run if is_text else f"DAG {dag_run.dag_id!r} has a run {dag_run.run_id!r} already")
        self.dag_run = None if is_text else dag_run


class DagIsPaused(AsynschedException):
    """The DAG to trigger is paused."""

    def __init__(self, dag_id: str) -> None:
        super().__init__(f"DAG {dag_id} is paused")
        self.dag_id = dag_id


class AirflowExternalTaskSensorException(AsynschedException):
    """A sensor for tasks of other DAGs failed."""


class ExternalDagNotFoundError(AirflowExternalTaskSensorException):
    """The other DAG does not exist."""


class ExternalDagDeletedError(AirflowExternalTaskSensorException):
    """The other DAG was deleted."""


class ExternalTaskNotFoundError(AirflowExternalTaskSensorException):
    """The other task does not exist."""


class ExternalTaskGroupNotFoundError(AirflowExternalTaskSensorException):
    """The other task group does not exist."""


class ExternalTaskFailedError(AirflowExternalTaskSensorException):
    """The other task failed."""


class ExternalTaskGroupFailedError(AirflowExternalTaskSensorException):
    """The other task group failed."""


class ExternalDagFailedError(AirflowExternalTaskSensorException):
    """The other DAG failed."""


class DuplicateStateError(AirflowExternalTaskSensorException):
    """A state is in two of the lists of allowed, skipped and failed states."""
