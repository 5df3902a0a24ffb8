"""Exceptions and warnings of Airflow that asynsched itself never raises; providers and DAG files raise or catch them.

The others are asynsched's own: see `asynsched.authoring.exceptions`.
"""

from __future__ import annotations

from collections import namedtuple

from asynsched.authoring.exceptions import AirflowRuntimeError as AirflowRuntimeError
from asynsched.authoring.exceptions import AsynschedException, AsynschedNotFoundException, TaskNotFound
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class AirflowConfigException(AsynschedException):
    """An option of the configuration is missing, or its value has the wrong form."""


class AirflowOptionalProviderFeatureException(AsynschedException):
    """An optional feature of a provider needs a package that is not installed."""


class AirflowSecretsBackendAccessDenied(PermissionError):
    """A secrets backend refuses access; no other backend may be asked instead."""


class AirflowDagCycleException(DagError):
    """The tasks of a DAG depend on each other in a circle."""


class AirflowTimetableInvalid(AsynschedException):
    """A timetable has invalid arguments."""


class AirflowInactiveAssetInInletOrOutletException(AsynschedException):
    """A task names an asset that is not active."""


class AirflowTaskTerminated(BaseException):
    """A task was ended from outside."""


class XComForMappingNotPushed(TypeError):
    """A task returned nothing, although others are mapped over its result."""


class UnmappableXComTypePushed(TypeError):
    """A task returned something other than a list or dict, although others are mapped over its result."""


class TaskAlreadyInTaskGroup(DagError):
    """A task cannot be put into a task group, because it is in another one.

    Args:
        task_id: The task.
        existing_group_id: The group that it is in; None for the DAG itself.
        new_group_id: The group that it cannot be put into.
    """

    def __init__(self, task_id: str, existing_group_id: str | None, new_group_id: str) -> None:
        where = "the DAG itself" if existing_group_id is None else f"group {existing_group_id!r}"
        super().__init__(f"task {task_id!r} cannot be put into group {new_group_id!r}: it is in {where}")
        self.task_id = task_id
        self.existing_group_id = existing_group_id
        self.new_group_id = new_group_id


class TaskAlreadyRunningError(AsynschedException):
    """A task runs already."""


class FailFastDagInvalidTriggerRule(DagError):
    """A DAG with `fail_fast` has a task with a trigger rule other than the default."""


class NodeNotFound(TaskNotFound, KeyError):
    """A DAG or a task group has no task or group of this name."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class AirflowBadRequest(AsynschedException):
    """A request cannot be served as it is."""

    status_code = 400


class InvalidStatsNameException(AsynschedException):
    """A metric has an invalid name."""


class AirflowInternalRuntimeError(BaseException):
    """Airflow itself failed."""


class AirflowDagDuplicatedIdException(AsynschedException):
    """Two files define a DAG with the same dag_id.

    Args:
        dag_id: Of both.
        incoming: The file that comes second.
        existing: The file that came first.
    """

    def __init__(self, dag_id: str, incoming: str, existing: str) -> None:
        super().__init__(f"DAG {dag_id!r} of {incoming} is ignored: {existing} defines it already")
        self.dag_id = dag_id
        self.incoming = incoming
        self.existing = existing


class AirflowClusterPolicyError(AsynschedException):
    """A cluster policy failed."""


class AirflowClusterPolicyViolation(AsynschedException):
    """A cluster policy refuses a DAG or a task."""


class AirflowClusterPolicySkipDag(AsynschedException):
    """A cluster policy leaves out a DAG."""


class DagNotFound(AsynschedNotFoundException):
    """There is no such DAG."""


class DagCodeNotFound(AsynschedNotFoundException):
    """There is no source of such a DAG."""


class DagRunNotFound(AsynschedNotFoundException):
    """There is no such DagRun."""


class TaskInstanceNotFound(AsynschedNotFoundException):
    """There is no such task instance."""


class PoolNotFound(AsynschedNotFoundException):
    """There is no such pool."""


class SerializationError(AsynschedException):
    """Something cannot be written in a form that can be stored."""


class DeserializationError(Exception):
    """A stored DAG cannot be read.

    Args:
        dag_id: The DAG; None if the stored form does not name it.
        message: The whole message, instead of the usual one.
    """

    def __init__(self, dag_id: str | None = None, message: str | None = None) -> None:
        super().__init__(message or (f"the stored DAG {dag_id!r}" if dag_id else "a stored DAG") + " cannot be read")
        self.dag_id = dag_id


class DeserializingResultError(ValueError):
    """A pickled result cannot be read: it may come from another version of Python."""

    def __str__(self) -> str:
        return f"the pickled result cannot be read; both sides need the same version of Python: {self.__cause__}"


class NotMapped(Exception):
    """A task is not mapped, nor in a mapped group."""


class AirflowFileParseException(AsynschedException):
    """A file of variables or connections cannot be read.

    Args:
        msg: What is wrong.
        file_path: The file.
        parse_errors: The errors in it, each with `line_no` and `message`.
    """

    def __init__(self, msg: str, file_path: str, parse_errors: list[Any]) -> None:
        errors = "".join(f"\n{file_path}:{error.line_no}: {error.message}" for error in parse_errors)
        super().__init__(f"{msg}\n{file_path}{errors}")
        self.msg = msg
        self.file_path = file_path
        self.parse_errors = parse_errors


class AirflowUnsupportedFileTypeException(AsynschedException):
    """A file has a type that cannot be read."""


class ConnectionNotUnique(AsynschedException):
    """A file defines a connection twice."""


class VariableNotUnique(AsynschedException):
    """A file defines a variable twice."""


class PodMutationHookException(AsynschedException):
    """The hook that changes pods failed."""


class PodReconciliationError(AsynschedException):
    """Two descriptions of a pod cannot be merged."""


class UnknownExecutorException(ValueError):
    """There is no such executor."""


class RemovedInAirflow4Warning(DeprecationWarning):
    """The feature will not be in Airflow 4."""

    deprecated_since: str | None = None
    """The version of Airflow that began to warn."""


class AirflowProviderDeprecationWarning(DeprecationWarning):
    """A provider will remove the feature."""

    deprecated_provider_since: str | None = None
    """The version of the provider that began to warn."""


class DeprecatedImportWarning(FutureWarning):
    """A name has another place now."""


class FileSyntaxError(namedtuple("FileSyntaxError", "line_no message")):
    """An error in a file of variables or connections. `line_no`: None for the whole file."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.message}. Line number: {self.line_no},"


class DagNotPartitionedError(ValueError):
    """A partition of a DAG was asked for that has none."""


class InvalidPartitionKeyError(ValueError):
    """A partition's key is invalid."""


class DagRunTypeNotAllowed(AsynschedException):
    """A DAG does not allow runs of a type."""


class AirflowClearRunningTaskException(AsynschedException):
    """A task that runs was to be cleared."""


class AirflowContextDeprecationWarning(DeprecationWarning):
    """A task used an old name of a value in its context."""
