"""From a DAG's `schedule` argument to its timetable."""

from datetime import timedelta, tzinfo
from typing import Any

from asynsched.errors import DagError, TimetableError
from asynsched.timetables.base import Timetable
from asynsched.timetables.simple import ContinuousTimetable, NullTimetable, OnceTimetable


def timetable_from_schedule(schedule: Any, timezone: str | tzinfo) -> Timetable:
    """Return the timetable that a `schedule` argument stands for.

    Args:
        schedule: None, `@once`, `@continuous`, a preset such as `@daily`, a cron expression, a timedelta, a
            relativedelta, a timetable, an asset, an expression of assets, or a list of them.
        timezone: Zone of the DAG, in which a cron expression is read.

    Raises:
        TimetableError: It stands for none.

    Source:
        Airflow 3's defaults: a cron string is a CronTriggerTimetable, a delta a DeltaTriggerTimetable.
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
    """Whether a timetable is user code: one that the scheduler can make again itself is not."""
    return not type(timetable).__module__.startswith("asynsched.timetables.")
