"""`/assets`: assets, aliases, events, and the events that wait for runs."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from asynsched.errors import NotFound
from asynsched.keys import DagRunKey
from asynsched.queries.assets import (
    AliasFilter,
    AliasInfo,
    AssetFilter,
    AssetInfo,
    EventFilter,
    EventInfo,
    QueuedFilter,
    QueuedInfo,
    count_aliases,
    count_assets,
    count_events,
    count_queued,
    create_event,
    delete_queued,
    get_alias,
    get_asset,
    list_aliases,
    list_assets,
    list_events,
    list_queued,
)
from asynsched.queries.paging import MOST_ROWS, Paging, Pattern, utc
from asynsched.store.assets import INLET, OUTLET, SCHEDULE, waiting_dag_ids
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, OrderBy, PageQuery, RowId, listed, paging
from asynsched.web.airflow_api.filters import bounds, pattern
from asynsched.web.endpoint import Call, Invalid, check

EVENT_NAMES = {"timestamp": "created_at"}
ASSET_NAMES = {"updated_at": "created_at"}


class DagScheduleAssetReference(Struct, frozen=True):
    """A DAG that waits for an asset."""

    dag_id: str
    created_at: datetime
    updated_at: datetime


class TaskAssetReference(Struct, frozen=True):
    """A task that names an asset as its outlet or inlet."""

    dag_id: str
    task_id: str
    created_at: datetime
    updated_at: datetime


class AssetAliasResponse(Struct, frozen=True):
    """An alias of assets."""

    id: int
    name: str
    group: str


class AssetAliasCollectionResponse(Struct, frozen=True):
    """A page of aliases."""

    asset_aliases: tuple[AssetAliasResponse, ...]
    total_entries: int


class AssetWatcherResponse(Struct, frozen=True):
    """A watcher of an asset."""

    name: str
    trigger_id: int
    created_date: datetime


class LastAssetEventResponse(Struct, frozen=True):
    """The last event of an asset."""

    id: int | None
    timestamp: datetime | None


class AssetResponse(Struct, frozen=True, kw_only=True):
    """An asset, and the DAGs and tasks that name it."""

    id: int
    name: str
    uri: str
    group: str
    extra: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    scheduled_dags: tuple[DagScheduleAssetReference, ...]
    producing_tasks: tuple[TaskAssetReference, ...]
    consuming_tasks: tuple[TaskAssetReference, ...]
    aliases: tuple[AssetAliasResponse, ...]
    watchers: tuple[AssetWatcherResponse, ...]
    last_asset_event: LastAssetEventResponse | None


class AssetCollectionResponse(Struct, frozen=True):
    """A page of assets."""

    assets: tuple[AssetResponse, ...]
    total_entries: int


class DagRunAssetReference(Struct, frozen=True, kw_only=True):
    """A run that an event triggered. One that has not started has the time since when it is queued."""

    run_id: str
    dag_id: str
    logical_date: datetime | None
    start_date: datetime
    end_date: datetime | None
    state: str
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    partition_key: str | None
    triggering: bool = True


class AssetEventResponse(Struct, frozen=True, kw_only=True):
    """An update of an asset. A large `extra` is null."""

    id: int
    asset_id: int
    uri: str | None
    name: str | None
    group: str | None
    extra: dict[str, Any] | None
    source_task_id: str | None
    source_dag_id: str | None
    source_run_id: str | None
    source_map_index: int
    created_dagruns: tuple[DagRunAssetReference, ...]
    timestamp: datetime
    partition_key: str | None


class AssetEventCollectionResponse(Struct, frozen=True):
    """A page of events."""

    asset_events: tuple[AssetEventResponse, ...]
    total_entries: int


class AssetEventAccessControl(Struct, frozen=True):
    """The teams whose DAGs an update concerns."""

    allow_global: bool = True
    consumer_teams: tuple[str, ...] | None = None


class CreateAssetEventsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An update of an asset to report."""

    asset_id: RowId
    partition_key: Annotated[str, Meta(max_length=250, pattern=r"\S")] | None = None
    extra: dict[str, Any] = {}
    access_control: AssetEventAccessControl | None = None


class QueuedEventResponse(Struct, frozen=True):
    """An asset whose events wait for a run of a DAG."""

    dag_id: str
    asset_id: int
    created_at: datetime
    dag_display_name: str


class QueuedEventCollectionResponse(Struct, frozen=True):
    """The assets whose events wait."""

    queued_events: tuple[QueuedEventResponse, ...]
    total_entries: int


class AssetEventQuery(Struct, frozen=True, kw_only=True):
    """Which events are wanted."""

    asset_id: RowId | None = None
    source_dag_id: str | None = None
    source_task_id: str | None = None
    source_run_id: str | None = None
    source_map_index: MapIndex | None = None
    name_pattern: str | None = None
    name_prefix_pattern: str | None = None
    timestamp_gte: datetime | None = None
    timestamp_gt: datetime | None = None
    timestamp_lte: datetime | None = None
    timestamp_lt: datetime | None = None

    def filter(self, seen_dags: frozenset[str] | None) -> EventFilter:
        """Return the filter of these values, and of the DAGs that may be seen."""
        return EventFilter(
            asset_id=self.asset_id, source_dag_id=self.source_dag_id, source_task_id=self.source_task_id,
            source_run_id=self.source_run_id, source_map_index=self.source_map_index, seen_dags=seen_dags,
            name=pattern(self, "name"),
            created_at=bounds(self, "timestamp"),
        )  # fmt: skip


@AIRFLOW_API.endpoint("GET", "/assets")
async def get_assets(
    call: Call,
    page: PageQuery,
    name_pattern: str | None = None,
    name_prefix_pattern: str | None = None,
    uri_pattern: str | None = None,
    uri_prefix_pattern: str | None = None,
    dag_ids: tuple[str, ...] = (),
    only_active: bool = True,
    order_by: OrderBy = ("id",),
) -> AssetCollectionResponse:
    """List the assets. A single one of `dag_ids` may have commas between several."""
    if len(dag_ids) == 1:
        dag_ids = tuple(dag_ids[0].split(","))
    wanted = AssetFilter(
        name=Pattern(name_pattern, name_prefix_pattern), uri=Pattern(uri_pattern, uri_prefix_pattern),
        active=only_active, of_dags=dag_ids, seen_dags=call.who.dag_ids,
    )  # fmt: skip
    questions, asked = (list_assets, count_assets), paging(page, order_by, ASSET_NAMES)
    return AssetCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_asset))


@AIRFLOW_API.endpoint("GET", "/assets/aliases")
async def get_asset_aliases(
    call: Call,
    page: PageQuery,
    name_pattern: str | None = None,
    name_prefix_pattern: str | None = None,
    order_by: OrderBy = ("id",),
) -> AssetAliasCollectionResponse:
    """List the aliases of assets."""
    wanted = AliasFilter(Pattern(name_pattern, name_prefix_pattern), call.who.dag_ids)
    questions, asked = (list_aliases, count_aliases), paging(page, order_by)
    return AssetAliasCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_alias))


@AIRFLOW_API.endpoint("GET", "/assets/aliases/{asset_alias_id}", errors=(404,))
async def get_asset_alias(call: Call, asset_alias_id: RowId) -> AssetAliasResponse:
    """Show an alias of assets."""
    return _alias(await call.context.ask(get_alias, asset_alias_id, call.who.dag_ids))


@AIRFLOW_API.endpoint("GET", "/assets/events")
async def get_asset_events(
    call: Call, query: AssetEventQuery, page: PageQuery, order_by: OrderBy = ("timestamp",)
) -> AssetEventCollectionResponse:
    """List the updates of assets."""
    return await _events(call, query.filter(call.who.dag_ids), paging(page, order_by, EVENT_NAMES))


async def events_of_run(call: Call, run: DagRunKey) -> AssetEventCollectionResponse:
    """Return the events that triggered a run."""
    return await _events(call, EventFilter(consumed_by=run, seen_dags=call.who.dag_ids), Paging(limit=MOST_ROWS))


async def _events(call: Call, wanted: EventFilter, page: Paging) -> AssetEventCollectionResponse:
    questions = (list_events, count_events)
    return AssetEventCollectionResponse(*await listed(call, questions, wanted, page=page, shown=_event))


@AIRFLOW_API.endpoint("POST", "/assets/events", permission=Permission.OPERATE, errors=(404,))
async def create_asset_event(call: Call, body: CreateAssetEventsBody) -> AssetEventResponse:
    """Report an update of an asset. Its `extra` says that it comes from here, as in Airflow."""
    if body.access_control not in (None, AssetEventAccessControl(), AssetEventAccessControl(consumer_teams=())):
        raise Invalid(("body", "access_control"), "asynsched has no teams: leave out access_control.")
    made = await call.context.act(
        call.who.name, create_event, body.asset_id, body.extra | {"from_rest_api": True},
        partition_key=body.partition_key, now=call.context.clock.now(),
    )  # fmt: skip
    return _event(made)


@AIRFLOW_API.endpoint("GET", "/assets/{asset_id}", errors=(404,))
async def get_one_asset(call: Call, asset_id: RowId) -> AssetResponse:
    """Show an asset."""
    return _asset(await call.context.ask(get_asset, asset_id, call.who.dag_ids))


@AIRFLOW_API.endpoint("GET", "/assets/{asset_id}/queuedEvents")
async def get_asset_queued_events(
    call: Call, asset_id: RowId, before: datetime | None = None
) -> QueuedEventCollectionResponse:
    """List the DAGs for which events of an asset wait."""
    return await _queued(call, asset_id=asset_id, before=before)


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/assets/queuedEvents")
async def get_dag_queued_events(
    call: Call, dag_id: str, before: datetime | None = None
) -> QueuedEventCollectionResponse:
    """List the assets whose events wait for a run of a DAG."""
    return await _queued(call, dag_id=dag_id, before=before)


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/assets/{asset_id}/queuedEvents", errors=(404,))
async def get_queued_event(
    call: Call, dag_id: str, asset_id: RowId, before: datetime | None = None
) -> QueuedEventResponse:
    """Show the first event of an asset that waits for a run of a DAG."""
    found = (await _queued(call, dag_id=dag_id, asset_id=asset_id, before=before)).queued_events
    if not found:
        raise NotFound("queued event of", f"asset {asset_id}", where=f"the DAG {dag_id!r}")
    return found[0]


@AIRFLOW_API.endpoint(
    "DELETE", "/assets/{asset_id}/queuedEvents", permission=Permission.OPERATE, status=204, errors=(404,)
)
async def delete_asset_queued_events(call: Call, asset_id: RowId, before: datetime | None = None) -> None:
    """Forget the events of an asset that wait for runs."""
    waiting = await call.context.ask(waiting_dag_ids, asset_id)
    dag_ids = [dag_id for dag_id in waiting if call.who.may(Permission.OPERATE, dag_id)]
    await _forget(call, dag_ids, asset_id, before)


@AIRFLOW_API.endpoint(
    "DELETE", "/dags/{dag_id}/assets/queuedEvents", permission=Permission.OPERATE, status=204, errors=(404,)
)
async def delete_dag_queued_events(call: Call, dag_id: str, before: datetime | None = None) -> None:
    """Forget the events that wait for a run of a DAG."""
    await _forget(call, [dag_id], None, before)


@AIRFLOW_API.endpoint(
    "DELETE", "/dags/{dag_id}/assets/{asset_id}/queuedEvents", permission=Permission.OPERATE, status=204, errors=(404,)
)
async def delete_queued_events(call: Call, dag_id: str, asset_id: RowId, before: datetime | None = None) -> None:
    """Forget the events of an asset that wait for a run of a DAG."""
    await _forget(call, [dag_id], asset_id, before)


async def _queued(
    call: Call, *, dag_id: str | None = None, asset_id: int | None = None, before: datetime | None = None
) -> QueuedEventCollectionResponse:
    wanted = QueuedFilter(
        dag_id=dag_id, asset_id=asset_id, before=None if before is None else utc(before), seen_dags=call.who.dag_ids
    )
    questions, page = (list_queued, count_queued), Paging(limit=MOST_ROWS)
    return QueuedEventCollectionResponse(*await listed(call, questions, wanted, page=page, shown=_queued_event))


async def _forget(call: Call, dag_ids: list[str], asset_id: int | None, before: datetime | None) -> None:
    for dag_id in dag_ids:
        check(call.who, Permission.OPERATE, dag_id)
    until = None if before is None else utc(before)
    await call.context.act(call.who.name, delete_queued, dag_ids=dag_ids, asset_id=asset_id, before=until)


def _asset(info: AssetInfo) -> AssetResponse:
    return AssetResponse(
        id=info.id, name=info.name, uri=info.uri, group=info.group, extra=info.extra, created_at=info.created_at,
        updated_at=info.created_at,
        scheduled_dags=tuple(
            DagScheduleAssetReference(one.dag_id, one.created_at, one.created_at)
            for one in info.references if one.role == SCHEDULE
        ),
        producing_tasks=_tasks(info, OUTLET), consuming_tasks=_tasks(info, INLET),
        aliases=tuple(map(_alias, info.aliases)),
        watchers=tuple(AssetWatcherResponse(one.name, one.trigger_id, one.created_at) for one in info.watchers),
        last_asset_event=LastAssetEventResponse(info.last_event_id, info.last_event_at),
    )  # fmt: skip


def _tasks(info: AssetInfo, role: str) -> tuple[TaskAssetReference, ...]:
    return tuple(
        TaskAssetReference(one.dag_id, one.task_id, one.created_at, one.created_at)
        for one in info.references
        if one.role == role
    )


def _alias(info: AliasInfo) -> AssetAliasResponse:
    return AssetAliasResponse(info.id, info.name, info.group)


def _event(info: EventInfo) -> AssetEventResponse:
    return AssetEventResponse(
        id=info.id, asset_id=info.asset_id, uri=info.uri, name=info.name, group=info.group_name, extra=info.extra,
        source_task_id=info.source_task_id, source_dag_id=info.source_dag_id, source_run_id=info.source_run_id,
        source_map_index=info.source_map_index, timestamp=info.created_at, partition_key=info.partition_key,
        created_dagruns=tuple(
            DagRunAssetReference(
                run_id=run.run_id, dag_id=run.dag_id, logical_date=run.logical_date,
                start_date=run.started_at or run.queued_at, end_date=run.ended_at, state=run.state,
                data_interval_start=run.data_interval_start, data_interval_end=run.data_interval_end,
                partition_key=run.partition_key,
            )
            for run in info.runs
        ),
    )  # fmt: skip


def _queued_event(info: QueuedInfo) -> QueuedEventResponse:
    return QueuedEventResponse(info.dag_id, info.asset_id, info.created_at, info.dag_id)
