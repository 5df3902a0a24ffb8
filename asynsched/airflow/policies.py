"""Cluster policies: functions of `airflow_local_settings` that check or change every DAG, task and task instance.

Source of the names, of where they are found and of how they are called: Apache Airflow 3.3.2, `airflow/policies.py`.
"""

from __future__ import annotations

from asynsched.airflow.exceptions import AirflowClusterPolicySkipDag
from asynsched.airflow.installation import LOCAL_SETTINGS
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from asynsched.authoring.awaited_try import AwaitedTry
    from asynsched.authoring.dag import DAG

ENTRY_POINTS = "airflow.policy"
PROJECT = "airflow.policy"
CONTEXT_VARIABLES = "get_airflow_context_vars"
TASK_INSTANCE = "task_instance_mutation_hook"
NAMES = ("dag_policy", "task_policy", TASK_INSTANCE, CONTEXT_VARIABLES)


class PolicyError(DagError):
    """A policy refuses a DAG, or failed."""


class Policies:
    """The policies of this process, by name, in the order in which they apply: the file has the last word."""

    def __init__(self) -> None:
        self._hook_errors: dict[str, tuple[str, str, int]] = {}
        """Of hooks that could not route tries, by source: the first such task, its error, the number of other tasks."""
        self._functions: dict[str, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in NAMES}

    def __bool__(self) -> bool:
        return any(self._functions.values())

    def load(self, entry_points: str) -> None:
        """Load the policies of packages (entry points `module:object`, separated by spaces), then the file's policies.

        Raises PolicyError if one of them cannot be imported.
        """
        from asynsched.airflow.plugins_manager import _object_at

        for value in entry_points.split():
            try:
                self._add(value, _object_at(value), only_marked=True)
            except Exception as exc:
                raise PolicyError(f"the policies of {value} cannot be loaded: {type(exc).__name__}: {exc}") from exc
        try:
            module = _object_at(LOCAL_SETTINGS)
        except ModuleNotFoundError as exc:
            if exc.name != LOCAL_SETTINGS:
                raise _unusable(exc) from exc
        except Exception as exc:
            raise _unusable(exc) from exc
        else:
            self._add(str(getattr(module, "__file__", LOCAL_SETTINGS)), module, only_marked=False)

    def _add(self, source: str, owner: Any, *, only_marked: bool) -> None:
        public = getattr(owner, "__all__", NAMES)
        for name in NAMES:
            function = getattr(owner, name, None) if name in public else None
            if callable(function) and (not only_marked or hasattr(function, f"{PROJECT}_impl")):
                self._functions[name].append((source, function))

    def admits(self, dag: DAG) -> bool:
        """Apply the policies of DAGs and tasks; return False for a DAG that is to be left out without an error.

        Raises PolicyError: A policy refuses the DAG, or fails. The message names the policy.
        """
        try:
            self._call("dag_policy", f"DAG {dag.dag_id!r}", dag)
            for task in dag.tasks:
                self._call("task_policy", f"DAG {dag.dag_id!r}, task {task.task_id!r}", task)
        except AirflowClusterPolicySkipDag:
            return False
        return True

    @property
    def mutate_tries(self) -> bool:
        """Whether there is a hook of task instances."""
        return bool(self._functions[TASK_INSTANCE])

    def mutate(self, task_instance: Any, dag_run: Any) -> None:
        """Apply the hook of task instances. An error of the hook is raised."""
        for _, function in self._functions[TASK_INSTANCE]:
            function(*(task_instance, dag_run)[: _n_parameters(function)])

    def route(self, awaited: AwaitedTry) -> bool:
        """Apply the hook of task instances to a try before there is a run; return False if it raises an error."""
        for source, function in self._functions[TASK_INSTANCE]:
            try:
                function(*(awaited, None)[: _n_parameters(function)])
            except Exception as exc:  # noqa: BLE001 - user code
                who = f"DAG {awaited.dag_id!r}, task {awaited.task_id!r} (try_number {awaited.try_number})"
                who, error, n_more = self._hook_errors.get(source, (who, f"{type(exc).__name__}: {exc}", -1))
                self._hook_errors[source] = (who, error, n_more + 1)
                return False
        return True

    def hook_errors(self) -> Iterator[str]:
        """Yield a sentence for each source whose hook of task instances could not route tries."""
        for source, (who, error, n_more) in self._hook_errors.items():
            more = f" and {n_more} more" if n_more else ""
            yield (
                f"the {TASK_INSTANCE} of {source} raised an error when the file was parsed, for {who}{more},"
                f" whose tries keep the task's own pool, queue and priority: {error}"
            )

    def context_variables(self, context: Any) -> dict[str, str]:
        """Return the variables that policies add to a task's context: those of the last policy that returns any."""
        for _, function in reversed(self._functions[CONTEXT_VARIABLES]):
            found: dict[str, str] | None = function(context)
            if found is not None:
                return found
        return {}

    def sources(self, name: str) -> list[str]:
        """Return where the policies of a name come from."""
        return [source for source, _ in self._functions[name]]

    def _call(self, name: str, who: str, subject: Any) -> None:
        from asynsched.airflow.exceptions import AirflowClusterPolicyViolation

        for source, function in self._functions[name]:
            try:
                function(subject)
            except AirflowClusterPolicySkipDag:
                raise
            except AirflowClusterPolicyViolation as exc:
                raise PolicyError(f"{who}: the {name} of {source} refuses it: {exc}") from exc
            except Exception as exc:
                raise PolicyError(f"{who}: the {name} of {source} raised {type(exc).__name__}: {exc}") from exc


def _unusable(exc: Exception) -> PolicyError:
    return PolicyError(f"{LOCAL_SETTINGS} cannot be imported: {type(exc).__name__}: {exc}")


def _n_parameters(function: Callable[..., Any]) -> int:
    import inspect

    return len(inspect.signature(function).parameters)


def hookimpl(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a policy of a package, as pluggy does; packages name their policies as entry points `airflow.policy`."""
    from pluggy import HookimplMarker

    return HookimplMarker(PROJECT)(function, **options)
