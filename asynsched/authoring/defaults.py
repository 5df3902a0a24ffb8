"""Defaults of DAGs and tasks that an installation sets (`default_task_retries` and others), for user code.

Each applies where neither the DAG file nor a class of it says anything. Processes that run user code set them once.
"""

from __future__ import annotations

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_POOL = "default_pool"
"""The pool of every task that names none."""
of_tasks: dict[str, Any] = {}
"""Arguments of BaseOperator. Values that are also its own defaults are left out, as in the other two."""
of_dags: dict[str, Any] = {}
"""Arguments of DAG."""
_LIMITS = {"max_active_tasks": 16, "max_active_runs": 16, "max_consecutive_failed_dag_runs": 0}
limits_of_dags = dict(_LIMITS)
"""Limits of a DAG that sets none. The scheduler applies them: user code only reads them."""
of_schedules: dict[str, bool] = {}
"""Arguments of `timetable_from_schedule`."""
runs_on_this_machine = False
"""Whether the only executor runs tasks on the scheduler's machine, and so does not read `executor_config`."""
of_operators: dict[str, str] = {}
"""The texts of `default_deferrable` and `default_timeout`, where an option sets them."""
dags_folder = ""
"""Where the DAG files are; empty where no setting says that."""
page_url = ""
"""Where browsers reach the page, without a slash at its end; empty where no setting says that."""


DEFAULT_DEFERRABLE = "operators.default_deferrable"
DEFAULT_TIMEOUT = "sensors.default_timeout"


def options_of_operators(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of Airflow's options that are not asynsched's settings: only the built-in operators read them."""
    return {option: options[option] for option in (DEFAULT_DEFERRABLE, DEFAULT_TIMEOUT) if options.get(option)}


def set_defaults(options: Mapping[str, str]) -> None:
    """Set the defaults by the options of Airflow's configuration that `Settings.airflow_options` makes."""
    global dags_folder, page_url, runs_on_this_machine
    runs_on_this_machine = options.get("core.executor") in ("LocalExecutor", "SequentialExecutor")
    dags_folder = options.get("core.dags_folder", "")
    page_url = options.get("api.base_url", "").rstrip("/")
    numbers = {
        "retries": ("core.default_task_retries", 0),
        "retry_delay": ("core.default_task_retry_delay", 300),
        "max_retry_delay": ("core.max_task_retry_delay", None),
        "execution_timeout": ("core.default_task_execution_timeout", None),
    }
    texts = {
        "owner": ("operators.default_owner", "airflow"),
        "weight_rule": ("core.default_task_weight_rule", "downstream"),
    }
    found = {name: float(options[option]) for name, (option, _) in numbers.items() if options.get(option)}
    of_tasks.clear()
    of_tasks.update((name, value) for name, value in found.items() if value != numbers[name][1])
    of_tasks.update(
        (name, options[option]) for name, (option, ours) in texts.items() if options.get(option, ours) != ours
    )
    limits_of_dags.update((name, int(options.get(f"core.{name}_per_dag", n))) for name, n in _LIMITS.items())
    of_operators.clear()
    of_operators.update(options_of_operators(options))
    of_dags.clear()
    of_schedules.clear()
    if options.get("scheduler.catchup_by_default") == "True":
        of_dags["catchup"] = True
    for kind in ("cron", "delta"):
        if options.get(f"scheduler.create_{kind}_data_intervals") == "True":
            of_schedules[f"{kind}_intervals"] = True


def is_deferrable(given: bool | None) -> bool:
    """Return whether an operator that can wait in a trigger does so; None stands for the installation's default.

    Raises DagError if that is neither true nor false.
    """
    if given is not None:
        return given
    text = of_operators.get(DEFAULT_DEFERRABLE, "false")
    word = text.partition("#")[0].strip().lower()
    if word not in ("true", "t", "1", "false", "f", "0"):
        raise DagError(f"[operators] default_deferrable must be true or false, not {text!r}")
    return word in ("true", "t", "1")


def sensor_timeout() -> float:
    """Return the default of a sensor's `timeout`, in seconds. Raises DagError if it is not a number."""
    text = of_operators.get(DEFAULT_TIMEOUT, "604800")
    try:
        return float(text)
    except ValueError:
        raise DagError(f"[sensors] default_timeout must be a number of seconds, not {text!r}") from None
