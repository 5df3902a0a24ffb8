"""Checks of the arguments that `partial()` and `expand()` are given."""

from __future__ import annotations

from asynsched.authoring.running.context import CONTEXT_KEYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a function's parameters, and whether it takes any others (`*` or `**`)."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in variadic]
    return names, len(names) < len(parameters)


def check_names(function: Callable[..., Any], method: str, given: Iterable[str]) -> None:
    """Raise TypeError for arguments that a decorated function cannot be given by `partial` or `expand`."""
    names, takes_any = parameters_of(function)
    name = getattr(function, "__name__", "function")
    for key in given:
        if key in CONTEXT_KEYS:
            raise TypeError(f"{name}.{method}(): {key!r} is given by the task's context, and cannot be set")
        if key not in names and not takes_any:
            raise TypeError(f"{name}.{method}(): the function has no argument {key!r}")


def refuse_repeated(who: str, given: Iterable[str], mapped: Iterable[str]) -> None:
    """Raise TypeError for arguments that are given twice, or are to be mapped although all instances share them."""
    repeated = sorted(set(given).intersection(mapped))
    if repeated:
        raise TypeError(f"{who}: given already, or not to be mapped over: {', '.join(repeated)}")
