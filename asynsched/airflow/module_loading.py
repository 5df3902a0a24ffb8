"""Finds objects by their dotted names, and names by their objects."""

from __future__ import annotations

import re

from asynsched.authoring.class_paths import imported as import_string

__all__ = ["import_string", "is_async_callable", "is_valid_dotpath", "iter_namespace", "qualname"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

_DOTTED = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*(\.[a-zA-Z_][a-zA-Z0-9_]*)*")


def qualname(o: object | Callable[..., Any], use_qualname: bool = False, exclude_module: bool = False) -> str:
    """Return the name by which `import_string` finds a class or function; for other objects that of their class.

    Args:
        o: A class, a function, or any object.
        use_qualname: Whether the name of a nested one has the names around it.
        exclude_module: Whether to leave out the module; then nested names are whole.
    """
    from functools import partial

    if exclude_module and isinstance(o, partial):
        return qualname(o.func, exclude_module=True)
    named = o if hasattr(o, "__name__") and hasattr(o, "__module__") and callable(o) else type(o)
    whole: str = getattr(named, "__qualname__", named.__name__)
    if exclude_module:
        return whole
    is_whole = use_qualname or named is not o
    return f"{named.__module__}.{whole if is_whole else named.__name__}"


def iter_namespace(ns: ModuleType) -> Iterator[Any]:
    """Yield the modules of a package, as `pkgutil.ModuleInfo` with whole names."""
    import pkgutil

    return pkgutil.iter_modules(ns.__path__, f"{ns.__name__}.")


def is_valid_dotpath(path: str) -> bool:
    """Return whether a text has the form `package.module.name`."""
    return isinstance(path, str) and _DOTTED.fullmatch(path) is not None


def is_async_callable(func: Any) -> bool:
    """Return whether a call of this function, partial or object gives a coroutine."""
    from functools import partial
    from inspect import iscoroutinefunction, unwrap

    while isinstance(func, partial):
        func = func.func
    if callable(func):
        func = unwrap(func)
    return iscoroutinefunction(func) or iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004
