"""Checks the arguments of operators and DAGs against the types that their constructors name.

A value of a wrong type passes in silence where Python takes anything: the text "False" is true, and a text is a list of
letters. Only what the annotations of asynsched's own constructors say is checked, and of it flags, texts, lists, dicts,
functions and lengths of time: numbers and dates have checks of their own, which convert them.

Source:
    Airflow's BASEOPERATOR_ARGS_EXPECTED_TYPES, which names the types of BaseOperator's arguments alone.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.xcom_arg import ResolveMixin
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    Check = Callable[[Any], bool]

_LISTS = ("list", "Collection", "Sequence", "Iterable", "set", "tuple")
_DICTS = ("dict", "Mapping")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) and not _is_dict(value)


def _is_dict(value: Any) -> bool:
    return hasattr(value, "keys") and hasattr(value, "__getitem__")


def _is_length(value: Any) -> bool:
    # A `dateutil.relativedelta`, too: what is subtracted from a date may be a month, as in Airflow.
    return isinstance(value, dt.timedelta) or (hasattr(value, "months") and hasattr(value, "__rsub__"))


_CHECKS: dict[str, tuple[str, Check]] = {
    "bool": ("True or False", lambda value: value is None or isinstance(value, bool)),
    "str": ("a text", _is_text),
    **dict.fromkeys(_LISTS, ("a list", _is_list)),
    **dict.fromkeys(_DICTS, ("a dict", _is_dict)),
    "Callable": ("a function", callable),
    "dt.timedelta": ("a timedelta", _is_length),
    "None": ("None", lambda value: value is None),
}
"""What each type is called in messages, and whether a value is of it, by the type's name in an annotation."""


class ArgumentTypes:
    """The types of a constructor's arguments.

    Args:
        init: A constructor whose annotations are texts, as `from __future__ import annotations` makes them.
    """

    def __init__(self, init: Callable[..., None]) -> None:
        self._kinds = {name: kinds for name, text in init.__annotations__.items() if (kinds := _kinds_of(text))}

    def check(self, owner: str, given: Mapping[str, Any], template_fields: Collection[str] = ()) -> None:
        """Raise DagError for an argument of a wrong type; it names the owner and the argument.

        What stands for a value that is known later is taken: the result of a task, and a text with a template.
        """
        for name, value in given.items():
            kinds = self._kinds.get(name)
            if kinds is None or any(_CHECKS[kind][1](value) for kind in kinds) or isinstance(value, ResolveMixin):
                continue
            if name in template_fields and isinstance(value, str) and "{" in value:
                continue
            wanted = " or ".join(dict.fromkeys(_CHECKS[kind][0] for kind in kinds))
            # Another value than a flag may be secret, such as an environment.
            shown = f"{value!r:.100}" if "bool" in kinds else f"a value of type {type(value).__name__}"
            raise DagError(f"{owner}: {name} must be {wanted}, not {shown}")


def _kinds_of(annotation: Any) -> tuple[str, ...]:
    """Return the kinds that an annotation such as `Collection[str] | None` allows; none where it is not checked."""
    if not isinstance(annotation, str):
        return ()
    kinds = tuple(alternative.partition("[")[0] for alternative in _alternatives(annotation))
    return kinds if all(kind in _CHECKS for kind in kinds) else ()


def _alternatives(annotation: str) -> list[str]:
    """Split a union at its bars, but not at those within brackets."""
    parts, depth = [""], 0
    for letter in annotation:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
