"""When a DAG runs: timetables with Airflow's names and meaning. Each name is imported when it is first used."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
    from asynsched.timetables.decoding import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan, decode
    from asynsched.timetables.repeating import (
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        MultipleCronTriggerTimetable,
    )
    from asynsched.timetables.simple import (
        AssetOrTimeSchedule,
        ContinuousTimetable,
        EventsTimetable,
        NullTimetable,
        OnceTimetable,
        timetable_from_schedule,
    )

_MODULES = {
    "base": "DagRunInfo DataInterval KnownTimetable TimeRestriction Timetable",
    "decoding": "CustomTimetable PlannedInterval PlannedRun TimetablePlan decode",
    "repeating": (
        "CronDataIntervalTimetable CronTriggerTimetable DeltaDataIntervalTimetable DeltaTriggerTimetable"
        " MultipleCronTriggerTimetable"
    ),
    "simple": (
        "AssetOrTimeSchedule ContinuousTimetable EventsTimetable NullTimetable OnceTimetable timetable_from_schedule"
    ),
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
