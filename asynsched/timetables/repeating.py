"""Timetables that repeat: cron expressions and lengths of time.

Data-interval timetables have consecutive data intervals, and each run starts when its interval has ended. Trigger
timetables run at the moments of a schedule, with a data interval of any length (by default empty).

Source: Airflow's `airflow.timetables.interval` and `airflow.timetables.trigger`.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from asynsched.errors import TimetableError
from asynsched.timetables.base import A_MOMENT, DagRunInfo, DataInterval, KnownTimetable, TimeRestriction
from asynsched.timetables.cron import CronSchedule, FoldPolicy, GapPolicy
from asynsched.timetables.delta import Delta
from asynsched.timetables.partitions import ISO_FORMAT, checked_key
from asynsched.timetables.zones import in_zone, instant_of

if TYPE_CHECKING:
    from asynsched.timetables.delta import AnyDelta


class _RepeatingTimetable(KnownTimetable):
    def __init__(self, schedule: CronSchedule | Delta) -> None:
        self._schedule = schedule

    @property
    def summary(self) -> str:
        return str(self._schedule)

    @property
    def description(self) -> str:
        return self._schedule.description


class _DataIntervalTimetable(_RepeatingTimetable):
    @abstractmethod
    def _latest_start(self, now: datetime, earliest: datetime | None) -> datetime | None:
        """Return the start of the newest interval that has ended at `now`, where a DAG without catchup begins."""

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        earliest = None if restriction.earliest is None else self._schedule.align_to_next(restriction.earliest)
        if restriction.catchup is False:
            counted_from = earliest if earliest is None or last is None else max(earliest, last.start)
            bounds = [bound for bound in (earliest, self._latest_start(now, counted_from)) if bound is not None]
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
    """

    kind = "cron_data_interval"

    def __init__(
        self, cron: str, timezone: str | tzinfo, *, gap: GapPolicy | None = None, fold: FoldPolicy | None = None
    ) -> None:
        self._cron = CronSchedule(cron, timezone, gap, fold)
        super().__init__(self._cron)

    def serialize(self) -> dict[str, Any]:
        zone = self._cron.zone_name
        return {"kind": self.kind, "expression": self._cron.expression, "timezone": zone, **self._cron.policy}

    def manual_interval(self, run_after: datetime) -> DataInterval:
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
    """

    kind = "delta_data_interval"

    def __init__(self, delta: "AnyDelta") -> None:
        self._delta = self.every = Delta(delta, "schedule")
        super().__init__(self._delta)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind, "delta": self._delta.encode()}

    def manual_interval(self, run_after: datetime) -> DataInterval:
        return DataInterval(self._delta.previous(run_after), run_after)

    def _latest_start(self, now: datetime, earliest: datetime | None) -> datetime:
        if not self._delta.is_calendar:
            return self._delta.previous(self._delta.round_down(now))
        if earliest is None:
            return self._delta.previous(now)
        # Months differ in length, so the intervals are counted from the first.
        return deque(self._delta.moments(earliest, now), maxlen=2)[0]


NO_INTERVAL = timedelta()
SHORTEST_BUFFER = timedelta(minutes=5)
MAX_EXPRESSIONS = 1000
MAX_OFFSET = 10_000
"""How many times of its expression a partition may be away from its run."""


class _TriggerTimetable(_RepeatingTimetable):
    def __init__(self, schedule: CronSchedule | Delta, interval: "AnyDelta") -> None:
        super().__init__(schedule)
        self._interval = Delta(interval, "interval", zero=True)

    @abstractmethod
    def _first_run(self, now: datetime) -> datetime | None:
        """Return the time of the first run of a DAG without a start date."""

    def manual_interval(self, run_after: datetime) -> DataInterval:
        return DataInterval(self._interval.previous(run_after), run_after)

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        earliest = restriction.earliest
        if last is not None:
            following = self._schedule.next(last.end)
        elif earliest is None:
            following = self._first_run(now)
        else:
            following = self._schedule.align_to_next(earliest)
        if following is None:
            return None
        run_after = self._without_missed(following, restriction, now)
        if restriction.latest is not None and run_after > restriction.latest:
            return None
        start = self._interval.previous(run_after)
        return DagRunInfo.interval(start, run_after)

    def _without_missed(self, following: datetime, restriction: TimeRestriction, now: datetime) -> datetime:
        """Return the moment to run at instead of `following`, which is later unless `catchup=True`."""
        if restriction.catchup is True:
            return following
        if restriction.catchup == "latest":
            return self._schedule.newest(following, min(now, restriction.latest or now))
        # Not before the newest past moment, nor before the first moment of the DAG.
        bounds = [following, self._schedule.align_to_previous(now)]
        if restriction.earliest is not None:
            bounds.append(self._schedule.align_to_next(restriction.earliest))
        return max(bound for bound in bounds if bound is not None)


class DeltaTriggerTimetable(_TriggerTimetable):
    """Runs at regular intervals.

    Args:
        delta: The time between two runs.
        interval: The length of the data interval that ends at each run; by default empty.
    """

    kind = "delta_trigger"

    def __init__(self, delta: "AnyDelta", *, interval: "AnyDelta" = NO_INTERVAL) -> None:
        self._delta = self.every = Delta(delta, "schedule")
        super().__init__(self._delta, interval)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind, "delta": self._delta.encode(), "interval": self._interval.encode()}

    def lateness_ignored(self, last: DataInterval | None) -> timedelta:
        return A_MOMENT

    def _first_run(self, now: datetime) -> datetime:
        return now


class CronTriggerTimetable(_TriggerTimetable):
    """Runs at the times of a cron expression. A cron string as `schedule` means this timetable.

    Args:
        cron: The expression, or a preset such as `@daily`.
        timezone: The timezone of the expression.
        interval: The length of the data interval that ends at each run; by default empty.
        run_immediately: For a DAG without a start date or a run, whether the most recent time runs immediately: always
            (True), if it is at most this long ago (a timedelta), or if it is at most a tenth of the time between two
            runs ago, or five minutes (False).
        gap: Whether times that the clock skips are left out (`skip`) or run later (`shift`); by default as in Airflow.
        fold: Whether times that the clock repeats run the `first` time, the `last` time or `both`; by default as in
            Airflow.
    """

    kind = "cron_trigger"

    def __init__(
        self,
        cron: str,
        *,
        timezone: str | tzinfo,
        interval: "AnyDelta" = NO_INTERVAL,
        run_immediately: bool | timedelta | None = False,
        gap: GapPolicy | None = None,
        fold: FoldPolicy | None = None,
    ) -> None:
        self._cron = CronSchedule(cron, timezone, gap, fold)
        if not isinstance(run_immediately, bool | timedelta | None):
            raise TimetableError(f"run_immediately must be True, False or a timedelta, not {run_immediately!r:.100}")
        self._run_immediately = run_immediately or False
        super().__init__(self._cron, interval)

    def serialize(self) -> dict[str, Any]:
        now = self._run_immediately
        return {
            "kind": self.kind,
            "expression": self._cron.expression,
            "timezone": self._cron.zone_name,
            "interval": self._interval.encode(),
            "run_immediately": now.total_seconds() if isinstance(now, timedelta) else now,
            **self._cron.policy,
        }

    def lateness_ignored(self, last: DataInterval | None) -> timedelta:
        return A_MOMENT if last is None else timedelta()  # only the first run may run immediately

    def _first_run(self, now: datetime) -> datetime | None:
        past, coming = self._cron.align_to_previous(now), self._cron.align_to_next(now)
        if past is None or coming is None:
            return coming
        if self._run_immediately is True:
            return past
        if isinstance(self._run_immediately, timedelta):
            buffer = self._run_immediately
        else:
            buffer = max((coming - past) / 10, SHORTEST_BUFFER)
        return past if now - past <= buffer else coming


class CronPartitionTimetable(CronTriggerTimetable):
    """Runs at the times of a cron expression, each time for a partition. Its runs have no logical date.

    Args:
        cron: The expression, or a preset such as `@daily`.
        timezone: The timezone of the expression and of the keys.
        run_offset: How many times of the expression later (negative: earlier) than the run its partition is.
        run_immediately: As of CronTriggerTimetable.
        key_format: The partition key, by the partition's date, for `strftime`.
    """

    kind = "cron_partition"

    def __init__(
        self,
        cron: str,
        *,
        timezone: str | tzinfo,
        run_offset: int | None = None,
        run_immediately: bool | timedelta = False,
        key_format: str = ISO_FORMAT,
    ) -> None:
        super().__init__(cron, timezone=timezone, run_immediately=run_immediately)
        if not isinstance(run_offset, int | None) or abs(run_offset or 0) > MAX_OFFSET:
            raise TimetableError(f"run_offset must be a whole number of at most {MAX_OFFSET}, not {run_offset!r:.100}")
        if not isinstance(key_format, str):
            raise TimetableError(f"key_format must be a string, not {key_format!r:.100}")
        self._run_offset = run_offset or 0
        self._key_format = key_format
        checked_key(datetime(2026, 12, 31, tzinfo=self._cron.zone).strftime(key_format))

    def serialize(self) -> dict[str, Any]:
        form = {name: value for name, value in super().serialize().items() if name != "interval"}
        return {**form, "run_offset": self._run_offset, "key_format": self._key_format}

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        info = super().next_run(last, restriction, now)
        if info is None:
            return None
        date: datetime | None = info.run_after
        step = self._cron.next if self._run_offset > 0 else self._cron.previous
        for _ in range(abs(self._run_offset)):
            date = None if date is None else step(date)
        if date is None:
            return None
        return info._replace(partition_date=date, partition_key=self.key_of(date))

    def partitions(self, earliest: datetime, latest: datetime) -> Iterator[DagRunInfo]:
        """Yield a run for each partition from `earliest` to `latest`, both included, to start at the partition's date.

        Args:
            earliest: A wall-clock time, naive, in the timezone of the timetable.
            latest: Another one.

        Source:
            Apache Airflow's `CronPartitionTimetable.iter_partition_dagrun_infos`.
        """
        end = instant_of(latest, self._cron.zone)
        date = self._cron.align_to_next(instant_of(earliest, self._cron.zone))
        while date is not None and date <= end:
            yield DagRunInfo(date, DataInterval.exact(date), date, self.key_of(date))
            date = self._cron.next(date)

    def key_of(self, date: datetime) -> str:
        """Return the key of the partition of a date."""
        return in_zone(date, self._cron.zone).strftime(self._key_format)

    def date_of(self, key: str) -> datetime:
        """Return the date of a partition by its key. Raises TimetableError if the key does not fit `key_format`."""
        try:
            wall = datetime.strptime(key, self._key_format)  # noqa: DTZ007 - most keys have no offset
        except ValueError as exc:
            raise TimetableError(f"the partition key {key!r} does not fit key_format: {exc}") from exc
        return instant_of(wall, self._cron.zone) if wall.tzinfo is None else in_zone(wall, UTC)


class MultipleCronTriggerTimetable(KnownTimetable):
    """Runs at the times of several cron expressions, once where they coincide.

    Args:
        crons: The expressions. The other arguments are those of CronTriggerTimetable.
    """

    kind = "multiple_cron_trigger"

    def __init__(
        self,
        *crons: str,
        timezone: str | tzinfo,
        interval: "AnyDelta" = NO_INTERVAL,
        run_immediately: bool | timedelta = False,
        gap: GapPolicy | None = None,
        fold: FoldPolicy | None = None,
    ) -> None:
        if not 0 < len(crons) <= MAX_EXPRESSIONS:
            raise TimetableError(f"a timetable needs 1 to {MAX_EXPRESSIONS} cron expressions, not {len(crons)}")
        self._timetables = [
            CronTriggerTimetable(
                cron, timezone=timezone, interval=interval, run_immediately=run_immediately, gap=gap, fold=fold
            )
            for cron in crons
        ]

    @property
    def summary(self) -> str:
        return ", ".join(timetable.summary for timetable in self._timetables)

    @property
    def description(self) -> str:
        return ", ".join(timetable.description for timetable in self._timetables)

    def serialize(self) -> dict[str, Any]:
        each = [timetable.serialize() for timetable in self._timetables]
        expressions = [fields.pop("expression") for fields in each]
        return {**each[0], "kind": self.kind, "expressions": expressions}

    def lateness_ignored(self, last: DataInterval | None) -> timedelta:
        return self._timetables[0].lateness_ignored(last)

    def manual_interval(self, run_after: datetime) -> DataInterval:
        return self._timetables[0].manual_interval(run_after)

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        infos = [timetable.next_run(last, restriction, now) for timetable in self._timetables]
        found = [info for info in infos if info is not None]
        if restriction.catchup is not True:
            # The newest past moment: without catchup, the others are left out.
            past = [info for info in found if info.run_after <= now]
            if past:
                return max(past, key=lambda info: info.run_after)
        return min(found, key=lambda info: info.run_after, default=None)
