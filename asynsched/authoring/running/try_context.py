"""The context of a try, made of what its process is told.

Imported where tries run, by all that a context is made of: an import within a function costs time in each of them.
"""

from __future__ import annotations

from functools import partial

from asynsched.authoring import macros
from asynsched.authoring.mapping.map_position import instance_count
from asynsched.authoring.params import resolve_params
from asynsched.authoring.running.accessors import ConnectionAccessor, VariableAccessor, VariableAccessors
from asynsched.authoring.running.context import Context, Deferred, Unmade
from asynsched.authoring.running.dag_run import DagRun
from asynsched.authoring.running.task_instance import TaskInstance
from asynsched.authoring.timezone import aware

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from typing import Any

    from asynsched.authoring.assets.events import InletEvents, OutletEvents, TriggeringAssetEvents
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.dag_run import RunFacts
    from asynsched.authoring.running.task_instance import TaskInstanceFacts


def build_context(task: BaseOperator, run: RunFacts, ti: TaskInstanceFacts) -> Context:
    """Return the context of a try.

    Raises:
        ParamValidationError: The run's conf does not fit the schema of a param.
    """
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
        start_date=Unmade(partial(getattr, instance, "start_date")),
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
    if run.logical_date is None:
        context.update(prev_start_date_success=None, prev_end_date_success=None)
    else:
        context.update(_dates(dag_run, aware(run.logical_date), f"{dag.dag_id}__{task.task_id}"))
        context.update(_previous_success(instance))
    context["expanded_ti_count"] = Deferred(partial(instance_count, context))
    instance.context = context
    return context


def _inlet_events(task: BaseOperator) -> InletEvents:
    from asynsched.authoring.assets.events import InletEvents

    return InletEvents(task.inlets)


def _outlet_events() -> OutletEvents:
    from asynsched.authoring.assets.events import OutletEvents

    return OutletEvents()


def _triggering_asset_events(dag_run: DagRun) -> TriggeringAssetEvents:
    from asynsched.authoring.assets.events import TriggeringAssetEvents

    return TriggeringAssetEvents(is_triggered=dag_run.run_type == "asset_triggered")


def _dates(dag_run: DagRun, logical_date: dt.datetime, key: str) -> dict[str, Any]:
    """Return the variables that depend on the run's dates; without a logical date there are none, as in Airflow 3."""
    # Cut out of one text: `strftime` costs a new process several times as much.
    ts = logical_date.isoformat()
    ds = ts[: len("2024-01-31")]
    ds_nodash = ds.replace("-", "")
    with_tz = ts.replace("-", "").replace(":", "")
    instants = ("logical_date", "data_interval_start", "data_interval_end")
    return {
        "ds": ds,
        "ds_nodash": ds_nodash,
        "ts": ts,
        "ts_nodash": with_tz[: len("20240131T000000")],
        "ts_nodash_with_tz": with_tz,
        "task_instance_key_str": f"{key}__{ds_nodash}",
        **{name: Unmade(partial(getattr, dag_run, name)) for name in instants},
    }


def _previous_success(ti: TaskInstance) -> dict[str, Any]:
    """Return the variables that tell of the newest successful run of an earlier logical date; None where is none."""
    fields = {
        "prev_data_interval_start_success": "data_interval_start",
        "prev_data_interval_end_success": "data_interval_end",
        "prev_start_date_success": "start_date",
        "prev_end_date_success": "end_date",
    }
    asked: list[DagRun | None] = []

    def find(attribute: str) -> dt.datetime | None:
        if not asked:
            asked.append(ti.get_previous_dagrun(state="success"))
        return getattr(asked[0], attribute, None)

    return {name: Deferred(partial(find, field)) for name, field in fields.items()}
