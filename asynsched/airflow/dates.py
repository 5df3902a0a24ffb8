"""Airflow 2's functions for dates: DAG files give their `start_date` with them."""

from __future__ import annotations

from asynsched.authoring.timezone import utcnow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Literal

    Unit = Literal["days", "hours", "minutes", "seconds"]

_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


def days_ago(n: int, hour: int = 0, minute: int = 0, second: int = 0, microsecond: int = 0) -> datetime:
    """Return the instant at this time of day in UTC, n days before today.

    It changes every day. As a `start_date` it is only good for DAGs without catchup.
    """
    from datetime import timedelta

    today = utcnow().replace(hour=hour, minute=minute, second=second, microsecond=microsecond)
    return today - timedelta(days=n)


def date_range(
    start_date: datetime, end_date: datetime | None = None, num: int | None = None, delta: timedelta | None = None
) -> list[datetime]:
    """Return the instants from `start_date` on, `delta` apart.

    Args:
        start_date: The first one.
        end_date: The last possible one; by default now.
        num: How many, instead of `end_date`; negative: backwards.
        delta: The time between two of them. Airflow 2's cron expressions are not supported.

    Raises:
        TypeError: `delta` is no timedelta.
        ValueError: `delta` is not positive, or both `num` and `end_date` are given.
    """
    from datetime import timedelta

    if not delta:
        return []
    if not isinstance(delta, timedelta):
        raise TypeError(f"delta must be a timedelta, not {type(delta).__name__}")
    if delta <= timedelta(0):
        raise ValueError(f"delta must be positive, not {delta}")
    if num is not None:
        if end_date is not None:
            raise ValueError("give end_date or num, not both")
        return sorted(start_date + delta * (step if num > 0 else -step) for step in range(abs(num)))
    last = end_date or utcnow()
    found, instant = [], start_date
    while instant <= last:
        found.append(instant)
        instant += delta
    return found


def round_time(dt: datetime, delta: timedelta, start_date: datetime | None = None) -> datetime:
    """Return the instant nearest to `dt` that is a whole number of `delta` after `start_date`, by default midnight."""
    start = start_date or dt.replace(hour=0, minute=0, second=0, microsecond=0)
    return start + delta * round((dt - start) / delta)


def infer_time_unit(time_seconds_arr: list[float]) -> Unit:
    """Return the largest unit in which the longest of these times is at least 2."""
    longest = max(time_seconds_arr, default=0)
    units: tuple[Unit, ...] = ("days", "hours", "minutes")
    return next((unit for unit in units if longest > 2 * _SECONDS[unit]), "seconds")


def scale_time_units(time_seconds_arr: list[float], unit: Unit) -> list[float]:
    """Return these times, given in seconds, in another unit."""
    return [seconds / _SECONDS[unit] for seconds in time_seconds_arr]


def parse_execution_date(execution_date_str: str) -> datetime:
    """Return the instant of a text in ISO 8601; without a zone, in the default one."""
    from asynsched.authoring.timezone import parse

    return parse(execution_date_str)


def datetime_to_nano(datetime: datetime | None) -> int | None:
    """Return the nanoseconds since 1970; a date without a zone is in UTC. None for None."""
    if not datetime:
        return None
    from datetime import UTC

    aware = datetime if datetime.tzinfo else datetime.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1e9)
