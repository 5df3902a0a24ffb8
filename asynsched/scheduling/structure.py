"""The structure of one DAG version, made ready for decisions: who is up- and downstream of whom."""

from collections.abc import Mapping
from dataclasses import dataclass

from asynsched.scheduling.rules.priority import total_weights
from asynsched.serialization.schema import SerializedDag, SerializedTask


@dataclass(frozen=True, slots=True)
class DagStructure:
    """A DAG version's tasks and edges, by task_id.

    `position` is a task's place in topological order. `deciding` are the tasks whose end decides the run's: the leaves,
    where teardowns that do not fail the run are looked through.
    """

    dag: SerializedDag
    tasks: Mapping[str, SerializedTask]
    downstream: Mapping[str, tuple[str, ...]]
    upstream: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]
    position: Mapping[str, int]
    teardowns: frozenset[str]
    deciding: frozenset[str]


def compile_structure(dag: SerializedDag) -> DagStructure:
    """Return the structure of a serialized DAG."""
    upstream: dict[str, list[str]] = {task.task_id: [] for task in dag.tasks}
    for task in dag.tasks:
        for target in task.downstream_task_ids:
            upstream[target].append(task.task_id)
    return DagStructure(
        dag=dag,
        tasks={task.task_id: task for task in dag.tasks},
        downstream={task.task_id: task.downstream_task_ids for task in dag.tasks},
        upstream={task_id: tuple(ids) for task_id, ids in upstream.items()},
        weights=total_weights(dag.tasks),
        position={task.task_id: place for place, task in enumerate(dag.tasks)},
        teardowns=frozenset(task.task_id for task in dag.tasks if task.is_teardown),
        deciding=_deciding(dag.tasks),
    )


def _deciding(tasks: tuple[SerializedTask, ...]) -> frozenset[str]:
    """Return the leaves of the DAG once the teardowns that do not fail the run are taken out of it."""
    ignored = {task.task_id for task in tasks if task.is_teardown and not task.on_failure_fail_dagrun}
    leaves = (
        task.task_id for task in tasks if task.task_id not in ignored and ignored.issuperset(task.downstream_task_ids)
    )
    return frozenset(leaves) or frozenset(task.task_id for task in tasks if not task.downstream_task_ids)
