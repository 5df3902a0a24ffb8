"""The context of a try, with its accessors for variables, connections and asset events.

This module imports everything at the top: in every try, an import within a function would cost time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial

from asynsched.authoring import macros
from asynsched.authoring.assets import Asset, AssetAlias, AssetRef, checked_extra
from asynsched.authoring.connection import Connection, Variable
from asynsched.authoring.exceptions import AsynschedNotFoundException
from asynsched.authoring.params import NO_PARAMS, NOTSET, resolve_params
from asynsched.authoring.running.context import Context, Deferred, Unmade
from asynsched.authoring.running.state_store import TASK_STATE_STORE, AssetStateStoreAccessors, has_assets
from asynsched.authoring.running.task_instance import DagRun, TaskInstance
from asynsched.authoring.supervisor import ask_in_parts, ask_or_none
from asynsched.authoring.timezone import aware, coerce_datetime, parsed
from asynsched.authoring.xcom import pulled_xcoms
from asynsched.authoring.xcom_arg import instance_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.protocol.messages import RunContext, TaskInstanceFacts


class VariableAccessor:
    """Variables as attributes, as strings or parsed as JSON."""

    def __init__(self, *, parse_json: bool) -> None:
        self._parse_json = parse_json

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Variable.get(name, deserialize_json=self._parse_json)

    def get(self, name: str, default: Any = NOTSET) -> Any:
        """Return a variable's value or the default."""
        return Variable.get(name, default, deserialize_json=self._parse_json)


class VariableAccessors:
    """`var`: `var.value` and `var.json`, or in Python code `context["var"]["value"]`."""

    def __init__(self) -> None:
        self.value = VariableAccessor(parse_json=False)
        self.json = VariableAccessor(parse_json=True)

    def __getitem__(self, name: str) -> VariableAccessor:
        if name not in ("value", "json"):
            raise KeyError(f"var has 'value' and 'json', not {name!r}")
        return self.value if name == "value" else self.json


class ConnectionAccessor:
    """`conn`: connections as attributes."""

    def __getattr__(self, name: str) -> Connection:
        if name.startswith("__"):
            raise AttributeError(name)
        return Connection.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a connection or the default."""
        try:
            return Connection.get(name)
        except AsynschedNotFoundException:
            return default


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any, Self

    AssetKey = Asset | AssetAlias | AssetRef


class AssetEvent:
    """An update of an asset.

    Attributes:
        timestamp: The time at which the scheduler recorded it.
        source_dag_id: The DAG that updated it. This and the other sources are None for an event from outside.
        source_map_index: The map index; -1 for a task that is not mapped.
        partition_key: The partition that was updated; None without partitions.
        source_aliases: The aliases through which it was updated.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.asset = Asset(fields["name"], fields["uri"], extra=fields["asset_extra"])
        self.extra: dict[str, Any] = fields["extra"]
        self.timestamp = coerce_datetime(dt.datetime.fromisoformat(fields["created_at"]))
        self.source_dag_id: str | None = fields["source_dag_id"]
        self.source_run_id: str | None = fields["source_run_id"]
        self.source_task_id: str | None = fields["source_task_id"]
        self.source_map_index: int = fields["source_map_index"]
        self.partition_key: str | None = fields.get("partition_key")
        self.source_aliases = [AssetAlias(name) for name in fields["aliases"]]

    @property
    def uri(self) -> str:
        """The URI of the asset."""
        return self.asset.uri

    @property
    def source_task_instance(self) -> SourceTaskInstance | None:
        """The task instance that updated the asset; None for an event from outside."""
        return None if self.source_task_id is None else SourceTaskInstance(self)

    @property
    def source_dag_run(self) -> DagRun | None:
        """The run that updated the asset; None for an event from outside, or if the run was deleted."""
        if self.source_run_id is None:
            return None
        found = ask_or_none("dag_run", dag_id=self.source_dag_id, run_id=self.source_run_id)
        return None if found is None else DagRun.of_fields(found)

    def __repr__(self) -> str:
        return f"AssetEvent({self.asset.name!r}, {self.extra!r}, {self.timestamp})"


class SourceTaskInstance:
    """The task instance that updated an asset."""

    def __init__(self, event: AssetEvent) -> None:
        self.dag_id = event.source_dag_id
        self.run_id = event.source_run_id
        self.task_id = event.source_task_id
        self.map_index = event.source_map_index

    def xcom_pull(self, *, key: str = "return_value", default: Any = None) -> Any:
        """Return the XCom that it pushed under a key, by default its return value."""
        found = pulled_xcoms(
            task_ids=[self.task_id],
            key=key,
            map_indexes=[self.map_index],
            run_id=self.run_id,
            dag_id=self.dag_id,
            include_prior_dates=False,
        )
        return found[0][2] if found else default


class _ByAsset(Mapping["AssetKey", "Any"]):
    """A mapping whose keys are assets, references and aliases."""

    _known: Collection[AssetKey]

    def __iter__(self) -> Iterator[AssetKey]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def for_asset(self, *, name: str = "", uri: str = "") -> Any:
        """Return the value for an asset with this name, this URI, or both."""
        return self[Asset(name, uri) if name and uri else AssetRef(name=name, uri=uri)]

    def for_asset_alias(self, *, name: str) -> Any:
        """Return the value for an alias."""
        return self[AssetAlias(name)]


class TriggeringAssetEvents(_ByAsset):
    """The events that triggered a run, by asset and by alias, requested on first use; an empty list for other assets.

    Args:
        is_triggered: Whether events triggered the run at all.
    """

    def __init__(self, *, is_triggered: bool) -> None:
        self._is_triggered = is_triggered
        self._found: dict[AssetKey, list[AssetEvent]] | None = None

    @property
    def _known(self) -> dict[AssetKey, list[AssetEvent]]:  # type: ignore[override] # read-only
        if self._found is None:
            self._found = {}
            for event in _asked("triggering_asset_events") if self._is_triggered else ():
                keys: list[AssetKey] = [event.asset, *event.source_aliases]
                for key in keys:
                    self._found.setdefault(key, []).append(event)
        return self._found

    def __getitem__(self, key: AssetKey) -> list[AssetEvent]:
        events = self._known
        return events.get(_resolved(key, events), [])

    def __repr__(self) -> str:
        return f"TriggeringAssetEvents({self._known!r})"


class InletEvents(_ByAsset):
    """The events of a task's inlets, by inlet or by its index: sequences that are requested on first use."""

    def __init__(self, inlets: Sequence[AssetKey]) -> None:
        self._known = self._inlets = inlets

    def __getitem__(self, key: AssetKey | int) -> InletEventSequence:
        inlet = self._inlets[key] if isinstance(key, int) else _resolved(key, self._inlets)
        if inlet not in self._inlets:
            raise KeyError(f"{key!r} is not an inlet of this task; its inlets are {list(self._inlets)!r}")
        if isinstance(inlet, AssetAlias):
            return InletEventSequence({"alias": inlet.name})
        return InletEventSequence({"name": inlet.name, "uri": inlet.uri})


class InletEventSequence(Sequence[AssetEvent]):
    """The events of one inlet, oldest first. The methods select events and change the order."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._found: list[AssetEvent] | None = None

    def after(self, after: str | dt.datetime) -> Self:
        """Keep only events after a time, an ISO 8601 string or a datetime."""
        return self._wanting(after=_iso(after))

    def before(self, before: str | dt.datetime) -> Self:
        """Keep only events before a time, an ISO 8601 string or a datetime."""
        return self._wanting(before=_iso(before))

    def ascending(self, ascending: bool = True) -> Self:
        """Sort by time, oldest first, or newest first if False."""
        return self._wanting(ascending=ascending)

    def limit(self, limit: int) -> Self:
        """Keep only the first `limit` events."""
        return self._wanting(limit=limit)

    def _wanting(self, **wanted: Any) -> Self:
        self._wanted |= wanted
        self._found = None
        return self

    def _events(self) -> list[AssetEvent]:
        if self._found is None:
            self._found = list(_asked("asset_events", **self._wanted))
        return self._found

    def __getitem__(self, place: Any) -> Any:
        if self._found is None and place == -1 and "limit" not in self._wanted:
            # The most usual request, for the newest event, of a history that may be long.
            backwards = {**self._wanted, "ascending": not self._wanted.get("ascending", True), "limit": 1}
            return list(_asked("asset_events", **backwards))[-1]
        return self._events()[place]

    def __len__(self) -> int:
        return len(self._events())


class OutletEvent:
    """A task's description of the event of an outlet.

    Attributes:
        extra: JSON values for the event of an asset.
        partition_keys: The partitions that were updated; none for that of the run.
        asset_alias_events: The assets added to an alias, each with its extra.
    """

    def __init__(self, key: AssetKey) -> None:
        self.key = key
        self.partition_keys: set[str] = set()
        self.extra: dict[str, Any] = {}
        self.asset_alias_events: list[tuple[Asset | AssetRef, dict[str, Any]]] = []

    def add(self, asset: Asset | AssetRef, extra: dict[str, Any] | None = None) -> None:
        """Update an asset through an alias. One try does so at most 1000 times. On another outlet it has no effect.

        Raises TypeError if `asset` is not an asset.
        """
        if not isinstance(self.key, AssetAlias):
            return
        if not isinstance(asset, (Asset, AssetRef)):
            raise TypeError(f"only assets can be added to {self.key!r}, not {asset!r}")
        self.asset_alias_events.append((asset, extra or {}))

    def add_partitions(self, keys: str | list[str]) -> None:
        """Update these partitions of the asset: an event for each, with the same extra. One try has at most 1000.

        Raises TypeError if the outlet is an alias, ValueError for a key that is blank or too long.
        """
        from asynsched.timetables.partitions import checked_key

        if isinstance(self.key, AssetAlias):
            raise TypeError(f"{self.key!r} is an alias, which has no partitions; name the asset")
        self.partition_keys.update([checked_key(key) for key in ([keys] if isinstance(keys, str) else keys)])

    def fields(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of `asynsched.protocol.messages.OutletEvent`. Raises DagError if an extra is not JSON."""
        if isinstance(self.key, AssetAlias):
            for asset, extra in self.asset_alias_events:
                yield {**_asset_fields(asset), "extra": _event_extra(asset, extra), "alias": self.key.name}
        elif self.extra or self.partition_keys:
            told = {**_asset_fields(self.key), "extra": _event_extra(self.key, self.extra)}
            yield from ({**told, "partition_key": key} for key in sorted(self.partition_keys) or [""])


class OutletEvents(_ByAsset):
    """A task's descriptions of its outlets' events: `outlet_events[asset].extra = {...}`."""

    def __init__(self) -> None:
        self._known: dict[AssetKey, OutletEvent] = {}

    def __getitem__(self, key: AssetKey) -> OutletEvent:
        if not isinstance(key, (Asset, AssetAlias, AssetRef)):
            raise TypeError(f"outlet_events has assets and aliases as keys, not {key!r}")
        return self._known.setdefault(key, OutletEvent(key))

    def fields(self) -> list[dict[str, Any]]:
        """Return the fields of all events for the scheduler.

        Raises DagError if an extra is not JSON, ValueError for a partition key that is none, or for too many events.
        """
        keys = [key for event in self._known.values() for key in event.partition_keys]
        n_of_aliases = sum(len(event.asset_alias_events) for event in self._known.values())
        if keys or n_of_aliases:
            from asynsched.timetables.partitions import check_events_of_try

            check_events_of_try(keys, n_of_aliases)
        return [fields for event in self._known.values() for fields in event.fields()]


def _asked(operation: str, **wanted: Any) -> Iterator[AssetEvent]:
    return (AssetEvent(fields) for part in ask_in_parts(operation, **wanted) for fields in part)


def _asset_fields(asset: Asset | AssetRef) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": asset.name, "uri": asset.uri}
    return {**fields, "group": asset.group, "asset_extra": asset.extra} if isinstance(asset, Asset) else fields


def _event_extra(asset: Asset | AssetRef, extra: object) -> dict[str, Any]:
    return checked_extra(f"event of the asset {asset.name or asset.uri!r}", extra)


def _resolved(key: AssetKey, known: Iterable[AssetKey]) -> AssetKey:
    """Return the known key that means the same asset, if one of both is a reference; otherwise the key itself."""
    return next((other for other in known if other == key or _means(other, key) or _means(key, other)), key)


def _means(reference: AssetKey, asset: AssetKey) -> bool:
    if not isinstance(reference, AssetRef) or not isinstance(asset, Asset):
        return False
    return reference.name == asset.name or reference.uri == asset.uri


def _iso(moment: str | dt.datetime) -> str:
    return (parsed(moment) if isinstance(moment, str) else aware(moment)).isoformat()


def build_context(task: BaseOperator, run: RunContext, ti: TaskInstanceFacts) -> Context:
    """Return the context of a try. Raises ParamValidationError if the run's conf does not fit the schema of a param."""
    dag = task.dag
    dag_run = DagRun(run, dag)
    instance = TaskInstance(task, dag_run, ti)
    context = Context(
        conf=dag_run.conf,
        conn=ConnectionAccessor(),
        dag=dag,
        dag_run=dag_run,
        inlet_events=Deferred(partial(InletEvents, task.inlets)),
        inlets=task.inlets,
        macros=macros,
        map_index_template=task.map_index_template,
        outlet_events=Deferred(OutletEvents),
        outlets=task.outlets,
        partition_date=None if run.partition_date is None else dag_run.partition_date,
        partition_key=dag_run.partition_key,
        params=resolve_params(
            dag.params,
            NO_PARAMS if task.params_are_asked else task.params,
            dag_run.conf,
            owner=f"run {dag_run.run_id!r}",
        ),
        run_id=dag_run.run_id,
        start_date=Unmade(partial(getattr, instance, "start_date")),
        task=task,
        task_instance=instance,
        task_instance_key_str=f"{dag.dag_id}__{task.task_id}__{dag_run.run_id}",
        # The scheduler does not count them: whether there was one is what code asks.
        task_reschedule_count=0 if ti.reschedule_started_at is None else 1,
        task_state_store=TASK_STATE_STORE,
        test_mode=ti.test_mode,
        ti=instance,
        triggering_asset_events=Deferred(
            partial(TriggeringAssetEvents, is_triggered=run.run_type == "asset_triggered")
        ),
        try_number=instance.try_number,
        var=VariableAccessors(),
    )
    if run.logical_date is None:
        context.update(prev_start_date_success=None, prev_end_date_success=None)
    else:
        context.update(_dates(dag_run, aware(run.logical_date), f"{dag.dag_id}__{task.task_id}"))
        context.update(_previous_success(instance))
    if (task.inlets or task.outlets) and has_assets(task.inlets, task.outlets):
        context["asset_state_store"] = Deferred(partial(AssetStateStoreAccessors, task.inlets, task.outlets))
    context["expanded_ti_count"] = Deferred(partial(instance_count, context))
    instance.context = context
    return context


def _dates(dag_run: DagRun, logical_date: dt.datetime, key: str) -> dict[str, Any]:
    """Return the values that depend on the run's dates; as in Airflow 3, they are missing without a logical date."""
    # Slices of one string: `strftime` costs a new process several times as much.
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
    """Return the values about the newest successful run with an earlier logical date; None if there is none."""
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
