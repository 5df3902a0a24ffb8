"""Writing of DAGs in the serialized form."""

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from asynsched.airflow import installation
from asynsched.airflow.alerts import may_mail
from asynsched.authoring import defaults
from asynsched.authoring.assets import Asset, AssetWatcher, BaseAsset
from asynsched.authoring.awaited_try import MOST_TRIES, AwaitedTry, own_config
from asynsched.authoring.dag import DAG
from asynsched.authoring.json_values import check_json, with_text_keys
from asynsched.authoring.mapped_results import ConcatenatedArg, TransformedArg, ZippedArg
from asynsched.authoring.mapping import ExpandInput, ExpandKwargs, ExpandProduct, MappedOperator
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.arguments import task_owner
from asynsched.authoring.operators.base import BaseOperator, EmptyOperator
from asynsched.authoring.params import NOTSET, ParamsDict
from asynsched.authoring.priority_weight import PriorityWeightStrategy, weight_rule_of, weights
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.task_group import TaskGroup
from asynsched.authoring.transport import to_transport
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import XComArg
from asynsched.errors import DagError, SerializationError, TimetableError
from asynsched.serialization import schema
from asynsched.serialization.access_control import permissions_of
from asynsched.timetables import CustomTimetable, KnownTimetable, NullTimetable, Timetable, decode
from asynsched.timetables.asset_condition import AssetCondition, read_condition
from asynsched.timetables.partitions import PartitionedAssetTimetable, read_partitioning
from asynsched.timetables.simple import asset_part, is_authors_own, time_part
from asynsched.timetables.zones import zone_name

if TYPE_CHECKING:
    from asynsched.airflow.policies import Policies
    from asynsched.authoring.deadline import DeadlineAlert


def _group_map_length(group: TaskGroup) -> schema.MapLength | None:
    """Return the number of instances of a mapped task group, whose tasks all wait for the values to map over."""
    if group.expand_input is None:
        return None
    for task in group:
        if task.trigger_rule == TriggerRule.ALWAYS:
            raise DagError(
                f"task {task.task_id!r} is in the mapped task group {group.group_id!r}, where the trigger_rule always"
                " is not allowed"
            )
    return _of_input(group.expand_input)


def _of_input(expand_input: ExpandInput) -> schema.MapLength:
    if isinstance(expand_input, ExpandKwargs):
        return _of_value(expand_input.kwargs)
    assert isinstance(expand_input, ExpandProduct)
    lengths = tuple(_of_value(value) for value in expand_input.arguments.values())
    return lengths[0] if len(lengths) == 1 else schema.MapProduct(lengths)


def _of_value(value: Any) -> schema.MapLength:
    if isinstance(value, XComArg):
        return schema.MapResult(value.operator.task_id)
    if isinstance(value, TransformedArg):
        return _of_value(value.sources[0])
    if isinstance(value, ZippedArg):
        return schema.MapZip(tuple(map(_of_value, value.sources)), value.is_filled)
    if isinstance(value, ConcatenatedArg):
        return schema.MapConcat(tuple(map(_of_value, value.sources)))
    try:
        return schema.MapLiteral(len(value))
    except TypeError:
        raise SerializationError(f"{value!r:.100} cannot be mapped over") from None


def _stored_timetable(dag: DAG) -> KnownTimetable:
    """Return the part of a DAG's schedule that depends on time, in a form that can be written and read."""
    timetable = time_part(dag.timetable)
    name = type(timetable).__name__
    try:
        serialized = _described(timetable) if is_authors_own(timetable) else timetable.serialize()
        check_json(serialized, f"the result of {name}.serialize()")
        return decode(serialized)
    except (DagError, NotImplementedError, AttributeError, TypeError) as exc:
        raise SerializationError(f"DAG {dag.dag_id!r}: its timetable {name} cannot be stored: {exc}") from exc


def _allowed_run_types(dag: DAG) -> tuple[str, ...]:
    """Return the types of runs that a DAG allows, sorted; empty: all. That of its schedule must be among them."""
    own = "scheduled" if dag.timetable.can_be_scheduled else "manual"
    if asset_part(dag.timetable) is not None:
        own = "asset_triggered"  # also beside a schedule by time, as in Airflow
    if dag.allowed_run_types and own not in dag.allowed_run_types:
        raise DagError(f"DAG {dag.dag_id!r}: allowed_run_types must include {own}, with the schedule that it has")
    return tuple(sorted(dag.allowed_run_types))


def _described(timetable: Timetable) -> dict[str, object]:
    """Return the description of a user's timetable. This runs user code."""
    name = type(timetable).__name__
    try:
        return CustomTimetable(
            name,
            fields=timetable.serialize(),
            summary=str(timetable.summary),
            description=str(timetable.description),
            periodic=bool(timetable.periodic),
            can_be_scheduled=bool(timetable.can_be_scheduled),
            active_runs_limit=timetable.active_runs_limit,
        ).serialize()
    except Exception as exc:
        raise TimetableError(f"{name} raised {type(exc).__name__}: {exc}") from exc


_TASK_EVENTS: tuple[schema.CallbackEvent, ...] = ("on_execute", "on_success", "on_failure", "on_retry", "on_skipped")
_DAG_EVENTS: tuple[schema.CallbackEvent, ...] = ("on_success", "on_failure")
_AS_IN_DAG = (
    "dag_id", "catchup", "is_paused_upon_creation", "fail_fast", "render_template_as_native_obj",
)  # fmt: skip
"""Fields that are the attributes of the DAG."""
_AS_IN_TASK = (
    "task_id", "task_type", "owner", "pool", "pool_slots", "queue", "executor", "depends_on_past",
    "wait_for_downstream", "wait_for_past_depends_before_skipping", "ignore_first_depends_on_past",
    "max_active_tis_per_dag", "max_active_tis_per_dagrun", "is_branch",
    "is_short_circuit", "is_setup", "is_teardown", "on_failure_fail_dagrun", "do_xcom_push",
    "returns_dag_result",
)  # fmt: skip
"""Fields that are the attributes of the task."""
_PARAM_ADVICE = "use strings, numbers, lists and dicts, such as the ISO 8601 string of a date"


def serialize_dag(dag: DAG) -> schema.SerializedDag:
    """Return the serialized form of a DAG, with its tasks in topological order.

    Raises:
        DagError: The DAG is invalid; a DagCycleError names the tasks of a cycle.
        SerializationError: A value cannot be written; the message names the DAG, the task and the field.
    """
    try:
        return _checked(_serialized(dag))
    except RecursionError as exc:
        why = "it has a value that is nested too deeply or contains itself"
        raise SerializationError(f"DAG {dag.dag_id!r} cannot be written as JSON: {why}") from exc


def _serialized(dag: DAG) -> schema.SerializedDag:
    dag.validate()
    timetable, assets = _stored_timetable(dag), asset_part(dag.timetable)
    own = installation.loaded
    return schema.SerializedDag(
        timetable=timetable.serialize(),
        asset_condition=None if assets is None else _condition(f"DAG {dag.dag_id!r}", assets),
        partitions=_partitions(dag, dag.timetable) if isinstance(dag.timetable, PartitionedAssetTimetable) else None,
        watchers=_watchers(dag),
        schedule_summary="" if type(dag.timetable) is NullTimetable else dag.timetable.summary,
        timezone=zone_name(dag.timezone),
        description=_text(dag, "description", dag.description),
        display_name=_text(dag, "dag_display_name", dag.dag_display_name),
        doc_md=_text(dag, "doc_md", dag.doc_md),
        tags=tuple(sorted(dag.tags)),
        start_date=dag.own_start_date,
        end_date=dag.own_end_date,
        max_active_runs=dag.own_max_active_runs,
        max_active_tasks=dag.own_max_active_tasks,
        max_consecutive_failed_dag_runs=dag.own_max_consecutive_failed_dag_runs,
        allowed_run_types=_allowed_run_types(dag),
        access_control=permissions_of(dag.dag_id, dag.access_control),
        owners=tuple(sorted({task.owner for task in dag.tasks})),
        dagrun_timeout=_seconds(dag.dagrun_timeout),
        params=_params(f"DAG {dag.dag_id!r}", dag.params),
        callbacks=(*_callbacks(dag, _DAG_EVENTS), *(() if own is None else own.events)),
        installation="" if own is None else own.digest,
        deadlines=tuple(_deadline(dag, alert) for alert in dag.deadline),
        task_groups=tuple(_task_group(group) for group in dag.task_group_dict.values()),
        tasks=tuple(_task(dag, task) for task in dag.topological_sort()),
        **{name: getattr(dag, name) for name in _AS_IN_DAG},
    )


def _checked(dag: schema.SerializedDag) -> schema.SerializedDag:
    """Return the DAG as the scheduler will read it."""
    from asynsched.serialization.decode import check_dag

    try:
        data = msgspec.json.encode(dag)
    except (TypeError, ValueError, OverflowError) as exc:
        raise SerializationError(f"DAG {dag.dag_id!r} cannot be written as JSON: {exc}") from exc
    try:
        written = msgspec.json.decode(data, type=schema.SerializedDag)
    except msgspec.ValidationError as exc:
        raise SerializationError(f"DAG {dag.dag_id!r}: {exc}") from exc
    check_dag(written)
    return written


def _task(dag: DAG, task: BaseOperator) -> schema.SerializedTask:
    who = task_owner(task.task_id, dag.dag_id)
    for field in task.template_fields:
        if not task.is_mapped and not hasattr(task, field):
            raise SerializationError(
                f"{who}: {field!r} is in template_fields, but {type(task).__name__} sets no such attribute"
            )
    group = task.task_group
    rule = weight_rule_of(who, task.weight_rule)
    try_weights = _try_weights(dag, task, rule, who) if isinstance(rule, PriorityWeightStrategy) else ()
    retries = arguments.whole_number(who, "retries", task.retries, at_least=0)
    own = installation.loaded
    # Attributes may have been set after construction, so they are checked again.
    return schema.SerializedTask(
        operator_name="" if task.operator_name == task.task_type else task.operator_name,
        display_name=""
        if task.task_display_name == task.task_id
        else _text(task, "task_display_name", task.task_display_name) or "",
        downstream_task_ids=tuple(sorted(task.downstream_task_ids)),
        group_id=None if group is None else group.group_id,
        start_date=task.own_start_date,
        end_date=task.own_end_date,
        doc_md=_text(task, "doc_md", task.doc_md),
        trigger_rule=arguments.one_of(who, "trigger_rule", task.trigger_rule, TriggerRule),  # type: ignore[arg-type]
        retries=retries,
        retry_delay=arguments.duration(who, "retry_delay", task.retry_delay).total_seconds(),
        retry_exponential_backoff=arguments.backoff(who, task.retry_exponential_backoff),
        max_retry_delay=_seconds(arguments.optional_duration(who, "max_retry_delay", task.max_retry_delay)),
        execution_timeout=_seconds(arguments.limit(who, "execution_timeout", task.execution_timeout)),
        priority_weight=arguments.priority_weight(who, task.priority_weight),
        weight_rule="absolute" if isinstance(rule, PriorityWeightStrategy) else rule,  # type: ignore[arg-type]
        try_weights=try_weights,
        routes=() if own is None else _routes(own.policies, dag, task, try_weights, min(retries + 2, MOST_TRIES)),
        executor_config=_executor_config(who, task.executor_config) if task.executor_config else {},
        is_empty=_is_empty(task),
        map_length=_of_input(task.expand_input) if isinstance(task, MappedOperator) else None,
        callbacks=_callbacks(task, _TASK_EVENTS, mails=not _is_empty(task)),
        template_fields=tuple(task.template_fields),
        inlets=_assets(who, task.inlets),
        outlets=_assets(who, task.outlets),
        edge_labels=_edge_labels(dag, task),
        extra_links=_extra_links(who, task),
        **{name: getattr(task, name) for name in _AS_IN_TASK},
        **_sensor_fields(task),
    )


def _executor_config(who: str, config: Any) -> dict[str, Any]:
    """Return a task's executor_config as JSON, the Kubernetes client's models as its API has them, as Airflow does.

    An executor that does not read it runs the task whatever it holds.
    """
    try:
        written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config, enc_hook=_of_kubernetes), type=dict)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as exc:
        if defaults.runs_on_this_machine:
            return {}
        raise SerializationError(f"{who}: executor_config cannot be written as JSON: {exc}; {_PARAM_ADVICE}") from exc
    return written


def _of_kubernetes(value: Any) -> dict[str, Any]:
    names = getattr(type(value), "attribute_map", None)
    if not isinstance(names, dict):
        raise NotImplementedError(f"it holds a {type(value).__name__}")
    found = {there: getattr(value, here) for here, there in names.items()}
    return {there: one for there, one in found.items() if one is not None}


def _try_weights(dag: DAG, task: BaseOperator, strategy: PriorityWeightStrategy, who: str) -> tuple[int, ...]:
    try:
        found = weights(strategy, task, dag.dag_id)
    except Exception as exc:
        raise SerializationError(f"{who}: weight_rule {type(strategy).__name__}: {exc}") from exc
    return tuple(arguments.priority_weight(who, each) for each in found)


def _routes(
    policies: "Policies", dag: DAG, task: BaseOperator, weights: tuple[int, ...], n_tries: int
) -> tuple[schema.SerializedRoute, ...]:
    """Return the routes that the policies give to a task's tries; none if those are the task's own.

    Args:
        weights: The weights of the tries by a strategy.
        n_tries: For how many tries to ask: all with a retry, and one more, which a clear may add.
    """
    if not policies.mutate_tries:
        return ()
    found = []
    for n_before in range(n_tries):
        own = task.prepare_for_execution()
        own.executor_config = own_config(task)
        awaited = AwaitedTry(own, dag.dag_id, n_before)
        if weights:
            awaited.priority_weight = schema.for_try(weights, n_before)
        before = dict(vars(awaited))
        if not policies.route(awaited):
            return ()
        is_weighed = vars(awaited).get("priority_weight") != before.get("priority_weight")
        found.append(_route(awaited, awaited.priority_weight if is_weighed else None))
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return () if found == [_route(task, None)] else tuple(found)


def _route(of: AwaitedTry | BaseOperator, priority_weight: Any) -> schema.SerializedRoute:
    who = task_owner(of.task_id, of.dag_id)
    longest = arguments.MAX_POOL_LENGTH
    return schema.SerializedRoute(
        pool=arguments.text(who, "pool", of.pool, max_length=longest),
        pool_slots=arguments.whole_number(who, "pool_slots", of.pool_slots, at_least=1),
        queue=arguments.text(who, "queue", of.queue, max_length=longest),
        executor=None if of.executor is None else arguments.text(who, "executor", of.executor, max_length=longest),
        executor_config=_executor_config(who, of.executor_config) if of.executor_config else {},
        priority_weight=None if priority_weight is None else arguments.priority_weight(who, priority_weight),
    )


def _sensor_fields(task: BaseOperator) -> dict[str, Any]:
    if isinstance(task, MappedOperator) and task.is_sensor:
        return {"is_sensor": True, "sensor_mode": task.shared.get("mode", "poke")}
    if not isinstance(task, BaseSensorOperator):
        return {}
    known = {"sensor_mode": task.mode, "poke_interval": task.poke_interval, "sensor_timeout": task.timeout}
    return {"is_sensor": True, **known}


def _assets(who: str, assets: Iterable[BaseAsset]) -> tuple[AssetCondition, ...]:
    """Return the inlets or outlets of a task, each once; an expression is taken apart into its assets."""
    leaves = {leaf.key(): leaf for asset in assets for leaf in asset.iter_leaves()}
    return tuple(_condition(who, leaf.as_expression()) for leaf in leaves.values())


def _partitions(dag: DAG, timetable: PartitionedAssetTimetable) -> dict[str, Any]:
    """Return the partition mappers of a DAG's schedule, as the scheduler will read them."""
    try:
        form = timetable.partitioning.serialize()
        check_json(form, "its partition mappers")
        read_partitioning(form)
    except (TimetableError, TypeError) as exc:
        raise SerializationError(f"DAG {dag.dag_id!r}: {exc}") from exc
    return form


def _watchers(dag: DAG) -> tuple[schema.SerializedWatcher, ...]:
    """Return the watchers of all assets that a DAG names, each once."""
    leaves = list(getattr(dag.timetable, "leaves", ()))
    for task in dag.tasks:
        for asset in (*task.inlets, *task.outlets):
            leaves += asset.iter_leaves()
    found: dict[bytes, schema.SerializedWatcher] = {}
    for leaf in leaves:
        for watcher in getattr(leaf, "watchers", ()):
            described = _watcher(f"DAG {dag.dag_id!r}, watcher {watcher.name!r} of {leaf!r}", leaf, watcher)
            found[msgspec.json.encode(described, order="sorted")] = described
    return tuple(map(found.__getitem__, sorted(found)))


def _watcher(who: str, asset: Asset, watcher: AssetWatcher) -> schema.SerializedWatcher:
    """Return a watcher as its trigger describes itself. This runs user code."""
    try:
        classpath, arguments = watcher.trigger.serialize()
        kwargs = {str(key): to_transport(value, f"trigger argument {key!r}") for key, value in arguments.items()}
    except Exception as exc:
        raise SerializationError(f"{who}: its trigger cannot be stored: {type(exc).__name__}: {exc}") from exc
    return schema.SerializedWatcher(asset.name, asset.uri, watcher.name, classpath, kwargs)


def _condition(who: str, expression: dict[str, Any]) -> AssetCondition:
    try:
        return read_condition(expression)
    except DagError as exc:
        raise SerializationError(f"{who}: {exc}") from exc


def _is_empty(task: BaseOperator) -> bool:
    """Return whether a task can succeed without a process, because no user code would run."""
    cls = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return (
        issubclass(cls, EmptyOperator)
        and cls.execute is EmptyOperator.execute
        and cls.pre_execute is BaseOperator.pre_execute
        and cls.post_execute is BaseOperator.post_execute
        and task.pre_execute_hook is None
        and task.post_execute_hook is None
        and not _callbacks(task, _TASK_EVENTS)
        and not task.outlets
    )


def _task_group(group: TaskGroup) -> schema.SerializedTaskGroup:
    parent = group.parent_group
    return schema.SerializedTaskGroup(
        group_id=group.group_id or "",
        parent_id=None if parent is None else parent.group_id,
        tooltip=group.tooltip,
        prefix_group_id=group.prefix_group_id,
        map_length=_group_map_length(group),
    )


def _edge_labels(dag: DAG, task: BaseOperator) -> dict[str, str]:
    infos = dag.edge_info.get(task.task_id, {})
    return {name: str(info["label"]) for name, info in sorted(infos.items()) if info.get("label")}


def _extra_links(who: str, task: BaseOperator) -> dict[str, str]:
    own = installation.loaded
    operator = task.operator_class if isinstance(task, MappedOperator) else type(task)
    found: dict[str, str] = {}
    try:
        of_plugins = () if own is None else own.plugins.links_of(operator)
        for link in (*task.operator_extra_links, *of_plugins):
            found[str(link.name)] = str(link.xcom_key)
    except Exception as exc:
        raise SerializationError(
            f"{who}: its operator_extra_links cannot be read: {type(exc).__name__}: {exc}"
        ) from exc
    return found


def _callbacks(
    owner: DAG | BaseOperator, events: Iterable[schema.CallbackEvent], *, mails: bool = False
) -> tuple[schema.CallbackEvent, ...]:
    """Return the events that have callbacks, or mails if the owner may send any."""
    return tuple(event for event in events if getattr(owner, f"{event}_callback") or (mails and may_mail(owner, event)))


def _deadline(dag: DAG, alert: "DeadlineAlert") -> schema.SerializedDeadline:
    reference, interval = alert.reference, alert.interval
    length, variable = (interval, "") if isinstance(interval, dt.timedelta) else (dt.timedelta(), interval.key)
    return schema.SerializedDeadline(
        reference=reference.kind,  # type: ignore[arg-type]
        interval=length.total_seconds(),
        variable=variable,
        name=_text(dag, "the name of a deadline", alert.name) or "",
        at=arguments.instant(f"DAG {dag.dag_id!r}", "deadline", reference.at, dag.timezone),
        max_runs=reference.max_runs,
        min_runs=reference.min_runs,
    )


def _params(who: str, params: ParamsDict) -> dict[str, schema.SerializedParam]:
    found = {}
    for name, param in params.params():
        has_default = param.value is not NOTSET
        value = with_text_keys(param.value) if has_default else None
        try:
            check_json(value, f"{who}: the default of the param {name!r}", advice=_PARAM_ADVICE)
            check_json(param.schema, f"{who}: the schema of the param {name!r}", advice=_PARAM_ADVICE)
        except TypeError as exc:
            raise SerializationError(str(exc)) from None
        found[name] = schema.SerializedParam(
            value, has_default, param.schema, _text(who, f"param {name!r}", param.description)
        )
    return found


def _seconds(length: dt.timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def _text(owner: object, field: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SerializationError(f"{owner}: {field} must be a string, not {type(value).__name__}")
    return value
