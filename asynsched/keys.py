"""The keys of DagRuns and TaskInstances: plain values for queues, logs and messages."""

from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

LATEST = "latest"
"""Names the newest run of a DAG, by `run_after`; no run may be triggered under this name."""


class DagRunKey(NamedTuple):
    """Identifies one DagRun."""

    dag_id: str
    run_id: str


class TaskInstanceKey(NamedTuple):
    """Identifies one TaskInstance; `map_index` is -1 unless the task is mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def run(self) -> DagRunKey:
        return DagRunKey(self.dag_id, self.run_id)


class NamesRun(Protocol):
    """A value that names a run, such as a result about a run or a task instance."""

    @property
    def dag_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...


class NamesTaskInstance(NamesRun, Protocol):
    """A value that names a task instance, such as a result about one."""

    @property
    def task_id(self) -> str: ...
    @property
    def map_index(self) -> int: ...


AnyRun = Annotated[NamesRun | tuple[str, str], DagRunKey]
"""What may name a run to a caller, and the key that it becomes."""
AnyTask = Annotated[NamesTaskInstance | tuple[str, str, str] | tuple[str, str, str, int], TaskInstanceKey]
"""What may name a task instance to a caller, and the key that it becomes."""
Key = TypeVar("Key", DagRunKey, TaskInstanceKey)


def key_of(kind: type[Key], named: Any) -> Key:
    """Return the key that a key, a plain tuple, or a result stands for. Raises TypeError for any other value."""
    if isinstance(named, kind):
        return named
    is_plain = isinstance(named, tuple | list) and not hasattr(named, "_fields")
    given = {field: getattr(named, field) for field in kind._fields if hasattr(named, field)}
    try:
        return kind(*named) if is_plain else kind(**given)
    except TypeError as exc:
        fields = ", ".join(kind._fields)
        raise TypeError(
            f"expected {kind.__name__}({fields}), a plain tuple or a result with these, not {named!r:.100}"
        ) from exc


def run_key(named: AnyRun) -> DagRunKey:
    """Return the key of a run, from anything that names it."""
    return key_of(DagRunKey, named)


def task_key(named: AnyTask) -> TaskInstanceKey:
    """Return the key of a task instance, from anything that names it."""
    return key_of(TaskInstanceKey, named)


def instance_name(task_id: str, map_index: int) -> str:
    """Return the name of a task instance within its run: `load`, or `load[3]` if the task is mapped."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"
