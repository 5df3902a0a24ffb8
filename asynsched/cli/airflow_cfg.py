"""Airflow's configuration as a source of asynsched's settings: airflow.cfg, and variables AIRFLOW__SECTION__KEY."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asynsched.airflow.configuration import read_cfg, variable_of
from asynsched.airflow.installation import CONFIG
from asynsched.errors import SettingsError
from asynsched.executors.names import OURS
from asynsched.settings import InvalidSetting, Settings

CFG = "airflow.cfg"
IN_CONFIG = f"{CONFIG}/{CFG}"
EQUIVALENTS: dict[str, tuple[str, ...]] = {
    "dags_folder": ("core.dags_folder",),
    "plugins_folder": ("core.plugins_folder",),
    "executor": ("core.executor",),
    "parallelism": ("core.parallelism",),
    "default_timezone": ("core.default_timezone",),
    "dags_are_paused_at_creation": ("core.dags_are_paused_at_creation",),
    "max_active_tasks_per_dag": ("core.max_active_tasks_per_dag", "core.dag_concurrency"),
    "max_active_runs_per_dag": ("core.max_active_runs_per_dag",),
    "max_consecutive_failed_dag_runs_per_dag": ("core.max_consecutive_failed_dag_runs_per_dag",),
    "default_pool_slots": ("core.default_pool_task_slot_count",),
    "max_map_length": ("core.max_map_length",),
    "default_owner": ("operators.default_owner",),
    "default_task_retries": ("core.default_task_retries",),
    "default_task_retry_delay": ("core.default_task_retry_delay",),
    "max_task_retry_delay": ("core.max_task_retry_delay",),
    "default_task_execution_timeout": ("core.default_task_execution_timeout",),
    "default_task_weight_rule": ("core.default_task_weight_rule",),
    "catchup_by_default": ("scheduler.catchup_by_default",),
    "create_cron_data_intervals": ("scheduler.create_cron_data_intervals",),
    "create_delta_data_intervals": ("scheduler.create_delta_data_intervals",),
    "max_dagruns_to_create_per_loop": ("scheduler.max_dagruns_to_create_per_loop",),
    "max_dagruns_per_loop_to_schedule": ("scheduler.max_dagruns_per_loop_to_schedule",),
    "parse.processes": ("dag_processor.parsing_processes", "scheduler.parsing_processes", "scheduler.max_threads"),
    "parse.import_timeout": ("core.dagbag_import_timeout",),
    "parse.timeout": ("dag_processor.dag_file_processor_timeout", "core.dag_file_processor_timeout"),
    "watch.reconcile_interval": ("dag_processor.refresh_interval", "scheduler.dag_dir_list_interval"),
    "watch.min_file_process_interval": (
        "dag_processor.min_file_process_interval",
        "scheduler.min_file_process_interval",
    ),
    "watch.sort_mode": ("dag_processor.file_parsing_sort_mode", "scheduler.file_parsing_sort_mode"),
    "watch.safe_mode": ("core.dag_discovery_safe_mode",),
    "watch.ignore_file_syntax": ("core.dag_ignore_file_syntax",),
    "monitor.metrics_prefix": ("metrics.statsd_prefix", "scheduler.statsd_prefix"),
    "xcom_backend": ("core.xcom_backend",),
    "state_store_backend": ("workers.state_store_backend",),
    "secrets.backend": ("secrets.backend",),
    "secrets.backend_kwargs": ("secrets.backend_kwargs",),
}
"""The equivalent options of Airflow of each setting; the name of Airflow 3 first."""
DEFAULTS_THERE = {"dags_are_paused_at_creation": True}
"""Airflow's defaults where they differ from asynsched's, and the difference is one of behaviour."""
_PATHS = ("dags_folder", "plugins_folder")
_EXECUTORS = {"LocalExecutor": "local", "SequentialExecutor": "sequential"}
_KINDS = {
    **OURS,
    "CeleryKubernetesExecutor": "celery,kubernetes", "LocalKubernetesExecutor": "local,kubernetes",
}  # fmt: skip


class Found(NamedTuple):
    """The value of a setting from Airflow's configuration, and its source."""

    value: Any
    source: str


_DEFAULT = "Airflow's default"


def is_of_airflow(source: str) -> bool:
    """Return whether a value comes from Airflow's configuration."""
    return source == _DEFAULT or source.startswith("environment variable AIRFLOW__") or ", [" in source


def find_cfg(named: str | None, dags_folder: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return Airflow's configuration file; None without one.

    Args:
        named: The setting `airflow_cfg`; empty: no file.
        dags_folder: The DAG folder, if asynsched's own settings name it.

    Raises:
        SettingsError: There is no such file: InvalidSetting if the setting names it, and not AIRFLOW_CONFIG.
    """
    is_setting = named is not None
    named = named if is_setting else environ.get("AIRFLOW_CONFIG")
    if named is not None:
        path = Path(named).expanduser().absolute()
        if named and not path.is_file():
            problem = f"there is no file {path}"
            raise InvalidSetting("airflow_cfg", problem) if is_setting else SettingsError(f"AIRFLOW_CONFIG: {problem}")
        return path if named else None
    if dags_folder is not None:
        places = [dags_folder.absolute().parent / place for place in (CFG, IN_CONFIG)]
        # Not `is_file`, which fails in a folder that cannot be entered: that is an error of the DAG folder.
        if (found := next((place for place in places if os.path.isfile(place)), None)) is not None:  # noqa: PTH113
            return found
    if home := environ.get("AIRFLOW_HOME"):
        places = [Path(home).expanduser().absolute() / place for place in (CFG, IN_CONFIG)]
        return next((place for place in places if place.is_file()), None)
    return None


def airflows_values(cfg: Path | None, environ: Mapping[str, str]) -> dict[str, Found]:
    """Return the values of settings that a configuration file and variables of Airflow give, by the setting's name.

    Raises SettingsError if the file cannot be read.
    """
    options = {} if cfg is None else read_cfg(str(cfg))
    found = {name: Found(value, _DEFAULT) for name, value in DEFAULTS_THERE.items()}
    for name, others in EQUIVALENTS.items():
        for other in reversed(others):
            variable = variable_of(*other.split("."))
            if variable in environ:
                given = Found(environ[variable], f"environment variable {variable}")
            elif other in options:
                given = Found(options[other], _place(cfg, other))
            else:
                continue
            if (value := _translated(name, given.value)) is not None:
                found[name] = Found(value, given.source)
    return found


def without_effect(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each option of Airflow that asynsched, with these settings, does not follow."""
    cfg = settings.airflow_cfg_path
    theirs = environ.get(variable_of("core", "executor")) or (read_cfg(cfg) if cfg else {}).get("core.executor")
    if not theirs or theirs in _EXECUTORS or settings.executor not in _EXECUTORS.values():
        return
    classes = [re.split("[.:]", one.strip())[-1] for one in theirs.split(",")]
    ours = ",".join(dict.fromkeys(_KINDS[name] for name in classes if name in _KINDS))
    hint = f"; to use asynsched's own, set executor = {ours}" if ours else ""
    yield f"the executor {theirs} runs only in Airflow; tasks run on this machine{hint}"


def _translated(name: str, value: str) -> str | None:
    """Return a value as asynsched writes it; None for a value without a meaning here."""
    value = value.partition("#")[0].strip() if value.lower().startswith(("true", "false")) else value.strip()
    if name in _PATHS:
        return os.path.expandvars(os.path.expanduser(value))  # noqa: PTH111 - may be empty
    if name == "default_timezone":
        return "UTC" if value.lower() == "utc" else value
    if name == "xcom_backend" and value.endswith(".BaseXCom"):
        return None  # Airflow's default: XComs are in the database
    if name == "executor":
        return _EXECUTORS.get(value)
    return value or None


def _place(cfg: Path | None, option: str) -> str:
    """Return the place of an option in a file: the file, the line, the section, the option."""
    assert cfg is not None
    section, _, key = option.rpartition(".")
    current = ""
    for number, line in enumerate(cfg.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if header := re.match(r"\[(.+)\]", line):
            current = header[1].strip().lower()
        elif current == section and re.match(rf"{re.escape(key)}\s*[=:]", line, re.IGNORECASE):
            return f"{cfg}, line {number}, [{section}] {key}"
    return f"{cfg}, [{section}] {key}"
