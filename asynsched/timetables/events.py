"""A timetable of listed moments.

Source: Airflow's `airflow.timetables.events`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from asynsched.errors import TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction
from asynsched.timetables.zones import in_zone

MAX_EVENTS = 100_000


class EventsTimetable(KnownTimetable):
    """Runs at the listed moments, for events that are foreseeable but irregular.

    Args:
        event_dates: The moments, aware. Duplicates run once.
        restrict_to_events: Give a manually triggered run the most recent moment as data interval (the first if none is
            past), instead of the time of the run.
        presorted: Accepted as in Airflow; sorting a sorted list costs nothing.
        description: The timetable's name; by default `N events`.

    Raises:
        TimetableError: A moment is not an aware datetime, or there are too many.
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

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        if not self.restrict_to_events or not self.event_dates:
            return DataInterval(run_after, run_after)
        event = self.event_dates[max(0, bisect_right(self.event_dates, run_after) - 1)]
        return DataInterval(event, event)

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
