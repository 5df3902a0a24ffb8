"""The timetable of a DAG's `schedule`, and the timetables without arithmetic: never, once, continuously, by events.

A schedule by assets has two independent parts, an expression of assets and a timetable, each with its own field in the
serialized DAG.

Source: Airflow's `airflow.timetables.simple`, `airflow.timetables.events` and `airflow.timetables.assets`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from asynsched.errors import DagError, TimetableError
from asynsched.timetables.base import PUNCTUAL, DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
from asynsched.timetables.zones import in_zone, moved


class _TrivialTimetable(KnownTimetable):
    periodic = False

    def manual_interval(self, run_after: datetime) -> DataInterval:
        return DataInterval(run_after, run_after)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind}


class NullTimetable(_TrivialTimetable):
    """Runs only when triggered: `schedule=None`."""

    kind = "null"
    can_be_scheduled = False
    summary = "None"
    description = "Never, external triggers only"

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        return None


class PartitionedAtRuntime(NullTimetable):
    """Runs only when triggered; the partition key is given then, or by the tasks for each event of an outlet."""

    kind = "partitioned_at_runtime"
    summary = "PartitionedAtRuntime"
    description = "Never, partition key(s) set at runtime"


class OnceTimetable(_TrivialTimetable):
    """Runs once, as soon as possible: `schedule="@once"`."""

    kind = "once"
    summary = "@once"
    description = "Once, as soon as possible"

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        if last is not None:
            return None
        # The start date counts even without catchup: there is only one run to miss.
        run_after = restriction.earliest or now
        if restriction.latest is not None and run_after > restriction.latest:
            return None
        return DagRunInfo.exact(run_after)


class ContinuousTimetable(_TrivialTimetable):
    """Runs continuously, one run after the other: `schedule="@continuous"`."""

    kind = "continuous"
    active_runs_limit = 1
    summary = "@continuous"
    description = "As frequently as possible, but only one run at a time."

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        start = restriction.earliest or now
        if last is None:
            end = max(start, now)
        elif last.end > now:
            # The start date was moved to the future: the next interval is as long as the last.
            end = moved(start, last.end - last.start)
        else:
            start, end = last.end, now
        if restriction.latest is not None and end > restriction.latest:
            return None
        return DagRunInfo.interval(start, end)


def timetable_from_schedule(
    schedule: Any, timezone: str | tzinfo, *, cron_intervals: bool = False, delta_intervals: bool = False
) -> Timetable:
    """Return the timetable for a `schedule` argument.

    Args:
        schedule: None, `@once`, `@continuous`, a preset such as `@daily`, a cron expression, a timedelta, a
            relativedelta, a timetable, an asset, an expression of assets, or a list of these; an empty list is like
            None.
        timezone: The DAG's timezone, for cron expressions.
        cron_intervals: Whether a cron expression has data intervals, as by Airflow's create_cron_data_intervals.
        delta_intervals: Whether a delta has, as by create_delta_data_intervals.

    Raises:
        TimetableError: The schedule is invalid.

    Source: Airflow 3's defaults: a cron string is a CronTriggerTimetable, a delta a DeltaTriggerTimetable.
    """
    if schedule is None:
        return NullTimetable()
    if isinstance(schedule, Timetable):
        return _checked(schedule)
    if schedule == "@once":
        return OnceTimetable()
    if schedule == "@continuous":
        return ContinuousTimetable()
    if isinstance(schedule, str):
        from asynsched.timetables.repeating import CronDataIntervalTimetable, CronTriggerTimetable

        return (CronDataIntervalTimetable if cron_intervals else CronTriggerTimetable)(schedule, timezone=timezone)
    if isinstance(schedule, timedelta) or type(schedule).__name__ == "relativedelta":
        from asynsched.timetables.repeating import DeltaDataIntervalTimetable, DeltaTriggerTimetable

        return (DeltaDataIntervalTimetable if delta_intervals else DeltaTriggerTimetable)(schedule)
    if isinstance(schedule, (list, tuple, set, frozenset)):
        return AssetTriggeredTimetable(schedule) if schedule else NullTimetable()
    if is_asset(schedule):
        return AssetTriggeredTimetable(schedule)
    raise TimetableError(
        f"schedule must be None, a cron expression, a preset, a timedelta, a relativedelta, a timetable or assets,"
        f" not {type(schedule).__name__}: {schedule!r:.100}"
    )


def _checked(timetable: Timetable) -> Timetable:
    try:
        timetable.validate()
    except DagError:
        raise
    except Exception as exc:
        raise TimetableError(f"{type(timetable).__name__}.validate() says: {exc}") from exc
    return timetable


def is_authors_own(timetable: Timetable) -> bool:
    """Return whether a timetable is user code, which the scheduler cannot make again itself."""
    return not type(timetable).__module__.startswith("asynsched.timetables.")


MAX_EVENTS = 100_000


class EventsTimetable(KnownTimetable):
    """Runs at the listed moments, for events that are foreseeable but irregular.

    Args:
        event_dates: The moments, aware. Duplicates run once.
        restrict_to_events: Give a manually triggered run the most recent moment as data interval (the first if none is
            past), instead of the time of the run.
        presorted: Accepted as in Airflow; sorting a sorted list costs nothing.
        description: The timetable's name; by default `N events`.
    """

    kind = "events"

    def __init__(
        self,
        event_dates: Iterable[datetime],
        restrict_to_events: bool = False,
        presorted: bool = False,
        description: str | None = None,
    ) -> None:
        self.event_dates = tuple(sorted({_instant(event) for event in event_dates}))
        if len(self.event_dates) > MAX_EVENTS:
            raise TimetableError(
                f"EventsTimetable has {len(self.event_dates)} event_dates; at most {MAX_EVENTS} are allowed"
            )
        for name, flag in (("restrict_to_events", restrict_to_events), ("presorted", presorted)):
            if not isinstance(flag, bool):
                raise TimetableError(f"EventsTimetable: {name} must be True or False, not {flag!r:.100}")
        if not isinstance(description, str | None):
            raise TimetableError(f"EventsTimetable: description must be a string, not {description!r:.100}")
        self.restrict_to_events = restrict_to_events
        self._description = description

    @property
    def summary(self) -> str:
        return f"{len(self.event_dates)} events" if self._description is None else self._description

    @property
    def description(self) -> str:
        if self._description is not None:
            return self._description
        if not self.event_dates:
            return "No events"
        first, last = self.event_dates[0].isoformat(), self.event_dates[-1].isoformat()
        return f"{len(self.event_dates)} events between {first} and {last}"

    def serialize(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "event_dates": [event.isoformat() for event in self.event_dates],
            "restrict_to_events": self.restrict_to_events,
            "description": self._description,
        }

    def manual_interval(self, run_after: datetime) -> DataInterval:
        if not self.restrict_to_events or not self.event_dates:
            return DataInterval(run_after, run_after)
        event = self.event_dates[max(0, bisect_right(self.event_dates, run_after) - 1)]
        return DataInterval(event, event)

    def lateness_ignored(self, last: DataInterval | None) -> timedelta:
        return PUNCTUAL  # otherwise the event would have no run at all

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        earliest = restriction.earliest
        if restriction.catchup is False:
            earliest = now if earliest is None else max(now, earliest)
        index = 0 if earliest is None else bisect_left(self.event_dates, earliest)
        if last is not None:
            index = max(index, bisect_right(self.event_dates, last.end))
        if restriction.catchup == "latest":
            index = max(index, bisect_right(self.event_dates, min(now, restriction.latest or now)) - 1)
        if index == len(self.event_dates):
            return None
        event = self.event_dates[index]
        if restriction.latest is not None and event > restriction.latest:
            return None
        return DagRunInfo.exact(event)


def _instant(event: datetime) -> datetime:
    if not isinstance(event, datetime):
        raise TimetableError(f"event_dates of EventsTimetable must be datetimes, not {type(event).__name__}: {event!r}")
    if event.utcoffset() is None:
        raise TimetableError(f"event_dates of EventsTimetable must be aware; {event.isoformat()} has no timezone")
    return in_zone(event, UTC)


class AssetTriggeredTimetable(Timetable):
    """The timetable for `schedule=[asset, …]` or an expression of assets. Time alone never causes a run.

    Args:
        assets: An asset, an expression of assets, or several of these, all of which are required.

    Attributes:
        expression: The expression as JSON values.
        leaves: The assets, references and aliases in it.
        timetable: The part of the schedule that depends on time.
    """

    description = "Triggered by assets"
    summary = "Asset"

    def __init__(self, assets: Any) -> None:
        self.expression = asset_expression(assets)
        self.leaves = tuple(leaf for item in ([assets] if is_asset(assets) else assets) for leaf in item.iter_leaves())
        self.timetable: Timetable = NullTimetable()

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        return self.timetable.next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return self.timetable.infer_manual_data_interval(run_after=run_after)


class AssetOrTimeSchedule(AssetTriggeredTimetable):
    """Runs when the assets' events have arrived, and also at the times of a timetable.

    Args:
        assets: An asset, an expression of assets, or several of these, all of which are required.
    """

    def __init__(self, *, timetable: Timetable, assets: Any) -> None:
        super().__init__(assets)
        if not isinstance(timetable, Timetable) or isinstance(timetable, AssetTriggeredTimetable):
            raise TimetableError(
                "AssetOrTimeSchedule(timetable=…) needs a time-based timetable, such as CronTriggerTimetable(…), not"
                f" {timetable!r:.100}"
            )
        self.timetable = timetable
        self.can_be_scheduled = timetable.can_be_scheduled
        self.active_runs_limit = timetable.active_runs_limit
        self.summary = f"Asset or {timetable.summary}"
        self.description = f"Triggered by assets or {timetable.description}"


def time_part(timetable: Timetable) -> Timetable:
    """Return the part of a schedule that depends on time."""
    return timetable.timetable if isinstance(timetable, AssetTriggeredTimetable) else timetable


def asset_part(timetable: Timetable) -> dict[str, Any] | None:
    """Return a schedule's expression of assets as JSON values; None if it has none."""
    return timetable.expression if isinstance(timetable, AssetTriggeredTimetable) else None


def asset_expression(assets: Any) -> dict[str, Any]:
    """Return the expression for the assets of a schedule, all of which are required, as JSON values.

    Raises TimetableError if the list is empty, or contains something else.
    """
    if is_asset(assets):
        expression: dict[str, Any] = assets.as_expression()
        return expression
    if not isinstance(assets, Collection) or isinstance(assets, (str, bytes)):
        raise TimetableError(f"the assets of a schedule are an asset or a list of assets, not {assets!r:.100}")
    if not assets:
        raise TimetableError("the schedule is an empty list of assets; use schedule=None for no schedule")
    wrong = next((item for item in assets if not is_asset(item)), None)
    if wrong is not None:
        raise TimetableError(f"a schedule that is a list may contain only assets, not {wrong!r:.100}")
    return {"all": [item.as_expression() for item in assets]}


def is_asset(value: object) -> bool:
    """Return whether a value is an asset or an expression of assets."""
    return hasattr(value, "as_expression")
