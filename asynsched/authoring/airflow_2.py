"""What files for Airflow 2 write and Airflow 3 calls otherwise: arguments, trigger rules, and values of the context.

All of it works where it has a meaning. A parse warns once for each file of its arguments and of the values that its
text reads; the log of a task warns of values, too.
"""

from __future__ import annotations

import datetime as dt
from functools import partial

from asynsched.errors import Airflow2Warning, DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.timetables import DataInterval
    from asynsched.timetables.base import Timetable
    from asynsched.timetables.simple import AssetOrTimeSchedule

_OF_THE_WEB_PAGE = "has no effect: it is about Airflow 2's web page; remove it"
RENAMED_OF_DAGS = {
    "schedule_interval": "schedule",
    "timetable": "schedule",
    "concurrency": "max_active_tasks",
    "fail_stop": "fail_fast",
}
DROPPED_OF_DAGS = {
    "default_view": _OF_THE_WEB_PAGE,
    "orientation": _OF_THE_WEB_PAGE,
    "full_filepath": "has no effect: a DAG knows its file; remove it",
    "sla_miss_callback": "has no effect: give the DAG a deadline=DeadlineAlert(…) instead",
}
RENAMED_OF_OPERATORS = {
    "task_concurrency": "max_active_tis_per_dag",
    "execution_date": "logical_date",
    "use_task_execution_date": "use_task_logical_date",
    "use_task_execution_day": "use_task_logical_date",
}
DROPPED_OF_OPERATORS = {
    "provide_context": "has no effect: functions always get the values of the context that they name; remove it"
}
OLD_OF_OPERATORS = frozenset({*RENAMED_OF_OPERATORS, *DROPPED_OF_OPERATORS})
TRIGGER_RULES = {"none_failed_or_skipped": "none_failed_min_one_success", "dummy": "always"}
ATTRIBUTES_OF_DAGS = {
    "schedule_interval": "schedule",
    "concurrency": "max_active_tasks",
    "full_filepath": "fileloc",
    "filepath": "fileloc",
}
_NO_SUBDAGS = "Airflow 3 has no SubDAGs; put the tasks into a TaskGroup"
_NO_DATABASE = "user code has no access to the database; use the command line, or TriggerDagRunOperator in a task"
REFUSED_OF_DAGS = {
    **dict.fromkeys(("subdags", "sub_dag", "is_subdag", "parent_dag"), _NO_SUBDAGS),
    **dict.fromkeys(("create_dagrun", "clear", "run", "get_dagrun", "get_last_dagrun", "get_is_paused"), _NO_DATABASE),
    "cli": "use the command asynsched",
}


def warn(advice: str) -> None:
    """Warn, at the statement of the DAG file, of what it should change."""
    from asynsched.authoring.active import warn_in_parses

    warn_in_parses(Airflow2Warning(advice))


def renewed_of_dag(owner: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return a DAG's arguments with Airflow 3's names. Raises DagError if one is given by both names."""
    return _renewed(owner, given, RENAMED_OF_DAGS, DROPPED_OF_DAGS)


def renewed_of_operator(owner: str, given: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return an operator's arguments with Airflow 3's names. Raises DagError if one is given by both names.

    Args:
        known: The arguments that the operator has: an old name among them is its own, and stays.
    """
    renamed = {old: new for old, new in RENAMED_OF_OPERATORS.items() if new in known and old not in known}
    dropped = {old: why for old, why in DROPPED_OF_OPERATORS.items() if old not in known}
    return _renewed(owner, given, renamed, dropped)


def renewed_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Return `default_args` that have each argument of operators by Airflow 3's name, too."""
    for old in sorted(OLD_OF_OPERATORS.intersection(given)):
        if old in DROPPED_OF_OPERATORS:
            warn(f"{old} {DROPPED_OF_OPERATORS[old]}")
        else:
            warn(f"{old} is now {RENAMED_OF_OPERATORS[old]}")
            given = {RENAMED_OF_OPERATORS[old]: given[old], **given}
    return given


def _renewed(
    owner: str, given: dict[str, Any], renamed: Mapping[str, str], dropped: Mapping[str, str]
) -> dict[str, Any]:
    found = dict(given)
    for old in [name for name in given if name in renamed or name in dropped]:
        value = found.pop(old)
        if old in dropped:
            warn(f"{old} {dropped[old]}")
            continue
        new = renamed[old]
        if new in found:
            raise DagError(
                f"{owner}: {old} is the name that Airflow 2 had for {new}, which is given, too; remove {old}"
            )
        warn(f"{old} is now {new}")
        found[new] = value
    return found


def apply_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function unchanged: operators apply `default_args` themselves."""
    warn("apply_defaults has no effect: operators apply default_args themselves; remove it")
    return function


def DatasetOrTimeSchedule(*, timetable: Timetable, datasets: Any) -> AssetOrTimeSchedule:  # noqa: N802 - it was a class
    """Return the schedule that Airflow 3 calls AssetOrTimeSchedule."""
    from asynsched.timetables.simple import AssetOrTimeSchedule

    warn("DatasetOrTimeSchedule(datasets=…) is now airflow.timetables.assets.AssetOrTimeSchedule(assets=…)")
    return AssetOrTimeSchedule(timetable=timetable, assets=datasets)


def trigger_rule(given: Any) -> Any:
    """Return a trigger rule by Airflow 3's name."""
    if not isinstance(given, str) or given not in TRIGGER_RULES:
        return given
    new = TRIGGER_RULES[given]
    warn(f"the trigger rule {given} is now {new}")
    return new


def attribute_of_dag(dag: DAG, name: str) -> Any:
    """Return an attribute that DAGs of Airflow 2 have. Raises AttributeError, with the reason where one is known."""
    if name in _METHODS_OF_DAGS:
        warn(f"DAG.{name}() is a method of Airflow 2; ask dag.timetable")
        return partial(_METHODS_OF_DAGS[name], dag)
    if name in ATTRIBUTES_OF_DAGS:
        warn(f"DAG.{name} is now DAG.{ATTRIBUTES_OF_DAGS[name]}")
        return getattr(dag, ATTRIBUTES_OF_DAGS[name])
    reason = f": {REFUSED_OF_DAGS[name]}" if name in REFUSED_OF_DAGS else ""
    raise AttributeError(f"{type(dag).__name__!r} object has no attribute {name!r}{reason}", name=name, obj=dag)


_NEXT, _PREVIOUS = "data_interval_end", "data_interval_start"
OLD_VALUES = {
    "execution_date": "logical_date",
    "next_execution_date": _NEXT,
    "next_ds": f"{_NEXT} | ds",
    "next_ds_nodash": f"{_NEXT} | ds_nodash",
    "prev_execution_date": f"{_PREVIOUS} less the schedule's period",
    "prev_ds": f"{_PREVIOUS} less the schedule's period",
    "prev_ds_nodash": f"{_PREVIOUS} less the schedule's period",
    "prev_execution_date_success": "prev_data_interval_start_success",
    "tomorrow_ds": "macros.ds_add(ds, 1)",
    "tomorrow_ds_nodash": "macros.ds_add(ds, 1) without dashes",
    "yesterday_ds": "macros.ds_add(ds, -1)",
    "yesterday_ds_nodash": "macros.ds_add(ds, -1) without dashes",
    "triggering_dataset_events": "triggering_asset_events, whose keys are assets",
}
"""Values of the context in Airflow 2, and what Airflow 3 has instead; see `source_of_value`."""
_SAME = {
    "execution_date": "logical_date",
    "prev_execution_date_success": "prev_data_interval_start_success",
    "triggering_dataset_events": "triggering_asset_events",
}
_told: set[tuple[str, str]] = set()


def source_of_value(name: str) -> str:
    """Return the value of Airflow 3 without which an old value is not there: a run by assets has no logical date."""
    return _SAME[name] if name == "triggering_dataset_events" else "logical_date"


def tell_of_value(task: Any, name: str) -> None:
    """Say in a task's log, once, what to write instead of an old value of the context."""
    if (task.task_id, name) not in _told:
        _told.add((task.task_id, name))
        task.log.warning("%s is a value of Airflow 2; write %s", name, OLD_VALUES[name])


def value_of_context(read: Callable[[str], Any], name: str) -> Any:
    """Return an old value of a context, from the context's other values, which `read` returns.

    Source: Apache Airflow 2's `TaskInstance.get_template_context`.
    """
    if name == "triggering_dataset_events":
        return {key.uri: events for key, events in read(_SAME[name]).items() if hasattr(key, "uri")}
    if name in _SAME:
        return read(_SAME[name])
    day, _, form = name.partition("_")
    date = _DATES[day](read)
    if form == "execution_date" or date is None:
        return date
    return date.strftime("%Y%m%d" if form == "ds_nodash" else "%Y-%m-%d")


def _days_later(days: int) -> Callable[[Callable[[str], Any]], Any]:
    return lambda read: read("logical_date") + dt.timedelta(days=days)


def _next(read: Callable[[str], Any]) -> Any:
    """Return the logical date of the next scheduled run; for a run that no schedule made, its own."""
    run = read("dag_run")
    if run.run_type not in _OF_A_SCHEDULE:
        return run.logical_date
    following = _interval_after(read("dag"), run.data_interval_start, run.data_interval_end)
    return None if following is None else following.start


def _interval_after(dag: DAG, start: dt.datetime, end: dt.datetime) -> DataInterval | None:
    """Return the data interval of the scheduled run after the one with this interval."""
    from asynsched.authoring.timezone import coerce_datetime
    from asynsched.timetables import DataInterval, TimeRestriction
    from asynsched.timetables.base import asked_at

    with asked_at(end):
        info = dag.timetable.next_dagrun_info(
            last_automated_data_interval=DataInterval(start, end),
            restriction=TimeRestriction(earliest=None, latest=None, catchup=True),
        )
    return None if info is None else DataInterval(*map(coerce_datetime, info.data_interval))


def _following_schedule(dag: DAG, dttm: dt.datetime) -> Any:
    """Return the logical date of the scheduled run after this one's; None without one."""
    found = _interval_after(dag, dttm, dttm)
    if found is not None and found.start <= dttm:
        found = _interval_after(dag, *found)  # that was the run of this date, whose interval ends later
    return None if found is None else found.start


def _previous(read: Callable[[str], Any]) -> Any:
    """Return the logical date of the scheduled run before; for a run that no schedule made, its own."""
    run = read("dag_run")
    return _previous_schedule(read("dag"), run.logical_date) if run.run_type in _OF_A_SCHEDULE else run.logical_date


def _previous_schedule(dag: DAG, dttm: dt.datetime) -> Any:
    """Return the logical date of the scheduled run before this one's; None without one."""
    from asynsched.authoring.timezone import coerce_datetime

    try:
        before = dag.timetable.infer_manual_data_interval(run_after=dttm)
    except NotImplementedError:
        return None
    return coerce_datetime(before.start) if before.start < dttm else None


_METHODS_OF_DAGS = {"following_schedule": _following_schedule, "previous_schedule": _previous_schedule}


_OF_A_SCHEDULE = ("scheduled", "backfill")
_DATES = {"next": _next, "prev": _previous, "tomorrow": _days_later(1), "yesterday": _days_later(-1)}
