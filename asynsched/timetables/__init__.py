"""When a DAG runs: pure functions of time, with the names and the meaning of Airflow's timetables.

The names are loaded when they are first used: a DAG file pays for the one that it names.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.timetables.assets import AssetOrTimeSchedule
    from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
    from asynsched.timetables.custom import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan
    from asynsched.timetables.decoding import decode
    from asynsched.timetables.events import EventsTimetable
    from asynsched.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
    from asynsched.timetables.simple import ContinuousTimetable, NullTimetable, OnceTimetable, timetable_from_schedule
    from asynsched.timetables.trigger import (
        CronTriggerTimetable,
        DeltaTriggerTimetable,
        MultipleCronTriggerTimetable,
    )

__all__ = [
    "AssetOrTimeSchedule",
    "ContinuousTimetable",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "CustomTimetable",
    "DagRunInfo",
    "DataInterval",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "EventsTimetable",
    "KnownTimetable",
    "MultipleCronTriggerTimetable",
    "NullTimetable",
    "OnceTimetable",
    "PlannedInterval",
    "PlannedRun",
    "TimeRestriction",
    "Timetable",
    "TimetablePlan",
    "decode",
    "timetable_from_schedule",
]

_MODULES = {
    "AssetOrTimeSchedule": "assets",
    "ContinuousTimetable": "simple",
    "CronDataIntervalTimetable": "interval",
    "CronTriggerTimetable": "trigger",
    "CustomTimetable": "custom",
    "DagRunInfo": "base",
    "DataInterval": "base",
    "DeltaDataIntervalTimetable": "interval",
    "DeltaTriggerTimetable": "trigger",
    "EventsTimetable": "events",
    "KnownTimetable": "base",
    "MultipleCronTriggerTimetable": "trigger",
    "NullTimetable": "simple",
    "OnceTimetable": "simple",
    "PlannedInterval": "custom",
    "PlannedRun": "custom",
    "TimeRestriction": "base",
    "Timetable": "base",
    "TimetablePlan": "custom",
    "decode": "decoding",
    "timetable_from_schedule": "simple",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
