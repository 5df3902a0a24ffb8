"""Values that leave a process and come back as they were: JSON, and a few types of Python that JSON has not.

They travel as an object with the two keys below. An object that has such a key itself is wrapped, too.
"""

from __future__ import annotations

import datetime as dt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPE_KEY, VALUE_KEY = "__type__", "__value__"


def to_transport(value: Any, what: str = "the value") -> Any:
    """Return a value as plain JSON. Raises TypeError, naming `what` and the type, for what cannot travel."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return _wrapped("float", str(value))
        return value
    if isinstance(value, dict):
        return _object(value, what)
    if isinstance(value, list):
        return [to_transport(item, what) for item in value]
    for name, (kinds, write, _) in _TYPES.items():
        if isinstance(value, kinds):
            return _wrapped(name, write(value, what))
    raise TypeError(
        f"{what} has a value of type {type(value).__module__}.{type(value).__qualname__}, which cannot be passed on:"
        " use what JSON has, dates, times, timedeltas, tuples, sets or bytes"
    )


def from_transport(value: Any) -> Any:
    """Return what `to_transport` was given; a date of a subclass of datetime comes back as a plain one."""
    if isinstance(value, list):
        return [from_transport(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_KEY not in value:
        return {key: from_transport(item) for key, item in value.items()}
    return _TYPES[value[TYPE_KEY]][2](value[VALUE_KEY])


def _object(value: dict[Any, Any], what: str) -> Any:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{what} has a dict with the key {key!r}: keys must be texts")
    written = {str(key): to_transport(item, what) for key, item in value.items()}
    return _wrapped("dict", written) if TYPE_KEY in value else written


def _wrapped(name: str, value: Any) -> dict[str, Any]:
    return {TYPE_KEY: name, VALUE_KEY: value}


def _items(value: Any, what: str) -> list[Any]:
    return [to_transport(item, what) for item in value]


def _sorted_items(value: Any, what: str) -> list[Any]:
    return _items(sorted(value, key=repr), what)


def _read_date_time(value: dict[str, Any]) -> dt.datetime:
    found = dt.datetime.fromisoformat(value["at"])
    if value["zone"] is None:
        return found
    from zoneinfo import ZoneInfo

    try:
        return found.astimezone(ZoneInfo(value["zone"]))
    except (LookupError, ValueError, OSError):
        # A fixed offset may have a name, too; the offset itself is in the text.
        return found


def _write_date_time(value: dt.datetime, _: str) -> dict[str, Any]:
    zone = getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "name", None)
    return {"at": value.isoformat(), "zone": zone if isinstance(zone, str) else None}


_TYPES: dict[str, tuple[Any, Callable[[Any, str], Any], Callable[[Any], Any]]] = {
    # A datetime is a date, so it comes first.
    "datetime": (dt.datetime, _write_date_time, _read_date_time),
    "date": (dt.date, lambda value, _: value.isoformat(), dt.date.fromisoformat),
    "time": (dt.time, lambda value, _: value.isoformat(), dt.time.fromisoformat),
    "timedelta": (
        dt.timedelta,
        lambda value, _: [value.days, value.seconds, value.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    "tuple": (tuple, _items, lambda items: tuple(from_transport(items))),
    "set": (set, _sorted_items, lambda items: set(from_transport(items))),
    "frozenset": (frozenset, _sorted_items, lambda items: frozenset(from_transport(items))),
    "bytes": (bytes, lambda value, _: value.hex(), bytes.fromhex),
    "float": ((), lambda value, _: value, float),
    "dict": ((), lambda value, _: value, lambda items: {key: from_transport(item) for key, item in items.items()}),
}
"""By name: the type, how it is written, how it is read."""
