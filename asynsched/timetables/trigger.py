"""Timetables that run at the moments of a schedule, with a data interval of any length (by default empty).

Source: Airflow's `airflow.timetables.trigger`.
"""

from abc import abstractmethod
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from asynsched.errors import TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction
from asynsched.timetables.cron import CronSchedule, FoldPolicy, GapPolicy, cron_schedule
from asynsched.timetables.delta import Delta

if TYPE_CHECKING:
    from asynsched.timetables.delta import AnyDelta

NO_INTERVAL = timedelta()
SHORTEST_BUFFER = timedelta(minutes=5)
MAX_EXPRESSIONS = 1000


class _TriggerTimetable(KnownTimetable):
    def __init__(self, schedule: CronSchedule | Delta, interval: "AnyDelta") -> None:
        self._schedule = schedule
        self._interval = Delta(interval, "interval", zero=True)

    @property
    def summary(self) -> str:
        return str(self._schedule)

    @abstractmethod
    def _first_run(self, now: datetime) -> datetime | None:
        """Return the time of the first run of a DAG without a start date."""

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
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

    Raises:
        TimetableError: A length is not positive.
    """

    kind = "delta_trigger"

    def __init__(self, delta: "AnyDelta", *, interval: "AnyDelta" = NO_INTERVAL) -> None:
        self._delta = self.every = Delta(delta, "schedule")
        super().__init__(self._delta, interval)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind, "delta": self._delta.encode(), "interval": self._interval.encode()}

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

    Raises:
        TimetableError: The expression, the timezone, the interval or a policy is invalid.
    """

    kind = "cron_trigger"

    def __init__(
        self,
        cron: str,
        *,
        timezone: str | tzinfo,
        interval: "AnyDelta" = NO_INTERVAL,
        run_immediately: bool | timedelta = False,
        gap: GapPolicy | None = None,
        fold: FoldPolicy | None = None,
    ) -> None:
        self._cron = cron_schedule(cron, timezone, gap, fold)
        if not isinstance(run_immediately, bool | timedelta):
            raise TimetableError(f"run_immediately must be True, False or a timedelta, not {run_immediately!r:.100}")
        self._run_immediately = run_immediately
        super().__init__(self._cron, interval)

    @property
    def description(self) -> str:
        return self._cron.description

    def serialize(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "expression": self._cron.expression,
            "timezone": self._cron.zone_name,
            "interval": self._interval.encode(),
            "run_immediately": _encode_run_immediately(self._run_immediately),
            **self._cron.policy,
        }

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


def _encode_run_immediately(value: bool | timedelta) -> bool | float:
    return value.total_seconds() if isinstance(value, timedelta) else value


class MultipleCronTriggerTimetable(KnownTimetable):
    """Runs at the times of several cron expressions, once where they coincide.

    Args:
        crons: The expressions.
        timezone: As for CronTriggerTimetable.
        interval: As for CronTriggerTimetable.
        run_immediately: As for CronTriggerTimetable.
        gap: As for CronTriggerTimetable.
        fold: As for CronTriggerTimetable.

    Raises:
        TimetableError: There is no expression, or an argument is invalid.
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

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return self._timetables[0].infer_manual_data_interval(run_after=run_after)

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        infos = [timetable.next_run(last, restriction, now) for timetable in self._timetables]
        found = [info for info in infos if info is not None]
        if restriction.catchup is not True:
            # The newest past moment: without catchup, the others are left out.
            past = [info for info in found if info.logical_date <= now]
            if past:
                return max(past, key=_logical_date)
        return min(found, key=_logical_date, default=None)


def _logical_date(info: DagRunInfo) -> datetime:
    return info.logical_date
