"""Schedules by assets: a DAG runs when events of the assets that it waits for have arrived.

Such a schedule has two independent parts, an expression of assets and a timetable, each with its own field in the
serialized DAG.

Source: Airflow's `airflow.timetables.assets`.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from asynsched.errors import TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from asynsched.timetables.simple import NullTimetable


class AssetTriggeredTimetable(Timetable):
    """The timetable for `schedule=[asset, …]` or an expression of assets. Time alone never causes a run.

    Args:
        assets: An asset, an expression of assets, or several of these, all of which are required.

    Raises:
        TimetableError: `assets` is something else.

    Attributes:
        expression: The expression as JSON values.
        timetable: The part of the schedule that depends on time.
    """

    description = "Triggered by assets"
    summary = "Asset"

    def __init__(self, assets: Any) -> None:
        self.expression = asset_expression(assets)
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
        timetable: The timetable.
        assets: An asset, an expression of assets, or several of these, all of which are required.

    Raises:
        TimetableError: An argument is invalid.
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

    Raises:
        TimetableError: The list is empty, or contains something else.
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
