"""Stand-ins for sessions of Airflow's database: a module may import them, and nothing can be done with them."""

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


def provide_session(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that has an argument `session`. Only calls that pass a session work.

    Raises:
        ValueError: The function has no such argument.
    """
    from functools import wraps
    from inspect import signature

    names = list(signature(func).parameters)
    if "session" not in names:
        raise ValueError(f"the function {func.__qualname__} has no argument 'session'")
    place = names.index("session")

    @wraps(func)
    def with_session(*args: Any, **kwargs: Any) -> Any:
        if "session" not in kwargs and len(args) <= place:
            create_session()
        return func(*args, **kwargs)

    return with_session
