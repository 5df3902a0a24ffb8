"""Airflow's global values, and the hooks of the module `airflow_local_settings`, which an administrator may provide."""

from __future__ import annotations

import os

from asynsched.airflow import installation
from asynsched.airflow.configuration import AIRFLOW_HOME, conf
from asynsched.authoring.timezone import default_timezone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DAGS_FOLDER = conf.get("core", "dags_folder")
PLUGINS_FOLDER = conf.get("core", "plugins_folder", fallback=os.path.join(AIRFLOW_HOME, "plugins"))  # noqa: PTH118
TIMEZONE = default_timezone()
SIMPLE_LOG_FORMAT = conf.get("logging", "simple_log_format")


def pod_mutation_hook(pod: Any) -> None:
    """Pass a pod to the hook of `airflow_local_settings`, which may change it, before Kubernetes creates it."""
    if hook := _hook("pod_mutation_hook"):
        hook(pod)


def get_airflow_context_vars(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the names and values that a policy adds to those of a task's context."""
    loaded = installation.loaded
    return {} if loaded is None else loaded.policies.context_variables(context)


def _hook(name: str) -> Any:
    """Return a function of `airflow_local_settings`; None if there is none."""
    from importlib import import_module

    try:
        module = import_module(installation.LOCAL_SETTINGS)
    except ModuleNotFoundError as exc:
        if exc.name != installation.LOCAL_SETTINGS:
            raise
        return None
    return getattr(module, name, None)
