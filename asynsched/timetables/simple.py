"""Schedules without arithmetic: never, once, and all the time.

Source:
    Airflow's `airflow.timetables.simple`.
"""

from datetime import datetime
from typing import Any

from asynsched.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from asynsched.timetables.known import KnownTimetable
from asynsched.timetables.zones import moved


class _TrivialTimetable(KnownTimetable):
    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval(run_after, run_after)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind}


class NullTimetable(_TrivialTimetable):
    """Never: `schedule=None`. Runs are triggered by somebody."""

    kind = "null"
    can_be_scheduled = False

    @property
    def summary(self) -> str:
        return "None"

    @property
    def description(self) -> str:
        return "Never, external triggers only"

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        return None


class OnceTimetable(_TrivialTimetable):
    """Once, as soon as possible: `schedule="@once"`."""

    kind = "once"

    @property
    def summary(self) -> str:
        return "@once"

    @property
    def description(self) -> str:
        return "Once, as soon as possible"

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        if last is not None:
            return None
        # The start date counts with or without catchup: there is but one run to make up for.
        run_after = restriction.earliest or now
        if restriction.latest is not None and run_after > restriction.latest:
            return None
        return DagRunInfo.exact(run_after)


class ContinuousTimetable(_TrivialTimetable):
    """All the time, one run after the other: `schedule="@continuous"`."""

    kind = "continuous"
    active_runs_limit = 1

    @property
    def summary(self) -> str:
        return "@continuous"

    @property
    def description(self) -> str:
        return "As frequently as possible, but only one run at a time."

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        start = restriction.earliest or now
        if last is None:
            end = max(start, now)
        elif last.end > now:
            # The start date was moved into the future: the next interval is as long as the last one.
            end = moved(start, last.end - last.start)
        else:
            start, end = last.end, now
        if restriction.latest is not None and end > restriction.latest:
            return None
        return DagRunInfo.interval(start, end)
