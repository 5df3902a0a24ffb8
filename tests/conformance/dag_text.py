"""Writes DAG files, in the style of their authors, from the observed timetable cases."""

import json
from datetime import datetime
from pathlib import Path

CASES = json.loads((Path(__file__).parent / "data" / "timetables.json").read_text())["cases"]
HEADER = """\
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from dateutil.relativedelta import relativedelta

from asynsched import (
    DAG, ContinuousTimetable, CronDataIntervalTimetable, CronTriggerTimetable, DeltaDataIntervalTimetable,
    DeltaTriggerTimetable, EmptyOperator, EventsTimetable, MultipleCronTriggerTimetable, NullTimetable, OnceTimetable,
)
"""


def usable_cases() -> list[dict]:
    """Return the cases that a DAG can express: Airflow requires a start date with catchup."""
    return [
        case for case in CASES if "error" not in case and not (case.get("catchup") and case.get("start_date") is None)
    ]


def dag_id_of(case) -> str:
    return f"case_{case['id'].split(':')[0]}"


def dag_text(case) -> str:
    """Return the lines of a DAG file that define the case's DAG."""
    options = [repr(dag_id_of(case)), f"schedule={schedule(case)}"]
    options += [f"{name}={date(case, name)}" for name in ("start_date", "end_date") if case.get(name)]
    if "catchup" in case:
        options.append(f"catchup={case['catchup']}")
    return f"with DAG({', '.join(options)}):\n    EmptyOperator(task_id='only')\n"


def schedule(case) -> str:
    kind, zone = case["kind"], case.get("timezone")
    interval = f", interval={delta(case['interval'])}" if "interval" in case else ""
    trigger_options = f"timezone={zone!r}{interval}"
    if "run_immediately" in case:
        value = case["run_immediately"]
        trigger_options += f", run_immediately={delta(value) if isinstance(value, dict) else value}"
    match kind:
        case "cron_trigger":
            return f"CronTriggerTimetable({case['expression']!r}, {trigger_options})"
        case "multiple_cron_trigger":
            expressions = ", ".join(map(repr, case["expressions"]))
            return f"MultipleCronTriggerTimetable({expressions}, {trigger_options})"
        case "cron_data_interval":
            return f"CronDataIntervalTimetable({case['expression']!r}, timezone={zone!r})"
        case "delta_trigger":
            return f"DeltaTriggerTimetable({delta(case['delta'])}{interval})"
        case "delta_data_interval":
            return f"DeltaDataIntervalTimetable({delta(case['delta'])})"
        case "events":
            dates = ", ".join(f"datetime.fromisoformat({event!r})" for event in case["event_dates"])
            return f"EventsTimetable(event_dates=[{dates}])"
        case "once" | "continuous" | "null":
            return f"{kind.capitalize()}Timetable()"
    return delta(case["schedule"]) if isinstance(case["schedule"], dict) else repr(case["schedule"])


def delta(form) -> str:
    parts = ", ".join(f"{name}={value}" for name, value in form.items())
    return f"timedelta({parts})" if set(form) == {"seconds"} else f"relativedelta({parts})"


def date(case, name) -> str:
    value = datetime.fromisoformat(case[name])
    if value.tzinfo is not None:
        return f"datetime.fromisoformat({case[name]!r})"
    return f"datetime.fromisoformat({case[name]!r}).replace(tzinfo=ZoneInfo({case['timezone']!r}))"
