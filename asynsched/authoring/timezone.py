"""Instants and timezones in DAG files, with the names of Airflow's `airflow.sdk.timezone`.

A naive date is wall-clock time in the default timezone.
"""

from __future__ import annotations

import datetime as dt

from asynsched.timetables.zones import zone_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import overload

    import pendulum

utc = dt.UTC
_default: dt.tzinfo = utc


def set_default_timezone(zone: str | dt.tzinfo) -> None:
    """Set the timezone of naive dates. Raises DagError for an unknown name."""
    global _default
    _default = zone_named(zone) if isinstance(zone, str) else zone


def default_timezone() -> dt.tzinfo:
    """Return the timezone of naive dates; UTC unless set."""
    return _default


def utcnow() -> dt.datetime:
    """Return the current instant, aware, in UTC."""
    return dt.datetime.now(utc)  # noqa: TID251 - tasks run in processes of their own, on the machine's clock


def datetime(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, microsecond: int = 0
) -> dt.datetime:
    """Return an aware datetime in the default timezone."""
    return dt.datetime(year, month, day, hour, minute, second, microsecond, tzinfo=_default)


def is_localized(value: dt.datetime) -> bool:
    """Return whether a datetime is aware."""
    return value.utcoffset() is not None


def is_naive(value: dt.datetime) -> bool:
    """Return whether a datetime is naive."""
    return value.utcoffset() is None


def make_aware(value: dt.datetime, timezone: dt.tzinfo | None = None) -> dt.datetime:
    """Interpret a naive datetime as wall-clock time in a timezone. Raises ValueError for an aware one."""
    if is_localized(value):
        raise ValueError(f"make_aware expects a naive datetime, got {value.isoformat()}")
    return value.replace(tzinfo=timezone or _default)


def make_naive(value: dt.datetime, timezone: dt.tzinfo | None = None) -> dt.datetime:
    """Return the wall-clock time of an instant, by default in the default timezone.

    Raises ValueError for a naive one.
    """
    if is_naive(value):
        raise ValueError(f"make_naive expects an aware datetime, got {value.isoformat()}")
    local = value.astimezone(timezone or _default)
    return dt.datetime.combine(local.date(), local.time())


def from_timestamp(timestamp: float, tz: dt.tzinfo | str = utc) -> pendulum.DateTime:
    """Return the instant of a number of seconds since 1970, in a timezone, or in this machine's if it is `local`."""
    instant = coerce_datetime(dt.datetime.fromtimestamp(timestamp, utc))
    return instant.in_timezone(tz)  # type: ignore[arg-type] # takes any tzinfo


def aware(value: dt.datetime) -> dt.datetime:
    """Return a datetime as an aware one; a naive one is wall-clock time in the default timezone."""
    return value if is_localized(value) else make_aware(value)


def parse(string: str, timezone: dt.tzinfo | None = None) -> dt.datetime:
    """Parse a date, and return it as an aware datetime. Raises ValueError for an invalid one."""
    try:
        value = dt.datetime.fromisoformat(string)
    except ValueError:
        from dateutil import parser

        value = parser.parse(string)
    return value if is_localized(value) else make_aware(value, timezone)


if TYPE_CHECKING:

    @overload
    def coerce_datetime(value: None, tz: dt.tzinfo | None = None) -> None: ...
    @overload
    def coerce_datetime(value: dt.datetime, tz: dt.tzinfo | None = None) -> pendulum.DateTime: ...


def coerce_datetime(value: dt.datetime | None, tz: dt.tzinfo | None = None) -> pendulum.DateTime | None:
    """Return an instant as a pendulum DateTime, which has `add`, `subtract`, `in_timezone` and `format`.

    Args:
        value: The instant; a naive one is wall-clock time in the default timezone.
        tz: The timezone of the result; by default that of the instant.
    """
    # Not at the top: it takes several times as long to load as all authoring names.
    import pendulum

    if value is None:
        return None
    instant = pendulum.instance(aware(value))
    return instant if tz is None else instant.in_timezone(tz)  # type: ignore[arg-type] # takes any tzinfo


def convert_to_utc(value: dt.datetime | dt.date | str | None, timezone: dt.tzinfo | None = None) -> dt.datetime | None:
    """Return an instant in UTC; a naive one is wall-clock time in `timezone`, or else in the default timezone.

    Raises TypeError if the value is not a date, and ValueError if the string is not a date.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = parse(value, timezone)
    elif not isinstance(value, dt.datetime):
        if not isinstance(value, dt.date):
            raise TypeError(f"expected a datetime, got {type(value).__name__}: {value!r}")
        value = dt.datetime(value.year, value.month, value.day, tzinfo=timezone or _default)
    if is_naive(value):
        value = make_aware(value, timezone)
    # Subclasses such as pendulum's become plain datetimes.
    instant = value.astimezone(utc)
    return dt.datetime.combine(instant.date(), instant.time(), utc)
