"""The filters that several of Airflow's lists share, as they are in query strings and bodies."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from asynsched.queries.paging import Pattern, Range, RangeOrComing
from asynsched.web.airflow_api.api import Names
from asynsched.web.endpoint import Invalid

BOUNDS = ("gte", "gt", "lte", "lt")
NO_STATE = ("none", "no_status")


class RunDates(Struct, frozen=True, kw_only=True):
    """Bounds of runs' dates."""

    run_after_gte: datetime | None = None
    run_after_gt: datetime | None = None
    run_after_lte: datetime | None = None
    run_after_lt: datetime | None = None
    logical_date_gte: datetime | None = None
    logical_date_gt: datetime | None = None
    logical_date_lte: datetime | None = None
    logical_date_lt: datetime | None = None

    @property
    def of_runs(self) -> dict[str, Any]:
        """The bounds for a RunFilter."""
        return {name: bounds(self, name) for name in ("run_after", "logical_date")}


class Dates(RunDates, frozen=True, kw_only=True):
    """Bounds of runs' dates, and of the times of runs or task instances."""

    start_date_gte: datetime | None = None
    start_date_gt: datetime | None = None
    start_date_lte: datetime | None = None
    start_date_lt: datetime | None = None
    end_date_gte: datetime | None = None
    end_date_gt: datetime | None = None
    end_date_lte: datetime | None = None
    end_date_lt: datetime | None = None
    duration_gte: float | None = None
    duration_gt: float | None = None
    duration_lte: float | None = None
    duration_lt: float | None = None

    def of_times(self, now: datetime | None = None) -> dict[str, Any]:
        """Return the bounds for a RunFilter or a TaskInstanceFilter.

        Args:
            now: The present, if starts and ends that are still to come are within bounds too: see RangeOrComing.
        """
        names = {"started_at": "start_date", "ended_at": "end_date"}
        dates = {
            own: bounds(self, name) if now is None else bounds_or_coming(self, name, now) for own, name in names.items()
        }
        return dates | {"duration_seconds": bounds(self, "duration")}


class Changes(Struct, frozen=True, kw_only=True):
    """Bounds of the last change."""

    updated_at_gte: datetime | None = None
    updated_at_gt: datetime | None = None
    updated_at_lte: datetime | None = None
    updated_at_lt: datetime | None = None


def bounds(source: Struct, name: str) -> Range:
    """Return the bounds that fields such as `NAME_gte` have."""
    return Range(**{bound: getattr(source, f"{name}_{bound}", None) for bound in BOUNDS})


def bounds_or_coming(source: Struct, name: str, now: datetime) -> RangeOrComing:
    """Return the bounds of an instant that may be still to come, as Airflow's lists have it in query strings."""
    return RangeOrComing(**{bound: getattr(source, f"{name}_{bound}", None) for bound in BOUNDS}, now=now)


def pattern(source: Struct, name: str) -> Pattern:
    """Return the pattern that the fields `NAME_pattern` and `NAME_prefix_pattern` have."""
    return Pattern(getattr(source, f"{name}_pattern"), getattr(source, f"{name}_prefix_pattern"))


def states(names: Names, known: type[StrEnum]) -> tuple[str | None, ...] | None:
    """Return states to filter by: `none` and `no_status` stand for no state. Raises Invalid for an unknown one."""
    if unknown := sorted(set(names) - {*known, *NO_STATE}):
        raise Invalid(("query", "state"), f"There is no state {unknown[0][:100]!r}: choose among {', '.join(known)}.")
    return tuple(None if name in NO_STATE else name for name in names) or None


def unless_all(name: str) -> tuple[str, ...] | None:
    """Return the name of a path to filter by; `~` stands for all."""
    return None if name == "~" else (name,)
