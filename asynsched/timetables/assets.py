"""Schedules by assets: a DAG runs when events of the assets that it waits for have arrived.

A schedule has two parts that know nothing of each other: an expression of assets, and a timetable of time. A
serialized DAG has each in a field of its own.

Source:
    Airflow's `airflow.timetables.assets`.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from asynsched.errors import TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from asynsched.timetables.simple import NullTimetable


class AssetTriggeredTimetable(Timetable):
    """What `schedule=[asset, …]` or an expression of assets becomes. By time, it never gives a run.

    Args:
        assets: An asset, an expression of assets, or several, all of which are waited for.

    Raises:
        TimetableError: It is none.

    Attributes:
        expression: What is waited for, as JSON values.
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
    """Runs when the assets' events have arrived, and also when a timetable says.

    Args:
        timetable: The timetable.
        assets: An asset, an expression of assets, or several, all of which are waited for.

    Raises:
        TimetableError: One of them is none.
    """

    def __init__(self, *, timetable: Timetable, assets: Any) -> None:
        super().__init__(assets)
        if not isinstance(timetable, Timetable) or isinstance(timetable, AssetTriggeredTimetable):
            raise TimetableError(
                "AssetOrTimeSchedule(timetable=…) needs a timetable of time, such as CronTriggerTimetable(…), not"
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
    """Return the expression of assets of a schedule, as JSON values; None when it has none."""
    return timetable.expression if isinstance(timetable, AssetTriggeredTimetable) else None


def asset_expression(assets: Any) -> dict[str, Any]:
    """Return the expression that assets in a schedule stand for, as JSON values; several are all waited for.

    Raises:
        TimetableError: There are none among them, or something else is.
    """
    if is_asset(assets):
        expression: dict[str, Any] = assets.as_expression()
        return expression
    if not isinstance(assets, Collection) or isinstance(assets, (str, bytes)):
        raise TimetableError(f"the assets of a schedule are an asset or a list of assets, not {assets!r:.100}")
    if not assets:
        raise TimetableError("the schedule is a list of assets without any in it; schedule=None is for no schedule")
    wrong = next((item for item in assets if not is_asset(item)), None)
    if wrong is not None:
        raise TimetableError(f"a schedule that is a list has assets only, not {wrong!r:.100}")
    return {"all": [item.as_expression() for item in assets]}


def is_asset(value: object) -> bool:
    """Return whether a value is an asset or an expression of assets, as DAG files make them."""
    return hasattr(value, "as_expression")
