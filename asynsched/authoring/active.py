"""Which DAG and task group the statements of a DAG file are inside of, and which DAGs a file has made, or has not."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.task_group import TaskGroup

_dags: list[DAG | None] = []
_groups: list[TaskGroup | None] = []
_registered: dict[int, DAG] = {}
_dag_functions: dict[FunctionType, bool] = {}


def push_dag(dag: DAG | None) -> None:
    """Enter a DAG; None hides the DAGs around."""
    _dags.append(dag)
    # A group around does not hold the tasks of another DAG.
    _groups.append(None)


def pop_dag() -> DAG | None:
    """Leave the innermost DAG."""
    _groups.pop()
    return _dags.pop()


def current_dag() -> DAG | None:
    """Return the innermost DAG, None outside of all."""
    return _dags[-1] if _dags else None


def push_group(group: TaskGroup) -> None:
    """Enter a task group."""
    _groups.append(group)


def pop_group() -> TaskGroup | None:
    """Leave the innermost task group."""
    return _groups.pop()


def current_group(dag: DAG | None) -> TaskGroup | None:
    """Return the innermost task group if it belongs to `dag`, else that DAG's root group; None without a DAG."""
    group = _groups[-1] if _groups else None
    if group is not None and (dag is None or group.dag is dag):
        return group
    return None if dag is None else dag.task_group


def register(dag: DAG) -> None:
    """Remember a DAG that a file has made, also when it keeps it in no variable."""
    # By identity: two DAGs of one dag_id are two, and an error when they are collected.
    _registered[id(dag)] = dag


def registered() -> tuple[DAG, ...]:
    """Return the DAGs that were registered, in order."""
    return tuple(_registered.values())


def note_dag_function(function: FunctionType, *, is_called: bool) -> None:
    """Remember that a function was decorated with `@dag`, or that this was called."""
    _dag_functions[function] = is_called


def forgotten_dag_functions(path: str) -> list[FunctionType]:
    """Return the functions of a file, or of an archive, that were decorated with `@dag`, if none of them was called."""
    own = {
        function: is_called
        for function, is_called in _dag_functions.items()
        if hasattr(function, "__code__") and f"{function.__code__.co_filename}/".startswith(f"{path}/")
    }
    return [] if any(own.values()) else list(own)


def forget_registered() -> None:
    """Forget all registered DAGs, before another file is imported."""
    _registered.clear()
    _dag_functions.clear()
