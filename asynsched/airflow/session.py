"""Stand-ins for functions that use Airflow's database: modules may import them, but a call raises an error."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

NEW_SESSION: Any = None


def create_session(scoped: bool = True) -> NoReturn:
    """Raise AsynschedException: user code has no access to the database."""
    del scoped
    raise AsynschedException(
        "user code has no access to the database; use Variable, Connection, XComs and the task's context instead"
    )


def configure_orm(disable_connection_pool: bool = False, pool_class: Any = None) -> None:
    """Do nothing: a process that user code starts needs no connections to the database, as it has no access to it."""
    del disable_connection_pool, pool_class


def provide_session(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that has an argument `session`. Only calls that pass a session work; a parse warns of it.

    Raises:
        ValueError: The function has no such argument.
    """
    import warnings
    from functools import wraps
    from inspect import signature

    from asynsched.authoring.active import show_only_in_parses
    from asynsched.errors import DagWarning

    names = list(signature(func).parameters)
    if "session" not in names:
        raise ValueError(f"the function {func.__qualname__} has no argument 'session'")
    place = names.index("session")
    what = f"{func.__qualname__} asks Airflow's database, which tasks cannot reach: a call without a session fails"
    show_only_in_parses(DagWarning)
    warnings.warn(f"{what}; use Variable, Connection, XComs and the task's context instead", DagWarning, stacklevel=2)

    @wraps(func)
    def with_session(*args: Any, **kwargs: Any) -> Any:
        if "session" not in kwargs and len(args) <= place:
            create_session()
        return func(*args, **kwargs)

    return with_session


class NoTable(type):
    """The type of stand-ins for tables: their columns do not exist."""

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        create_session()


class TaskReschedule(metaclass=NoTable):
    """Stands for a table that the OpenLineage provider queries in Airflow's own processes only."""


class _Serialized:
    """What Airflow's scheduler makes of DAG files and keeps in its database."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        create_session()


class SerializedDAG(_Serialized):
    """Stands for a class that the OpenLineage provider compares the class of a DAG with: no DAG here is one."""


class SerializedBaseOperator(_Serialized):
    """Stands for a class that the OpenLineage provider compares the class of a task with: no task here is one."""


class SerializedMappedOperator(_Serialized):
    """Stands for a class that the OpenLineage provider compares the class of a task with: no task here is one."""


def clear_task_instances(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise AsynschedException: a task cannot clear others."""
    raise AsynschedException("user code cannot clear task instances; use `asynsched tasks clear`")


def expand_alias_to_assets(alias_name: str, **_session: Any) -> NoReturn:
    """Raise AsynschedException: user code has no access to the database."""
    raise AsynschedException(f"user code cannot ask for the assets of the alias {alias_name!r}")
