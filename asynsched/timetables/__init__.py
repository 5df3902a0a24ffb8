"""When a DAG runs: timetables with Airflow's names and meaning. Each name is imported when it is first used."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction, Timetable
    from asynsched.timetables.decoding import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan, decode
    from asynsched.timetables.partitions import (
        AllowedKeyMapper,
        ChainMapper,
        DayWindow,
        FanOutMapper,
        FixedKeyMapper,
        HourWindow,
        IdentityMapper,
        MinimumCount,
        MonthWindow,
        PartitionedAssetTimetable,
        PartitionMapper,
        ProductMapper,
        QuarterWindow,
        RollupMapper,
        SegmentWindow,
        StartOfDayMapper,
        StartOfHourMapper,
        StartOfMonthMapper,
        StartOfQuarterMapper,
        StartOfWeekMapper,
        StartOfYearMapper,
        WaitForAll,
        WeekWindow,
        Window,
        YearWindow,
    )
    from asynsched.timetables.repeating import (
        CronDataIntervalTimetable,
        CronPartitionTimetable,
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
        PartitionedAtRuntime,
        timetable_from_schedule,
    )

__all__ = [
    "AllowedKeyMapper", "AssetOrTimeSchedule", "ChainMapper", "ContinuousTimetable", "CronDataIntervalTimetable",
    "CronPartitionTimetable", "CronTriggerTimetable", "CustomTimetable", "DagRunInfo", "DataInterval", "DayWindow",
    "DeltaDataIntervalTimetable", "DeltaTriggerTimetable", "EventsTimetable", "FanOutMapper", "FixedKeyMapper",
    "HourWindow", "IdentityMapper", "KnownTimetable", "MinimumCount", "MonthWindow", "MultipleCronTriggerTimetable",
    "NullTimetable", "OnceTimetable", "PartitionMapper", "PartitionedAssetTimetable", "PartitionedAtRuntime",
    "PlannedInterval", "PlannedRun", "ProductMapper", "QuarterWindow", "RollupMapper", "SegmentWindow",
    "StartOfDayMapper", "StartOfHourMapper", "StartOfMonthMapper", "StartOfQuarterMapper", "StartOfWeekMapper",
    "StartOfYearMapper", "TimeRestriction", "Timetable", "TimetablePlan", "WaitForAll", "WeekWindow", "Window",
    "YearWindow", "decode", "timetable_from_schedule",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        # Each of these modules loads more than the one before it.
        for home in ("base", "simple", "partitions", "repeating", "decoding"):
            names = vars(import_module(f"{__name__}.{home}"))
            if name in names:
                globals()[name] = names[name]
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
