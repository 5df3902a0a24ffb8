"""Instants and timezones in DAG files, with the names of Airflow's `airflow.sdk.timezone`.

A naive date is wall-clock time in the default timezone. `parse`, `coerce_datetime`, `convert_to_utc` and
`from_timestamp` return pendulum DateTimes, which have `add`, `subtract`, `in_timezone` and `format`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.timetables.zones import instant_of, zone_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, overload

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


def datetime(*args: Any, **kwargs: Any) -> dt.datetime:
    """Return a datetime of the standard library, from its arguments; in the default timezone without `tzinfo`."""
    return dt.datetime(*args, **{"tzinfo": _default, **kwargs})  # noqa: DTZ001 - it has one


def is_localized(value: dt.datetime) -> bool:
    """Return whether a datetime is aware."""
    return value.utcoffset() is not None


def is_naive(value: dt.datetime) -> bool:
    """Return whether a datetime is naive."""
    return value.utcoffset() is None


if TYPE_CHECKING:

    @overload
    def make_aware(value: None, timezone: dt.tzinfo | None = None) -> None: ...
    @overload
    def make_aware(value: dt.datetime, timezone: dt.tzinfo | None = None) -> dt.datetime: ...


def make_aware(value: dt.datetime | None, timezone: dt.tzinfo | None = None) -> dt.datetime | None:
    """Interpret a naive datetime as wall-clock time in a timezone; return None for None.

    A time that the clock skips is moved by the gap, and one that it repeats means the second occurrence. Raises
    ValueError for an aware datetime.
    """
    if value is None:
        return None
    if is_localized(value):
        raise ValueError(f"make_aware expects a naive datetime, got {value.isoformat()}")
    zone = timezone or _default
    if hasattr(zone, "localize"):  # pytz, whose zones only this applies
        local: dt.datetime = zone.localize(value)
    else:
        local = instant_of(dt.datetime.combine(value.date(), value.time()), zone).astimezone(zone)
    return coerce_datetime(local) if hasattr(value, "in_timezone") else local


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


def parse(string: str, timezone: str | dt.tzinfo | None = None, *, strict: bool = False) -> pendulum.DateTime:
    """Parse a date.

    Args:
        string: The date, such as `2024-05-01T12:00:00+02:00`, `2024-05` or `1 May 2024`.
        timezone: The timezone of a text that names none; by default the default timezone.
        strict: Allow only the forms of ISO 8601.

    Raises:
        ValueError: The text is not a date.
    """
    # Not at the top: it takes several times as long to load as all authoring names.
    import pendulum

    # A datetime, where the text is neither an interval nor, with `strict`, a time.
    return pendulum.parse(string, tz=timezone or _default, strict=strict)  # type: ignore[return-value]


if TYPE_CHECKING:

    @overload
    def coerce_datetime(v: None, tz: dt.tzinfo | None = None) -> None: ...
    @overload
    def coerce_datetime(v: dt.datetime, tz: dt.tzinfo | None = None) -> pendulum.DateTime: ...


def coerce_datetime(v: dt.datetime | None, tz: dt.tzinfo | None = None) -> pendulum.DateTime | None:
    """Return an instant as a pendulum DateTime, in its own timezone; None for None.

    Args:
        v: The instant.
        tz: The timezone of a naive one; by default the default timezone.
    """
    if v is None:
        return None
    import pendulum

    return pendulum.instance(v if is_localized(v) else make_aware(v, tz))


if TYPE_CHECKING:

    @overload
    def convert_to_utc(value: None) -> None: ...
    @overload
    def convert_to_utc(value: dt.datetime) -> pendulum.DateTime: ...


def convert_to_utc(value: dt.datetime | None) -> pendulum.DateTime | None:
    """Return an instant as a pendulum DateTime in UTC; a naive one is in the default timezone. None for None."""
    if value is None:
        return None
    import pendulum

    plain = dt.datetime.combine(value.date(), value.timetz())
    # Unlike `make_aware`, this takes the fold of a wall-clock time that the clock skips or repeats, as Airflow does.
    return pendulum.instance(plain, _default).in_timezone("UTC")


def parsed(text: str, zone: dt.tzinfo | None = None) -> dt.datetime:
    """Return the aware datetime that `parse` reads, without pendulum for usual forms. Raises ValueError as it does."""
    try:
        value = dt.datetime.fromisoformat(text)
    except ValueError:
        return parse(text, zone)
    return value if is_localized(value) else make_aware(value, zone)


def to_utc(value: dt.datetime | dt.date | str | None, zone: dt.tzinfo | None = None) -> dt.datetime | None:
    """Return an instant as a plain datetime in UTC; a naive one is wall-clock time in `zone`, or the default timezone.

    Raises TypeError if the value is not a date, and ValueError if the string is not a date.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = parsed(value, zone)
    elif not isinstance(value, dt.datetime):
        if not isinstance(value, dt.date):
            raise TypeError(f"expected a datetime, got {type(value).__name__}: {value!r}")
        value = dt.datetime(value.year, value.month, value.day, tzinfo=zone or _default)
    if is_naive(value):
        value = value.replace(tzinfo=zone or _default)
    # Subclasses such as pendulum's become plain datetimes.
    instant = value.astimezone(utc)
    return dt.datetime.combine(instant.date(), instant.time(), utc)
