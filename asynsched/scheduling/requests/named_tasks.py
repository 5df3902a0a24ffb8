"""The tasks and instances that somebody names are those of the run, or one message says which are not."""

from collections.abc import Collection, Iterable, Sequence

from asynsched.errors import AsynschedError, NotFound
from asynsched.store.rows import near_names
from asynsched.store.runs.task_instances import TaskInstanceRow


def check_tasks(task_ids: Iterable[str], known: Collection[str]) -> None:
    """Raise NotFound, with near names, for the first task that is not known."""
    for task_id in task_ids:
        if task_id not in known:
            raise NotFound("task", task_id, near_names(task_id, known))


def check_instances(instances: Sequence[TaskInstanceRow], task_ids: Collection[str], map_index: int) -> None:
    """Raise AsynschedError unless each of the tasks has an instance of that map index in a run.

    Args:
        instances: Those of the run.
        task_ids: Tasks of the run's DAG.
        map_index: -1 for a task that is not mapped.
    """
    if not task_ids:
        raise AsynschedError(f"No task is named whose instance {map_index} is meant: name one.")
    for task_id in task_ids:
        indexes = sorted(instance.map_index for instance in instances if instance.task_id == task_id)
        if map_index not in indexes:
            raise AsynschedError(no_such_instance(task_id, map_index, indexes))


def no_such_instance(task_id: str, map_index: int, indexes: Sequence[int]) -> str:
    """Return what to say where a task has no instance of that map index.

    Args:
        indexes: Those that it has, sorted.
    """
    if not indexes:
        return f"The task {task_id!r} has no instances in this run yet."
    if indexes[-1] < 0:
        return f"The task {task_id!r} has no instance {map_index}, it has one only: leave the map index out."
    known = f"{indexes[0]} to {indexes[-1]}" if len(indexes) > 1 else str(indexes[0])
    missing = "is mapped" if map_index < 0 else f"is mapped, but has no instance {map_index}"
    return f"The task {task_id!r} {missing}: say which by its map index, {known}."
