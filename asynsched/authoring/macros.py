"""`macros` in templates: functions and modules for dates, with Airflow's names."""

from __future__ import annotations

from datetime import datetime, timedelta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["datetime", "datetime_diff_for_humans", "ds_add", "ds_format", "ds_format_locale", "timedelta"]

_MODULES = ("dateutil", "json", "time", "uuid", "yaml")


def ds_add(ds: str, days: int) -> str:
    """Return the date `days` later; both dates are `YYYY-MM-DD`, and `days` may be negative."""
    return (datetime.strptime(str(ds), "%Y-%m-%d") + timedelta(days=days)).strftime("%Y-%m-%d")  # noqa: DTZ007 - a date


def ds_format(ds: str, input_format: str, output_format: str) -> str:
    """Return a date in another format; the formats are those of `strftime`."""
    return datetime.strptime(str(ds), input_format).strftime(output_format)  # noqa: DTZ007 - it is only written again


def ds_format_locale(ds: str, input_format: str, output_format: str, locale: Any = None) -> str:
    """Return a date in a format and the language of a locale. Needs the package Babel.

    Args:
        input_format: As of `strftime`.
        output_format: As of Babel, such as `EEEE dd MMMM yyyy`.
        locale: Such as `de_DE`; by default that of the environment, or else `en_US`.
    """
    try:
        from babel import dates
    except ImportError as exc:
        raise ImportError("ds_format_locale needs the package Babel: `python -m pip install babel`") from exc
    date = datetime.strptime(str(ds), input_format)  # noqa: DTZ007 - it is only written again
    return str(dates.format_datetime(date, format=output_format, locale=locale or dates.LC_TIME or "en_US"))


def datetime_diff_for_humans(dt: datetime, since: datetime | None = None) -> str:
    """Return the time between two instants in words, such as `2 days before`; by default, from now."""
    from asynsched.authoring.timezone import coerce_datetime

    return coerce_datetime(dt).diff_for_humans(None if since is None else coerce_datetime(since))


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "random":
        return import_module("random").random
    if name not in _MODULES:
        raise AttributeError(f"macros has no {name!r}")
    if name == "dateutil":
        import_module("dateutil.parser")
        import_module("dateutil.relativedelta")
    return import_module(name)
