"""JSON values: the only values that pass from a DAG file to the scheduler."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ADVICE = "use strings, numbers, lists, and dicts with strings as keys"
_NOTHING = object()
"""Not None, which is JSON."""


def check_json(value: Any, what: str, *, advice: str = _ADVICE) -> None:
    """Raise TypeError, naming the type at fault, unless a value is JSON. Tuples pass: they become lists."""
    wrong = _not_json(value)
    if wrong is _NOTHING:
        return
    kind = type(wrong)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    found = f"the number {wrong}" if isinstance(wrong, float) else f"a value of type {name}"
    raise TypeError(f"{what} is not JSON: it contains {found}; {advice}")


def with_text_keys(value: Any) -> Any:
    """Return a value with keys of dicts that are numbers, bools or None turned into strings, as `json.dumps` does."""
    if isinstance(value, dict):
        return {_text_key(key): with_text_keys(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_text_keys(item) for item in value]
    return value


def _text_key(key: Any) -> Any:
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return int.__repr__(key)
    return float.__repr__(key) if isinstance(key, float) else key


def _not_json(value: Any) -> Any:
    """Return the first part of a value that is not JSON; _NOTHING if all of it is."""
    todo = [value]
    while todo:
        item = todo.pop()
        if item is None or isinstance(item, (bool, int, str)):
            continue
        if isinstance(item, float):
            if item != item or item in (float("inf"), float("-inf")):
                return item
        elif isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    return key
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
        else:
            return item
    return _NOTHING
