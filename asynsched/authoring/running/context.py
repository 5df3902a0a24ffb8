"""The context of a running task: what templates and functions are given, under Airflow's names."""

from __future__ import annotations

from functools import partial

from asynsched.authoring.mapping.map_position import instance_count
from asynsched.errors import AsynschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from _collections_abc import dict_items, dict_values
    from collections.abc import Callable, Iterator
    from typing import Any

    from asynsched.authoring.assets.events import InletEvents, OutletEvents, TriggeringAssetEvents
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.dag_run import DagRun, RunFacts
    from asynsched.authoring.running.task_instance import TaskInstance, TaskInstanceFacts

CONTEXT_KEYS = frozenset({
    "conf", "conn", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "exception",
    "expanded_ti_count", "inlet_events", "inlets", "logical_date", "macros", "map_index_template", "outlet_events",
    "outlets", "params", "prev_data_interval_end_success", "prev_data_interval_start_success", "prev_end_date_success",
    "prev_start_date_success", "reason", "run_id", "start_date", "task", "task_instance", "task_instance_key_str",
    "task_reschedule_count", "templates_dict", "test_mode", "ti", "triggering_asset_events", "try_number", "ts",
    "ts_nodash", "ts_nodash_with_tz", "var",
})  # fmt: skip
"""Names that a task's function may have as parameters without being given them."""


class Deferred:
    """A value of a context that the scheduler is asked for only when somebody wants it."""

    __slots__ = ("find",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find


class Context(dict[str, "Any"]):
    """A dict of what a running task may know. Dates that depend on a logical date are missing when the run has none.

    Deferred values are found when they are first looked at, and kept; nobody who reads the dict sees them.
    """

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Deferred):
            value = self[key] = value.find()
        return value

    def __iter__(self) -> Iterator[str]:
        # That this is written in Python makes `dict(context)` and `**context` read each value by `__getitem__`.
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def items(self) -> dict_items[str, Any]:
        return dict(self).items()

    def values(self) -> dict_values[str, Any]:
        return dict(self).values()

    def with_deferred(self) -> dict[str, Any]:
        """Return a copy in which deferred values still are deferred."""
        return dict(super().items())


_running: list[Context] = []


def get_current_context() -> Context:
    """Return the context of the task that is running. Raises AsynschedError when none is."""
    if not _running:
        raise AsynschedError("get_current_context() works inside of a running task only")
    return _running[-1]


class CurrentContext:
    """`with CurrentContext(context):` — what `get_current_context` returns inside, and `AIRFLOW_CTX_*` tell."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._replaced: dict[str, str | None] = {}

    def __enter__(self) -> Context:
        import os

        variables = context_variables(self._context)
        self._replaced = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        _running.append(self._context)
        return self._context

    def __exit__(self, *_: object) -> None:
        import os

        _running.pop()
        for name, value in self._replaced.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def context_variables(context: Context) -> dict[str, str]:
    """Return what a task's process and its commands are told of it, as environment variables under Airflow's names."""
    ti, email = context["ti"], context["task"].email
    values = {
        "AIRFLOW_CTX_DAG_ID": ti.dag_id,
        "AIRFLOW_CTX_TASK_ID": ti.task_id,
        "AIRFLOW_CTX_DAG_RUN_ID": ti.run_id,
        "AIRFLOW_CTX_TRY_NUMBER": ti.try_number,
        "AIRFLOW_CTX_DAG_OWNER": context["task"].owner,
        "AIRFLOW_CTX_DAG_EMAIL": email if email is None or isinstance(email, str) else ",".join(email),
        "AIRFLOW_CTX_LOGICAL_DATE": context.get("ts"),
    }
    # An empty or missing one is left out; the environment takes no NUL.
    return {name: str(value).replace("\0", "") for name, value in values.items() if value}


def build_context(task: BaseOperator, run: RunFacts, ti: TaskInstanceFacts) -> Context:
    """Return the context of a try.

    Raises:
        ParamValidationError: The run's conf does not fit the schema of a param.
    """
    from asynsched.authoring import macros
    from asynsched.authoring.params import resolve_params
    from asynsched.authoring.running.accessors import ConnectionAccessor, VariableAccessor, VariableAccessors
    from asynsched.authoring.running.dag_run import DagRun
    from asynsched.authoring.running.task_instance import TaskInstance

    dag_run = DagRun(run)
    instance = TaskInstance(task, dag_run, ti)
    dag = task.dag
    context = Context(
        conf=dag_run.conf,
        conn=ConnectionAccessor(),
        dag=dag,
        dag_run=dag_run,
        inlet_events=Deferred(partial(_inlet_events, task)),
        inlets=task.inlets,
        macros=macros,
        map_index_template=task.map_index_template,
        outlet_events=Deferred(_outlet_events),
        outlets=task.outlets,
        params=resolve_params(dag.params, task.params, dag_run.conf, owner=f"run {dag_run.run_id!r}"),
        run_id=dag_run.run_id,
        start_date=instance.start_date,
        task=task,
        task_instance=instance,
        task_instance_key_str=f"{dag.dag_id}__{task.task_id}__{dag_run.run_id}",
        task_reschedule_count=0,
        test_mode=ti.test_mode,
        ti=instance,
        triggering_asset_events=Deferred(partial(_triggering_asset_events, dag_run)),
        try_number=instance.try_number,
        var=VariableAccessors(json=VariableAccessor(parse_json=True), value=VariableAccessor(parse_json=False)),
    )
    context.update(_dates(dag_run, f"{dag.dag_id}__{task.task_id}"))
    context.update(_previous_success(instance))
    context["expanded_ti_count"] = Deferred(partial(instance_count, context))
    instance.context = context
    return context


def outlet_events(context: Context) -> list[dict[str, Any]]:
    """Return what the task has said of its outlets. Raises DagError when that is no JSON."""
    told = context.with_deferred().get("outlet_events")
    return [] if told is None or isinstance(told, Deferred) else told.told()


def _inlet_events(task: BaseOperator) -> InletEvents:
    from asynsched.authoring.assets.events import InletEvents

    return InletEvents(task.inlets)


def _outlet_events() -> OutletEvents:
    from asynsched.authoring.assets.events import OutletEvents

    return OutletEvents()


def _triggering_asset_events(dag_run: DagRun) -> TriggeringAssetEvents:
    from asynsched.authoring.assets.events import TriggeringAssetEvents

    return TriggeringAssetEvents(is_triggered=dag_run.run_type == "asset_triggered")


def _dates(dag_run: DagRun, key: str) -> dict[str, Any]:
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
        "task_instance_key_str": f"{key}__{ds_nodash}",
    }


def _previous_success(ti: TaskInstance) -> dict[str, Any]:
    """Return the variables that tell of the newest successful run of an earlier logical date; None where is none."""
    fields = {
        "prev_data_interval_start_success": "data_interval_start",
        "prev_data_interval_end_success": "data_interval_end",
        "prev_start_date_success": "start_date",
        "prev_end_date_success": "end_date",
    }
    if ti.logical_date is None:
        return {"prev_start_date_success": None, "prev_end_date_success": None}
    asked: list[DagRun | None] = []

    def find(attribute: str) -> dt.datetime | None:
        if not asked:
            asked.append(ti.get_previous_dagrun(state="success"))
        return getattr(asked[0], attribute, None)

    return {name: Deferred(partial(find, field)) for name, field in fields.items()}
