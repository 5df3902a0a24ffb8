"""Arguments that nothing takes: what took their place since Airflow 2, or what they may be meant for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RENAMED_OF_DAGS = {
    "schedule_interval": "schedule",
    "timetable": "schedule",
    "concurrency": "max_active_tasks",
    "default_view": "",
    "orientation": "",
    "fail_stop": "fail_fast",
    "full_filepath": "",
    "sla_miss_callback": "",
}
"""Arguments that DAGs of Airflow had before version 3, and what took their place."""
RENAMED_OF_OPERATORS = {
    "task_concurrency": "max_active_tis_per_dag",
    "provide_context": "",
    "execution_date": "logical_date",
    "use_task_execution_date": "use_task_logical_date",
    "use_task_execution_day": "use_task_logical_date",
}
"""The same of operators and sensors."""


def explained(names: Iterable[str], known: Iterable[str], renamed: Mapping[str, str]) -> str:
    """Return the names, each with what helps. Values are not shown: they may be secret."""
    taken = sorted(known)
    return ", ".join(f"{name!r}{_hint(name, taken, renamed)}" for name in sorted(names))


def _hint(name: str, known: list[str], renamed: Mapping[str, str]) -> str:
    now = renamed.get(name)
    if now == "":
        return " (removed in Airflow 3)"
    if now in known:
        return f" (it is called {now} since Airflow 3)"
    from difflib import get_close_matches

    near = get_close_matches(name[:100], known, n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
