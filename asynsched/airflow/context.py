"""What a task's context tells other systems about the task: names and values."""

from __future__ import annotations

from asynsched.airflow import settings
from asynsched.authoring.running.context import variables_of_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.running.context import Context

DEFAULT_FORMAT_PREFIX = "airflow.ctx."
ENV_VAR_FORMAT_PREFIX = "AIRFLOW_CTX_"
_NAMES = ("DAG_ID", "TASK_ID", "LOGICAL_DATE", "TRY_NUMBER", "DAG_RUN_ID", "DAG_OWNER", "DAG_EMAIL")
AIRFLOW_VAR_NAME_FORMAT_MAPPING = {
    f"AIRFLOW_CONTEXT_{name}": {
        "default": f"{DEFAULT_FORMAT_PREFIX}{name.lower()}",
        "env_var_format": f"{ENV_VAR_FORMAT_PREFIX}{name}",
    }
    for name in _NAMES
}


def context_to_airflow_vars(context: Context, in_env_var_format: bool = False) -> dict[str, str]:
    """Return the ids, dates and owner of a task and its run, as texts by name.

    Args:
        context: The context of a task.
        in_env_var_format: Whether names have the form `AIRFLOW_CTX_DAG_ID`, not `airflow.ctx.dag_id`.

    Raises:
        TypeError: The policy `get_airflow_context_vars` returns something other than texts.
    """
    found = own_variables(context, ENV_VAR_FORMAT_PREFIX if in_env_var_format else DEFAULT_FORMAT_PREFIX)
    for name, value in variables_of_task(context).items() if "ti" in context else ():
        short = name.removeprefix(ENV_VAR_FORMAT_PREFIX)
        found[name if in_env_var_format else f"{DEFAULT_FORMAT_PREFIX}{short.lower()}"] = value
    return found


def own_variables(context: Context, prefix: str = ENV_VAR_FORMAT_PREFIX) -> dict[str, str]:
    """Return the variables that the policy `get_airflow_context_vars` adds.

    Raises TypeError if it returns something other than texts.
    """
    found = {}
    for name, value in settings.get_airflow_context_vars(context).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"get_airflow_context_vars must return a dict of strings, not {name!r}: {value!r}")
        shown = name.upper() if prefix == ENV_VAR_FORMAT_PREFIX else name
        found[name if name.startswith(prefix) else prefix + shown] = value
    return found


def context_merge(context: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Add values to a context, as `dict.update` does."""
    context.update(*args, **kwargs)
