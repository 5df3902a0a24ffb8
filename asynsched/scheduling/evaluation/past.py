"""Runs whose tasks depend on the run before: `depends_on_past` and `wait_for_downstream` across active runs.

The loader reads a run's past from the database together with the run. While the run before is active here, its changes
are passed on as they happen; otherwise the evaluator's sweep reads the past again.
"""

from collections.abc import Iterable

from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.rules.past_depends import PastTask


class PastLinks:
    """Knows which active run comes after which.

    Args:
        runs: The active runs.
    """

    def __init__(self, runs: dict[DagRunKey, ActiveRun]) -> None:
        self._runs = runs
        self._after: dict[DagRunKey, set[DagRunKey]] = {}
        self._changed: dict[DagRunKey, set[str]] = {}

    def add(self, run: ActiveRun) -> None:
        """Link a run that was taken up to the active runs before and after it."""
        if run.key_before is not None and run.structure.depend_on_past:
            self._after.setdefault(run.key_before, set()).add(run.key)
            if run.key_before in self._runs:
                self._pass_on(self._runs[run.key_before], run, run.structure.depend_on_past)
        for later in self._later(run):
            self._pass_on(run, later, later.structure.depend_on_past)

    def remove(self, run: ActiveRun) -> None:
        """Forget a run that is no longer active; later runs keep their knowledge of it."""
        self._changed.pop(run.key, None)
        if run.key_before is not None and run.key_before in self._after:
            self._after[run.key_before].discard(run.key)
            if not self._after[run.key_before]:
                del self._after[run.key_before]

    def task_changed(self, task: ActiveTask) -> None:
        """Pass a task instance's change of state on to the later runs."""
        if task.run.key not in self._after:
            return
        for later in self._later(task.run):
            names = later.structure.depend_on_past
            above = names.intersection(task.run.structure.upstream[task.task_id])
            waits = {other for other in above if later.structure.tasks[other].wait_for_downstream}
            self._pass_on(task.run, later, waits | (names & {task.task_id}))

    def take_changed(self) -> list[tuple[ActiveRun, list[ActiveTask]]]:
        """Return the task instances whose past has changed, by run, and forget them."""
        changed, self._changed = self._changed, {}
        return [
            (run, [task for task_id in sorted(task_ids) for task in run.instances[task_id].values()])
            for key, task_ids in changed.items()
            if (run := self._runs.get(key)) is not None
        ]

    def _later(self, run: ActiveRun) -> list[ActiveRun]:
        return [self._runs[key] for key in sorted(self._after.get(run.key, ())) if key in self._runs]

    def _pass_on(self, before: ActiveRun, later: ActiveRun, task_ids: Iterable[str]) -> None:
        for task_id in sorted(task_ids):
            found, known = past_task(before, task_id), later.past.get(task_id)
            if found.n_instances:
                later.past[task_id] = found
                # Of ten thousand instances in the run before, only the last bad one makes a difference.
                if known is None or _gate(known) != _gate(found):
                    self._changed.setdefault(later.key, set()).add(task_id)


def instances_with_past(run: ActiveRun) -> list[ActiveTask]:
    """Return the task instances of a run that depend on the run before."""
    return [task for task_id in run.structure.depend_on_past for task in run.instances[task_id].values()]


def past_task(run: ActiveRun, task_id: str) -> PastTask:
    """Return the past that a run in memory gives to the same task of the next run."""
    downstream = run.structure.downstream.get(task_id, ())
    return PastTask(
        run_id=run.key.run_id,
        n_instances=len(run.instances.get(task_id, ())),
        n_bad=run.bad_of[task_id],
        n_bad_downstream=sum(run.bad_of[other] for other in downstream),
    )


def _gate(past: PastTask) -> tuple[bool, bool, bool]:
    """Return the facts of a task's past that decide whether it may run."""
    return past.n_instances > 0, past.n_bad > 0, past.n_bad_downstream > 0
