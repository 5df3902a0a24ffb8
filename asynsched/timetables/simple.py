"""The timetable of a DAG's `schedule`, and the timetables without arithmetic: never, once, and continuously.

Source: Airflow's `airflow.timetables.simple`.
"""

from datetime import datetime, timedelta, tzinfo
from typing import Any

from asynsched.errors import DagError, TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
from asynsched.timetables.zones import moved


class _TrivialTimetable(KnownTimetable):
    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval(run_after, run_after)

    def serialize(self) -> dict[str, Any]:
        return {"kind": self.kind}


class NullTimetable(_TrivialTimetable):
    """Runs only when triggered: `schedule=None`."""

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
    """Runs once, as soon as possible: `schedule="@once"`."""

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
        # The start date counts even without catchup: there is only one run to miss.
        run_after = restriction.earliest or now
        if restriction.latest is not None and run_after > restriction.latest:
            return None
        return DagRunInfo.exact(run_after)


class ContinuousTimetable(_TrivialTimetable):
    """Runs continuously, one run after the other: `schedule="@continuous"`."""

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
            # The start date was moved to the future: the next interval is as long as the last.
            end = moved(start, last.end - last.start)
        else:
            start, end = last.end, now
        if restriction.latest is not None and end > restriction.latest:
            return None
        return DagRunInfo.interval(start, end)


def timetable_from_schedule(schedule: Any, timezone: str | tzinfo) -> Timetable:
    """Return the timetable for a `schedule` argument.

    Args:
        schedule: None, `@once`, `@continuous`, a preset such as `@daily`, a cron expression, a timedelta, a
            relativedelta, a timetable, an asset, an expression of assets, or a list of these.
        timezone: The DAG's timezone, for cron expressions.

    Raises:
        TimetableError: The schedule is invalid.

    Source: Airflow 3's defaults: a cron string is a CronTriggerTimetable, a delta a DeltaTriggerTimetable.
    """
    if schedule is None:
        return NullTimetable()
    if isinstance(schedule, Timetable):
        return _checked(schedule)
    if isinstance(schedule, str):
        return _from_text(schedule, timezone)
    if isinstance(schedule, timedelta) or type(schedule).__name__ == "relativedelta":
        from asynsched.timetables.trigger import DeltaTriggerTimetable

        return DeltaTriggerTimetable(schedule)
    if isinstance(schedule, (list, tuple, set, frozenset)) or hasattr(schedule, "as_expression"):
        from asynsched.timetables.assets import AssetTriggeredTimetable

        return AssetTriggeredTimetable(schedule)
    raise TimetableError(
        f"schedule must be None, a cron expression, a preset, a timedelta, a relativedelta, a timetable or assets,"
        f" not {type(schedule).__name__}: {schedule!r:.100}"
    )


def _from_text(schedule: str, timezone: str | tzinfo) -> Timetable:
    if schedule == "@once":
        return OnceTimetable()
    if schedule == "@continuous":
        return ContinuousTimetable()
    from asynsched.timetables.trigger import CronTriggerTimetable

    return CronTriggerTimetable(schedule, timezone=timezone)


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
