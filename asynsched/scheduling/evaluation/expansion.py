"""Mapped tasks become instances, once it is known how many; and again when that has changed since.

Source: Apache Airflow's `TaskMap.expand_mapped_task` and `DagRun._revise_map_indexes_if_mapped`.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.serialization.schema import SerializedTask
from asynsched.states import TaskInstanceState

State = TaskInstanceState


def first_instances(run: ActiveRun, known: Collection[str] = ()) -> Iterator[ActiveTask]:
    """Make the instances that tasks have when their run begins: one each, or as many as it is known to be mapped to.

    Args:
        run: The run.
        known: Ids of the tasks that have instances already.
    """
    for task in run.structure.dag.tasks:
        if task.task_id not in known:
            n_instances = run.map_count(task.task_id) if run.structure.is_mapped(task.task_id) else None
            for map_index in range(n_instances) if n_instances else (-1,):
                yield _instance(run, task, map_index)


class Expansion:
    """Expands mapped tasks of active runs.

    Args:
        changes: Takes every change.
    """

    def __init__(self, changes: StateChanges) -> None:
        self._changes = changes

    def make_instances(self, task: ActiveTask, *, at_most: int) -> int:
        """Make instances that `expand` is to put in the place of an unexpanded one; return how many, 0: all are made.

        Nobody sees them until then: a crash before is one before the expansion.
        """
        run = task.run
        made = run.half_expanded.setdefault(task.task_id, [])
        n_instances = run.map_count(task.task_id) or 0
        indexes = range(len(made), min(n_instances, len(made) + at_most))
        made += [_instance(run, task.task, map_index) for map_index in indexes]
        return len(indexes)

    def expand(self, task: ActiveTask, now: datetime) -> list[ActiveTask]:
        """Put the instances that were made in the place of an unexpanded one, and return them.

        Where there are to be none, it is settled.
        """
        run = task.run
        new = run.half_expanded.pop(task.task_id, [])
        n_instances = run.map_count(task.task_id)
        if n_instances is None:
            sources = ", ".join(run.structure.map_sources[task.task_id])
            reason = f"there is nothing to map over: of {sources}, not all have returned values that can be mapped over"
            self._changes.set_state(task, State.UPSTREAM_FAILED, reason, now)
        elif n_instances == 0:
            self._changes.set_state(task, State.SKIPPED, "it is mapped over nothing", now)
        else:
            run.replace(task.task_id, gone=[task], new=new)
            self._changes.pending.expand(task, new)
            return new
        return []

    def remap(self, task: ActiveTask, now: datetime) -> list[ActiveTask]:
        """Fit the number of instances to what it would be now, and return what is to be looked at because of that.

        Looked at once after a run was taken up, when all that it is mapped over has ended: that may have been cleared
        and run again.
        """
        run, task_id = task.run, task.task_id
        if task_id not in run.to_be_remapped or any(map(run.unfinished_of.get, run.structure.map_sources[task_id])):
            return []
        run.to_be_remapped.discard(task_id)
        n_instances = run.map_count(task_id)
        instances = run.instances[task_id]
        if n_instances is None:
            return []
        gone = [found for index, found in instances.items() if index >= n_instances]
        self._remove(gone, n_instances, now)
        new = [_instance(run, task.task, index) for index in range(n_instances) if index not in instances]
        run.replace(task_id, gone=(), new=new)
        self._changes.pending.expand(None, new)
        # What is mapped over results of instances that are gone has others now, too.
        refitted = [found for task in gone for found in self.remap_after(task, now)]
        # Instances of a mapped group depend on others now.
        return [*new, *refitted, *run.waiting_after(task_id)]

    def remap_after(self, source: ActiveTask, now: datetime) -> list[ActiveTask]:
        """Do so for what is mapped over a task that has ended, and has not ended itself.

        By their trigger rules its instances may run already, or wait for room, and then none of them is looked at.
        """
        run = source.run
        if not source.is_finished:
            return []
        sources = run.structure.map_sources
        mapped = [task_id for task_id in run.to_be_remapped if source.task_id in sources[task_id]]
        unfinished = [task_id for task_id in sorted(mapped) if run.unfinished_of[task_id]]
        return [
            found for task_id in unfinished for found in self.remap(next(iter(run.instances[task_id].values())), now)
        ]

    def _remove(self, tasks: Iterable[ActiveTask], n_instances: int, now: datetime) -> None:
        reason = f"it is mapped over {n_instances} values now"
        for task in tasks:
            if task.state is not State.REMOVED:
                self._changes.set_state(task, State.REMOVED, reason, now)


def _instance(run: ActiveRun, task: SerializedTask, map_index: int) -> ActiveTask:
    return ActiveTask(run, task, map_index=map_index, max_tries=task.retries)
