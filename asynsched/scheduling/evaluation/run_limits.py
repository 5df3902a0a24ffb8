"""What limits the tasks of a run, beside pools and parallelism: Airflow's `max_active_*`, and the DAG's pause."""

from collections.abc import Mapping
from types import MappingProxyType

from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.limit import Limit
from asynsched.scheduling.evaluation.ready_queues import ReadyQueues


class RunLimits:
    """Makes and keeps the limits that tasks share.

    Args:
        max_active_tasks: Tasks of one run at once, where its DAG says nothing.
        executors: How many tasks each executor takes, by name, the default first; empty: there is one, which takes all.
    """

    def __init__(self, max_active_tasks: int, executors: Mapping[str, int] = MappingProxyType({})) -> None:
        self._max_active_tasks = max_active_tasks
        self._executors = {
            name: Limit(f"executor {name}", capacity, is_wide=True) for name, capacity in executors.items()
        }
        self._default_executor = next(iter(executors), None)
        self._runs: dict[DagRunKey, Limit] = {}
        self._dags: dict[str, Limit] = {}
        self._tasks: dict[str | DagRunKey, dict[str, tuple[Limit, int]]] = {}
        """Those of single tasks, of a DAG or of a run of it."""

    def of(self, task: ActiveTask) -> tuple[Limit, ...]:
        """Return the limits of a task instance, always the same objects in the same order."""
        run = task.run
        limits = [self._dag(run.key.dag_id), self._run(run)]
        if task.task.max_active_tis_per_dag is not None:
            limits.append(self._task(run.key.dag_id, task, "max_active_tis_per_dag", task.task.max_active_tis_per_dag))
        if task.task.max_active_tis_per_dagrun is not None:
            capacity = task.task.max_active_tis_per_dagrun
            limits.append(self._task(run.key, task, "max_active_tis_per_dagrun", capacity))
        if self._default_executor is not None:
            limits.append(self._executor(task.task.executor or self._default_executor))
        return tuple(limits)

    def obstacle(self, task: ActiveTask) -> str:
        """Return why a task's executor can never take it as things are; empty if it can."""
        if self._default_executor is None:
            return ""
        limit = self._executor(task.task.executor or self._default_executor)
        return limit.name if limit.capacity == 0 else ""

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Hold a DAG's ready tasks back, or let them go again."""
        limit = self._dag(dag_id)
        limit.capacity = 0 if paused else None
        ReadyQueues.reopen([limit])

    def shared(self, task: ActiveTask) -> Limit | None:
        """Return the limit of a task that spans the runs of its DAG, other schedulers' too; None: it has none."""
        if task.task.max_active_tis_per_dag is None:
            return None
        return self._task(task.run.key.dag_id, task, "max_active_tis_per_dag", task.task.max_active_tis_per_dag)

    def shared_of(self, dag_id: str) -> dict[str, Limit]:
        """Return the limits that span the runs of a DAG, by task."""
        return {task_id: limit for task_id, (limit, _) in self._tasks.get(dag_id, {}).items()}

    @property
    def all_shared(self) -> list[Limit]:
        """The limits that span the runs of a DAG, of every DAG."""
        return [limit for owner in self._tasks if isinstance(owner, str) for limit in self.shared_of(owner).values()]

    def forget(self, run: ActiveRun) -> Limit:
        """Drop the limits of a run that is no longer active, and return the one that all its tasks shared."""
        limit = self._run(run)
        del self._runs[run.key]
        self._tasks.pop(run.key, None)
        return limit

    def _executor(self, name: str) -> Limit:
        if name not in self._executors:
            what = f"there is no executor {name!r}; known: {', '.join(self._executors)}"
            self._executors[name] = Limit(what, 0, release=f"the setting `executor` names {name}", is_wide=True)
        return self._executors[name]

    def _dag(self, dag_id: str) -> Limit:
        if dag_id not in self._dags:
            self._dags[dag_id] = Limit(f"the DAG {dag_id} is paused", None, release="it is unpaused")
        return self._dags[dag_id]

    def _run(self, run: ActiveRun) -> Limit:
        if run.key not in self._runs:
            capacity = run.structure.dag.max_active_tasks or self._max_active_tasks
            self._runs[run.key] = Limit("max_active_tasks", capacity)
        return self._runs[run.key]

    def _task(self, owner: str | DagRunKey, task: ActiveTask, setting: str, capacity: int) -> Limit:
        limits, version_id = self._tasks.setdefault(owner, {}), task.run.version_id
        limit, of_version = limits.get(task.task_id) or (Limit(f"{setting} of {task.task_id}", capacity), version_id)
        if version_id > of_version:
            # The newest version that is active decides for all: the limit spans its runs.
            limit.capacity, of_version = capacity, version_id
        limits[task.task_id] = (limit, of_version)
        return limit
