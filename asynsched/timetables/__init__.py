"""When a DAG runs: timetables with Airflow's names and meaning. Each name is imported when it is first used."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.timetables.assets import AssetOrTimeSchedule
    from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
    from asynsched.timetables.custom import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan
    from asynsched.timetables.decoding import decode
    from asynsched.timetables.events import EventsTimetable
    from asynsched.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
    from asynsched.timetables.simple import (
        ContinuousTimetable,
        NullTimetable,
        OnceTimetable,
        timetable_from_schedule,
    )
    from asynsched.timetables.trigger import (
        CronTriggerTimetable,
        DeltaTriggerTimetable,
        MultipleCronTriggerTimetable,
    )

_MODULES = {
    "assets": "AssetOrTimeSchedule",
    "base": "DagRunInfo DataInterval KnownTimetable TimeRestriction Timetable",
    "custom": "CustomTimetable PlannedInterval PlannedRun TimetablePlan",
    "decoding": "decode",
    "events": "EventsTimetable",
    "interval": "CronDataIntervalTimetable DeltaDataIntervalTimetable",
    "simple": "ContinuousTimetable NullTimetable OnceTimetable timetable_from_schedule",
    "trigger": "CronTriggerTimetable DeltaTriggerTimetable MultipleCronTriggerTimetable",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AssetOrTimeSchedule", "ContinuousTimetable", "CronDataIntervalTimetable", "CronTriggerTimetable",
    "CustomTimetable", "DagRunInfo", "DataInterval", "DeltaDataIntervalTimetable", "DeltaTriggerTimetable",
    "EventsTimetable", "KnownTimetable", "MultipleCronTriggerTimetable", "NullTimetable", "OnceTimetable",
    "PlannedInterval", "PlannedRun", "TimeRestriction", "Timetable", "TimetablePlan", "decode",
    "timetable_from_schedule",
]  # fmt: skip


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
