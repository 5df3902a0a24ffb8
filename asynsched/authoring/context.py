"""The context of a running task: what templates and functions are given, under Airflow's names."""

from __future__ import annotations

from asynsched.errors import AsynschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.task_instance import DagRun, RunFacts, TaskInstanceFacts

CONTEXT_KEYS = frozenset({
    "conf", "conn", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "exception",
    "expanded_ti_count", "inlet_events", "inlets", "logical_date", "macros", "map_index_template", "outlet_events",
    "outlets", "params", "prev_data_interval_end_success", "prev_data_interval_start_success", "prev_end_date_success",
    "prev_start_date_success", "reason", "run_id", "start_date", "task", "task_instance", "task_instance_key_str",
    "task_reschedule_count", "templates_dict", "test_mode", "ti", "triggering_asset_events", "try_number", "ts",
    "ts_nodash", "ts_nodash_with_tz", "var",
})  # fmt: skip
"""Names that a task's function may have as parameters without being given them."""


class Context(dict[str, "Any"]):
    """A dict of what a running task may know. Dates that depend on a logical date are missing when the run has none."""


_running: list[Context] = []


def get_current_context() -> Context:
    """Return the context of the task that is running. Raises AsynschedError when none is."""
    if not _running:
        raise AsynschedError("get_current_context() works inside of a running task only")
    return _running[-1]


class CurrentContext:
    """`with CurrentContext(context):` — what `get_current_context` returns inside."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Context:
        _running.append(self._context)
        return self._context

    def __exit__(self, *_: object) -> None:
        _running.pop()


def build_context(task: BaseOperator, run: RunFacts, ti: TaskInstanceFacts) -> Context:
    """Return the context of a try.

    Raises:
        ParamValidationError: The run's conf does not fit the schema of a param.
    """
    from asynsched.authoring import macros
    from asynsched.authoring.accessors import ConnectionAccessor, VariableAccessor, VariableAccessors
    from asynsched.authoring.params import resolve_params
    from asynsched.authoring.task_instance import DagRun, TaskInstance

    dag_run = DagRun(run)
    instance = TaskInstance(task, dag_run, ti)
    dag = task.dag
    context = Context(
        conf=dag_run.conf,
        conn=ConnectionAccessor(),
        dag=dag,
        dag_run=dag_run,
        expanded_ti_count=None,
        inlets=task.inlets,
        macros=macros,
        map_index_template=task.map_index_template,
        outlets=task.outlets,
        params=resolve_params(dag.params, task.params, dag_run.conf, owner=f"run {dag_run.run_id!r}"),
        prev_end_date_success=run.prev_end_date_success,
        prev_start_date_success=run.prev_start_date_success,
        run_id=dag_run.run_id,
        start_date=instance.start_date,
        task=task,
        task_instance=instance,
        task_instance_key_str=f"{dag.dag_id}__{task.task_id}__{dag_run.run_id}",
        task_reschedule_count=0,
        test_mode=ti.test_mode,
        ti=instance,
        triggering_asset_events={},
        try_number=instance.try_number,
        var=VariableAccessors(json=VariableAccessor(parse_json=True), value=VariableAccessor(parse_json=False)),
    )
    context.update(_dates(dag_run, run, f"{dag.dag_id}__{task.task_id}"))
    instance.context = context
    return context


def _dates(dag_run: DagRun, run: RunFacts, key: str) -> dict[str, Any]:
    """Return the variables that depend on the run's dates; without a logical date there are none, as in Airflow 3."""
    logical_date: dt.datetime | None = dag_run.logical_date
    if logical_date is None:
        return {}
    ts = logical_date.isoformat()
    ds_nodash = logical_date.strftime("%Y%m%d")
    return {
        "logical_date": logical_date,
        "ds": logical_date.strftime("%Y-%m-%d"),
        "ds_nodash": ds_nodash,
        "ts": ts,
        "ts_nodash": logical_date.strftime("%Y%m%dT%H%M%S"),
        "ts_nodash_with_tz": ts.replace("-", "").replace(":", ""),
        "data_interval_start": dag_run.data_interval_start,
        "data_interval_end": dag_run.data_interval_end,
        "prev_data_interval_start_success": run.prev_data_interval_start_success,
        "prev_data_interval_end_success": run.prev_data_interval_end_success,
        "task_instance_key_str": f"{key}__{ds_nodash}",
    }
