"""Airflow's REST API v2, as the clients of Airflow 3.3 use it: a module for each group of paths."""

from asynsched.web.airflow_api import (  # noqa: F401 - each adds its endpoints
    assets,
    backfills,
    bulk_runs,
    config,
    connections,
    dag_runs,
    dag_versions,
    dags,
    event_logs,
    hitl,
    import_errors,
    jobs,
    logs,
    plugins,
    pools,
    run_changes,
    task_changes,
    task_instances,
    tasks,
    variables,
    xcoms,
)
from asynsched.web.airflow_api.api import AIRFLOW_API

__all__ = ["AIRFLOW_API"]
