"""Why a DAG gets a new version: the parts of its structure, and the code, that differ."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from asynsched.protocol.messages import SourceRef
from asynsched.queries.changed_graph import ChangedGraph, changed_graph, edges_of
from asynsched.serialization.schema import SerializedDag, SerializedTask, meaning_of
from asynsched.timetables import TimetablePlan


class DagState(Struct, frozen=True):
    """A DAG of a state. `sources`: the DAG file first, then the local modules that it imports."""

    file: str
    dag: SerializedDag
    version_hash: str
    sources: tuple[SourceRef, ...] = ()
    plan: TimetablePlan | None = None


class FieldChange(Struct, frozen=True):
    """A field of a DAG or task with another value; the values are JSON."""

    field: str
    before: Any
    after: Any


class TaskChange(Struct, frozen=True):
    """A task that both states have, with its changed fields."""

    task_id: str
    fields: tuple[FieldChange, ...]


class DagChange(Struct, frozen=True):
    """A DAG that gets a new version.

    Attributes:
        reasons: The parts that changed, such as `schedule`, `tasks` or `code of etl.py`.
        fields: Changed fields of the DAG itself, among them its schedule.
        graph: The picture of the changed tasks and edges; None if they are the same.
    """

    dag_id: str
    file: str
    reasons: tuple[str, ...]
    fields: tuple[FieldChange, ...]
    tasks_added: tuple[str, ...]
    tasks_removed: tuple[str, ...]
    tasks_changed: tuple[TaskChange, ...]
    graph: ChangedGraph | None


_NOT_FIELDS = frozenset({"tasks", "timetable", "schedule_summary", "asset_condition", "partitions", "installation"})
"""Parts of a DAG that have a reason, or a place, of their own."""
_OF_EDGES = frozenset({"task_id", "downstream_task_ids", "edge_labels"})
OF_SCHEDULE = ("timetable", "asset_condition", "partitions")
"""The parts of a DAG that say when it runs, beside its dates."""


def dag_change(old: DagState, new: DagState, texts: Mapping[str, str]) -> DagChange:
    """Return why a DAG gets a new version.

    Args:
        texts: The texts of both versions' sources, by content hash. Two whose texts are unknown are compared by hash.
    """
    old_tasks, new_tasks = ({task.task_id: task for task in state.dag.tasks} for state in (old, new))
    tasks = tuple(
        TaskChange(task_id, fields)
        for task_id, task in new_tasks.items()
        if task_id in old_tasks and (fields := tuple(_fields(old_tasks[task_id], task, _OF_EDGES)))
    )
    fields = tuple(_fields(old.dag, new.dag, _NOT_FIELDS))
    schedule = _schedule_fields(old.dag, new.dag)
    same_edges = edges_of(old.dag) == edges_of(new.dag)
    has_graph = not same_edges or bool(tasks) or old_tasks.keys() != new_tasks.keys()
    reasons = [
        *(["file"] if old.file != new.file else []),
        *(["schedule"] if schedule else []),
        *(["tasks"] if tasks or old_tasks.keys() != new_tasks.keys() else []),
        *(["edges"] if not same_edges else []),
        *(change.field for change in fields),
        *(["plugins, policies or include"] if old.dag.installation != new.dag.installation else []),
        *_code_changes(old, new, texts),
    ]
    return DagChange(
        dag_id=new.dag.dag_id,
        file=new.file,
        reasons=tuple(reasons) or ("another version of Python or asynsched",),
        fields=(*schedule, *fields),
        tasks_added=tuple(task_id for task_id in new_tasks if task_id not in old_tasks),
        tasks_removed=tuple(task_id for task_id in old_tasks if task_id not in new_tasks),
        tasks_changed=tasks,
        graph=changed_graph(old.dag, new.dag, frozenset(task.task_id for task in tasks)) if has_graph else None,
    )


def _fields(
    old: SerializedDag | SerializedTask, new: SerializedDag | SerializedTask, without: Collection[str]
) -> Iterator[FieldChange]:
    for name in new.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if name not in without and before != after:
            yield FieldChange(name, msgspec.to_builtins(before), msgspec.to_builtins(after))


def _schedule_fields(old: SerializedDag, new: SerializedDag) -> tuple[FieldChange, ...]:
    if all(getattr(old, name) == getattr(new, name) for name in OF_SCHEDULE):
        return ()
    before, after = (dag.schedule_summary or None for dag in (old, new))
    if before != after:
        return (FieldChange("schedule", before, after),)
    return tuple(
        FieldChange(name, msgspec.to_builtins(getattr(old, name)), msgspec.to_builtins(getattr(new, name)))
        for name in OF_SCHEDULE
        if getattr(old, name) != getattr(new, name)
    )


def _code_changes(old: DagState, new: DagState, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the sources whose syntax trees differ: those, not the texts, make a version."""
    before, after = ({source.path: source.content_hash for source in state.sources} for state in (old, new))
    for path in dict.fromkeys([*after, *before]):
        if path not in before or path not in after:
            yield f"{path} {'is' if path in after else 'is no longer'} imported"
        elif before[path] != after[path] and _meaning(before[path], texts) != _meaning(after[path], texts):
            yield f"code of {path}"


def _meaning(content_hash: str, texts: Mapping[str, str]) -> str:
    return meaning_of(texts[content_hash]) if content_hash in texts else content_hash
