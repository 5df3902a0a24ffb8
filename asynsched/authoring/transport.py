"""Values that leave a process and come back unchanged: JSON, and Python types that JSON lacks.

XComs travel this way, as do the values that deferred tasks and triggers exchange. A type that JSON lacks is written as
an object with the two keys below; a dict that itself has such a key is wrapped too. Reading makes only the types in the
table: no class is looked up by a name in the data.

Source: the types are those that Apache Airflow's `serde` supports without other packages; times, bytes, and the floats
NaN and infinity are additions.
"""

from __future__ import annotations

import datetime as dt

from asynsched.timetables.zones import iana_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPE_KEY, VALUE_KEY = "__type__", "__value__"
_TOO_LARGE = 10**4300
"""By default, Python reads no int with more digits than this."""


def to_transport(value: Any, what: str = "the value") -> Any:
    """Return a value as plain JSON.

    Args:
        value: Instances of subclasses become their JSON type; sequences of other tasks' results become lists.
        what: The value's name in messages.

    Raises:
        TypeError: It contains something that cannot be passed on; the message names the type and says what to do.
        ValueError: It is nested too deeply, contains itself, or has a string or number that cannot be read back.
    """
    try:
        return _written(value, what)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply, or contains itself") from None


def from_transport(value: Any) -> Any:
    """Return the value that `to_transport` was given. Raises ValueError for anything that it has not made."""
    if isinstance(value, list):
        return [from_transport(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_KEY not in value:
        return {key: from_transport(item) for key, item in value.items()}
    try:
        return _TYPES[value[TYPE_KEY]][1](value[VALUE_KEY])
    except (LookupError, TypeError, ArithmeticError) as exc:
        raise ValueError(f"a value of the type {value[TYPE_KEY]!r} cannot be read: {value!r:.200}") from exc


def readable(value: Any) -> Any:
    """Return the result of `to_transport` in a form for people: instants as strings, tuples and sets as lists.

    A value that is nested hundreds of levels deep is returned as it is.
    """
    try:
        return _readable(value)
    except RecursionError:
        return value


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"__type__": "datetime" | "pendulum.DateTime", "__value__": {"at": str(text)}}:
            return text
        case {"__type__": "timedelta" | "timezone", "__value__": [int(), int(), int()]} | {
            "__type__": "bytes", "__value__": str()
        }:  # fmt: skip
            return str(from_transport(value))
        case {"__type__": "ObjectStoragePath", "__value__": {"path": str(text)}}:
            return text
        case {"__type__": "dict", "__value__": dict(inside)}:
            return {key: _readable(item) for key, item in inside.items()}
        case {"__type__": _, "__value__": inside}:
            return _readable(inside)
    return {key: _readable(item) for key, item in value.items()}


def _written(value: Any, what: str) -> Any:
    if isinstance(value, (str, int, float, type(None))):
        return _scalar(value, what)
    if isinstance(value, dict):
        return _object(value, what)
    if isinstance(value, list):
        return _items(value, what)
    if (number := _of_numpy(value)) is not None:
        return _scalar(number, what)
    for kind in type(value).__mro__:
        name = _NAMES.get(f"{kind.__module__}.{kind.__qualname__}")
        if name == "list":
            return _items(value, what)
        if name is not None:
            return _wrapped(name, _TYPES[name][0](value, what))
    raise TypeError(
        f"{what} contains a value of type {_type_name(value)}, which cannot be passed on: {_what_to_do(value)}"
    )


def _of_numpy(value: Any) -> Any:
    """Return Python's number or bool for one of numpy; None for any other value."""
    if type(value).__module__ != "numpy" or getattr(getattr(value, "dtype", None), "kind", "") not in "biuf":
        return None
    return value.item() if value.ndim == 0 else None


def _scalar(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _whole_text(value, what)
    if isinstance(value, int):
        number = int(value)
        if not -_TOO_LARGE < number < _TOO_LARGE:
            raise ValueError(
                f"{what} contains an int of more than 4300 digits, which cannot be passed on: pass on hex(value)"
            )
        return number
    if value != value or value in (float("inf"), float("-inf")):
        return _wrapped("float", str(value))
    return float(value)


def _whole_text(value: str, what: str) -> str:
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            half = ascii(text[exc.start])
            raise ValueError(
                f"{what} contains a string with half of a surrogate pair, {half}, which cannot be passed on:"
                " replace it, or pass on bytes"
            ) from None
    return text


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _what_to_do(value: Any) -> str:
    for attribute, make in (
        ("__dataclass_fields__", "dataclasses.asdict(value)"),
        ("__attrs_attrs__", "attrs.asdict(value)"),
        ("model_dump", "value.model_dump()"),
        ("to_dict", "value.to_dict() if it is small, or store it elsewhere and pass on its location"),
    ):
        if hasattr(type(value), attribute):
            return f"pass on {make}"
    return (
        "pass on JSON types, dates, times, timedeltas, timezones, tuples, sets, Decimals, UUIDs or bytes,"
        " or store it elsewhere and pass on its location"
    )


def _object(value: dict[Any, Any], what: str) -> Any:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(
                f"{what} contains a dict with the key {key!r} of type {_type_name(key)}: keys must be strings"
            )
    written = {_whole_text(key, what): _written(item, what) for key, item in value.items()}
    return _wrapped("dict", written) if TYPE_KEY in value else written


def _wrapped(name: str, value: Any) -> dict[str, Any]:
    return {TYPE_KEY: name, VALUE_KEY: value}


def _items(value: Any, what: str) -> list[Any]:
    return [_written(item, what) for item in value]


def _sorted_items(value: Any, what: str) -> list[Any]:
    return _items(sorted(value, key=repr), what)


def _write_text(value: Any, _: str) -> Any:
    return str(value)


def _write_iso(value: Any, _: str) -> Any:
    return value.isoformat()


def _write_instant(value: dt.datetime, _: str) -> dict[str, Any]:
    # A subclass may have another `isoformat`.
    return {"at": dt.datetime.isoformat(value), "fold": value.fold, "zone": iana_name(value.tzinfo)}


def _read_instant(value: dict[str, Any]) -> dt.datetime:
    found = dt.datetime.fromisoformat(value["at"]).replace(fold=value["fold"])
    if value["zone"] is None:
        return found
    from zoneinfo import ZoneInfo

    try:
        zone = ZoneInfo(value["zone"])
    except (LookupError, ValueError, OSError):
        # A fixed offset may have a name too; the offset itself is in the string.
        return found
    local = found.replace(tzinfo=zone)
    return local if local.utcoffset() == found.utcoffset() else found.astimezone(zone)


def _read_pendulum(value: dict[str, Any]) -> Any:
    import pendulum

    return pendulum.instance(_read_instant(value), tz=None)


def _read_pendulum_date(value: str) -> Any:
    import pendulum

    return pendulum.Date.fromisoformat(value)


def _write_zone(value: dt.tzinfo, what: str) -> str:
    name = iana_name(value)
    if name is None:
        raise TypeError(f"{what} contains a timezone without a name, {value!r}: pass on its name")
    return name


def _parts(value: dt.timedelta) -> list[int]:
    # The attributes of a pendulum.Duration are the remainders of each unit.
    length = dt.timedelta.__add__(value, dt.timedelta())
    return [length.days, length.seconds, length.microseconds]


def _by(module: str, name: str) -> Callable[[Any], Any]:
    """Return a function that reads a value by a class or function, whose module is imported only then."""

    def read(value: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(value)

    return read


_TYPES: dict[Any, tuple[Callable[[Any, str], Any], Callable[[Any], Any]]] = {
    "datetime": (_write_instant, _read_instant),
    "pendulum.DateTime": (_write_instant, _read_pendulum),
    "date": (_write_iso, dt.date.fromisoformat),
    "pendulum.Date": (_write_iso, _read_pendulum_date),
    "time": (_write_iso, dt.time.fromisoformat),
    "timedelta": (lambda value, _: _parts(value), lambda parts: dt.timedelta(*parts)),
    "ZoneInfo": (_write_zone, _by("zoneinfo", "ZoneInfo")),
    "pendulum.Timezone": (_write_zone, _by("pendulum", "timezone")),
    "timezone": (lambda value, _: _parts(value.utcoffset(None)), lambda parts: dt.timezone(dt.timedelta(*parts))),
    "tuple": (_items, lambda items: tuple(from_transport(items))),
    "set": (_sorted_items, lambda items: set(from_transport(items))),
    "frozenset": (_sorted_items, lambda items: frozenset(from_transport(items))),
    "bytes": (lambda value, _: value.hex(), bytes.fromhex),
    "Decimal": (_write_text, _by("decimal", "Decimal")),
    "UUID": (_write_text, _by("uuid", "UUID")),
    "float": (_write_text, float),
    "ObjectStoragePath": (
        lambda value, what: _object(value.serialize(), what),
        _by("asynsched.airflow.object_storage", "path_of"),
    ),
    "dict": (_object, lambda items: {key: from_transport(item) for key, item in items.items()}),
}
"""How a value is written and how it is read, by the name in the data."""

_NAMES = {
    "datetime.datetime": "datetime",
    "datetime.date": "date",
    "datetime.time": "time",
    "datetime.timedelta": "timedelta",
    "datetime.timezone": "timezone",
    "pendulum.datetime.DateTime": "pendulum.DateTime",
    "pendulum.date.Date": "pendulum.Date",
    "pendulum.tz.timezone.Timezone": "pendulum.Timezone",
    "pendulum.tz.timezone.FixedTimezone": "timezone",
    "zoneinfo.ZoneInfo": "ZoneInfo",
    "asynsched.airflow.object_storage.ObjectStoragePath": "ObjectStoragePath",
    "builtins.tuple": "tuple",
    "builtins.set": "set",
    "builtins.frozenset": "frozenset",
    "builtins.bytes": "bytes",
    "decimal.Decimal": "Decimal",
    "uuid.UUID": "UUID",
    "asynsched.authoring.mapped_results.MappableSequence": "list",
}
"""Names in the data by the class's path, so that no class is imported only to be compared. They include subclasses."""
