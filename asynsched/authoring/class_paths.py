"""Objects by their names `package.module.name`, such as classes that settings, triggers and DAG files name."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")


def imported(path: str) -> Any:
    """Return the object `package.module.name`. Raises ImportError if there is none."""
    from importlib import import_module

    module_path, dot, name = path.rpartition(".")
    if not dot:
        raise ImportError(f"{path!r} is not the name of an object in a module: write module.name")
    module = import_module(module_path)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"the module {module_path!r} has no {name!r}") from None


def imported_class(path: str, base: type[T]) -> type[T]:
    """Return the subclass of a base class. Raises ImportError, whose message names the path, if there is none."""
    try:
        found = imported(path)
    except ImportError as exc:
        raise ImportError(f"{path!r} cannot be imported: {exc}") from exc
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ImportError(f"{path!r} must name a subclass of {base.__name__}")  # noqa: TRY004 - callers catch one error
    return found
