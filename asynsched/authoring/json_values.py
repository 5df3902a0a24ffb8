"""Values as JSON has them: what crosses from a DAG file to the scheduler, and from one task to another."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RETURN = "return a value that JSON has, such as a text, a number, a list or a dict with texts as keys"


class _Nothing:
    """Stands for a value that is nowhere; None may be one."""


_NOTHING = _Nothing()


def check_json(value: Any, what: str, *, advice: str = _RETURN) -> None:
    """Raise TypeError, naming the type at fault, unless a value is JSON: None, bool, number, text, list, dict.

    Args:
        value: Tuples are allowed: they become lists.
        what: What the value is, as the message begins.
        advice: What its author is told to do.
    """
    wrong = _not_json(value)
    if wrong is not _NOTHING:
        raise TypeError(f"{what} is no JSON: it has {_describe(wrong)}; {advice}")


def with_text_keys(value: Any) -> Any:
    """Return a value in which the keys of dicts are texts where JSON has a text for them, as `json.dumps` writes them.

    That is for numbers, bools and None. Other keys are left as they are.
    """
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


def _describe(wrong: Any) -> str:
    if isinstance(wrong, float):
        return f"the number {wrong}"
    return f"a value of type {type(wrong).__module__.removeprefix('builtins.')}.{type(wrong).__qualname__}".replace(
        "type builtins.", "type "
    )


def _not_json(value: Any) -> Any:
    """Return the first thing in a value that JSON does not have."""
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
