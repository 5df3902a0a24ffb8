"""Timetables of consecutive data intervals: each run starts when its interval has ended.

Source: Airflow's `airflow.timetables.interval`.
"""

from abc import abstractmethod
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction
from asynsched.timetables.cron import CronSchedule, FoldPolicy, GapPolicy, cron_schedule
from asynsched.timetables.delta import Delta

if TYPE_CHECKING:
    from asynsched.timetables.delta import AnyDelta


class _DataIntervalTimetable(KnownTimetable):
    def __init__(self, schedule: CronSchedule | Delta) -> None:
        self._schedule = schedule

    @property
    def summary(self) -> str:
        return str(self._schedule)

    @abstractmethod
    def _latest_start(self, now: datetime, earliest: datetime | None) -> datetime | None:
        """Return the start of the newest interval that has ended at `now`, where a DAG without catchup begins."""

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        earliest = None if restriction.earliest is None else self._schedule.align_to_next(restriction.earliest)
        if restriction.catchup is False:
            bounds = [bound for bound in (earliest, self._latest_start(now, earliest)) if bound is not None]
            earliest = max(bounds, default=None)
        start = earliest
        if last is not None:
            start = self._start_after(last, earliest)
        if start is None or (restriction.latest is not None and start > restriction.latest):
            return None
        if restriction.catchup == "latest":
            start = self._newest_start(start, restriction.latest or now, now)
        end = self._schedule.next(start)
        return None if end is None else DagRunInfo.interval(start, end)

    def _start_after(self, last: DataInterval, earliest: datetime | None) -> datetime | None:
        # If the schedule has changed, the end of the last interval is not a boundary.
        aligned = self._schedule.align_to_previous(last.end)
        start = max((moment for moment in (aligned, earliest) if moment is not None), default=None)
        # A changed schedule or a clock change may lead back into the last interval.
        while start is not None and start <= last.start:
            start = self._schedule.next(start)
        return start

    def _newest_start(self, start: datetime, latest: datetime, now: datetime) -> datetime:
        """Return the start, until `latest`, of the newest interval that has ended; `start` if none has."""
        back = self._schedule.previous(now)
        back = None if back is None else self._schedule.previous(back)
        if back is not None:
            start = self._schedule.newest(start, min(back, latest))
        while (following := self._schedule.next(start)) is not None and following <= latest:
            end = self._schedule.next(following)
            if end is None or end > now:
                break
            start = following
        return start


class CronDataIntervalTimetable(_DataIntervalTimetable):
    """Runs at the end of each data interval between two times of a cron expression.

    Args:
        cron: The expression, or a preset such as `@daily`.
        timezone: The timezone of the expression.
        gap: Whether times that the clock skips are left out (`skip`) or run later (`shift`); by default as in Airflow.
        fold: Whether times that the clock repeats run the `first` time, the `last` time or `both`; by default as in
            Airflow.

    Raises:
        TimetableError: The expression, the timezone or a policy is invalid.
    """

    kind = "cron_data_interval"

    def __init__(
        self,
        cron: str,
        timezone: str | tzinfo,
        *,
        gap: GapPolicy | None = None,
        fold: FoldPolicy | None = None,
    ) -> None:
        self._cron = cron_schedule(cron, timezone, gap, fold)
        super().__init__(self._cron)

    @property
    def description(self) -> str:
        return self._cron.description

    def serialize(self) -> dict[str, Any]:
        zone = self._cron.zone_name
        return {"kind": self.kind, "expression": self._cron.expression, "timezone": zone, **self._cron.policy}

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        end = self._cron.align_to_previous(run_after) or run_after
        return DataInterval(self._cron.previous(end) or end, end)

    def _latest_start(self, now: datetime, earliest: datetime | None) -> datetime | None:
        start = self._cron.previous(now)
        end = None if start is None else self._cron.next(start)
        while end is not None and end < now:
            # Across a clock change, `previous` may go too far back.
            start, end = end, self._cron.next(end)
        if start is None or end is None or end == now:
            return start
        return self._cron.previous(start) or start


class DeltaDataIntervalTimetable(_DataIntervalTimetable):
    """Runs at the end of data intervals of the same length, one after the other.

    Args:
        delta: The length of an interval.

    Raises:
        TimetableError: The length is not positive.
    """

    kind = "delta_data_interval"

    def __init__(self, delta: "AnyDelta") -> None:
        self._delta = self.every = Delta(delta, "schedule")
        super().__init__(self._delta)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind, "delta": self._delta.encode()}

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval(self._delta.previous(run_after), run_after)

    def _latest_start(self, now: datetime, earliest: datetime | None) -> datetime:
        if not self._delta.is_calendar:
            return self._delta.previous(self._delta.round_down(now))
        if earliest is None:
            return self._delta.previous(now)
        # Months differ in length, so the intervals are counted from the first.
        start = earliest
        end = self._delta.next(start)
        while (following := self._delta.next(end)) <= now:
            start, end = end, following
        return start
