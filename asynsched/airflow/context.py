"""What a task's context tells other systems about the task: names and values."""

from __future__ import annotations

from asynsched.airflow import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_FORMAT_PREFIX = "airflow.ctx."
ENV_VAR_FORMAT_PREFIX = "AIRFLOW_CTX_"
_FIELDS = {
    "DAG_ID": ("task_instance", "dag_id"),
    "TASK_ID": ("task_instance", "task_id"),
    "LOGICAL_DATE": ("dag_run", "logical_date"),
    "TRY_NUMBER": ("task_instance", "try_number"),
    "DAG_RUN_ID": ("dag_run", "run_id"),
    "DAG_OWNER": ("task", "owner"),
    "DAG_EMAIL": ("task", "email"),
    "TEAM_NAME": ("dag_run", "team_name"),
}
AIRFLOW_VAR_NAME_FORMAT_MAPPING = {
    f"AIRFLOW_CONTEXT_{name}": {
        "default": f"{DEFAULT_FORMAT_PREFIX}{name.lower()}",
        "env_var_format": f"{ENV_VAR_FORMAT_PREFIX}{name}",
    }
    for name in _FIELDS
}


def context_to_airflow_vars(context: Mapping[str, Any], in_env_var_format: bool = False) -> dict[str, str]:
    """Return the ids, dates and owner of a task and its run, as texts by name.

    Args:
        context: The context of a task.
        in_env_var_format: Whether names have the form `AIRFLOW_CTX_DAG_ID`, not `airflow.ctx.dag_id`.

    Raises:
        TypeError: `get_airflow_context_vars` of `airflow_local_settings` gives something other than texts.
    """
    found = _own_variables(context, ENV_VAR_FORMAT_PREFIX if in_env_var_format else DEFAULT_FORMAT_PREFIX)
    form = "env_var_format" if in_env_var_format else "default"
    for name, (subject, attribute) in _FIELDS.items():
        value = getattr(context.get(subject), attribute, None)
        if value:
            found[AIRFLOW_VAR_NAME_FORMAT_MAPPING[f"AIRFLOW_CONTEXT_{name}"][form]] = _text(value)
    return found


def _own_variables(context: Mapping[str, Any], prefix: str) -> dict[str, str]:
    found = {}
    for name, value in settings.get_airflow_context_vars(context).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"get_airflow_context_vars must return a dict of strings, not {name!r}: {value!r}")
        shown = name.upper() if prefix == ENV_VAR_FORMAT_PREFIX else name
        found[name if name.startswith(prefix) else prefix + shown] = value
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def context_merge(context: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Add values to a context, as `dict.update` does."""
    context.update(*args, **kwargs)
