"""Questions about assets, their aliases, events and queues, and actions on them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.bell import Hint
from asynsched.errors import AlreadyExists, NotFound
from asynsched.keys import DagRunKey
from asynsched.queries.context import Act
from asynsched.queries.paging import ANY_TEXT, FIRST_PAGE, Page, Paging, Pattern, Range, Sorting, one_of, select_page
from asynsched.store import assets as store
from asynsched.store.rows import as_struct, count, fetch_one, length, select_in
from asynsched.store.schema import (
    AssetReference,
    AssetRow,
    asset,
    asset_alias,
    asset_alias_asset,
    asset_alias_event,
    asset_dag_run_queue,
    asset_event,
    asset_reference,
    asset_trigger,
    asset_watcher,
    dag,
    dag_run,
    dag_run_asset_event,
)
from asynsched.store.state_stores import list_asset_state
from asynsched.store.watchers import Watching, list_watchers
from asynsched.timetables.asset_condition import AssetCondition

__all__ = ["Watching", "list_watchers"]

LARGEST_EXTRA = 16 * 1024
"""Bytes of the largest extra that a list shows; a larger one is None."""
ASSETS = Sorting(
    {"id": asset.c.id, "name": asset.c.name, "uri": asset.c.uri, "created_at": asset.c.created_at},
    key=asset.c.id,
    usual=("name",),
)
ALIASES = Sorting({"id": asset_alias.c.id, "name": asset_alias.c.name}, key=asset_alias.c.id, usual=("name",))
EVENTS = Sorting(
    {
        **{name: asset_event.c[name] for name in ("id", "created_at", "source_dag_id", "source_run_id")},
        **{name: asset_event.c[name] for name in ("source_task_id", "source_map_index")},
    },
    key=asset_event.c.id,
    usual=("-created_at",),
)
_ASSETS: sa.Select[Any] = sa.select(asset)
_ALIASES: sa.Select[Any] = sa.select(asset_alias.c.id, asset_alias.c.name, asset_alias.c.group_name.label("group"))
_EVENTS: sa.Select[Any] = sa.select(
    asset_event.c.id, asset_event.c.asset_id, asset.c.name, asset.c.uri, asset.c.group_name, asset_event.c.created_at,
    sa.case((length(asset_event.c.extra) <= LARGEST_EXTRA, asset_event.c.extra)).label("extra"),
    asset_event.c.source_dag_id, asset_event.c.source_run_id, asset_event.c.source_task_id,
    asset_event.c.source_map_index, asset_event.c.partition_key,
).join(asset, asset.c.id == asset_event.c.asset_id)  # fmt: skip
_ALIASES_OF: sa.Select[Any] = sa.select(
    asset_alias_asset.c.asset_id, asset_alias.c.id, asset_alias.c.name, asset_alias.c.group_name
).join(asset_alias, asset_alias.c.id == asset_alias_asset.c.alias_id)
_WATCHERS_OF: sa.Select[Any] = sa.select(
    asset_watcher.c.digest, asset_watcher.c.name, asset_watcher.c.trigger_id, asset_trigger.c.created_at
).join(asset_trigger, asset_trigger.c.id == asset_watcher.c.trigger_id)
_RUNS_OF: sa.Select[Any] = sa.select(
    dag_run_asset_event.c.event_id, dag_run.c.dag_id, dag_run.c.run_id, dag_run.c.logical_date, dag_run.c.queued_at,
    dag_run.c.started_at, dag_run.c.ended_at, dag_run.c.state, dag_run.c.data_interval_start,
    dag_run.c.data_interval_end, dag_run.c.partition_key,
).join(dag_run, dag_run.c.id == dag_run_asset_event.c.dag_run_id)  # fmt: skip
_QUEUED: sa.Select[Any] = (
    sa.select(
        asset_dag_run_queue.c.dag_id,
        asset_event.c.asset_id,
        sa.func.min(asset_event.c.created_at, type_=asset_event.c.created_at.type).label("created_at"),
    )
    .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
    .group_by(asset_dag_run_queue.c.dag_id, asset_event.c.asset_id)
)


class AliasInfo(Struct, frozen=True):
    """An alias of assets."""

    id: int
    name: str
    group: str


class AliasedAssets(Struct, frozen=True):
    """An alias, and the names of the assets that it has stood for."""

    name: str
    group: str
    assets: tuple[str, ...]


class WatcherInfo(Struct, frozen=True):
    """A watcher of an asset."""

    name: str
    trigger_id: int
    created_at: datetime


class AssetInfo(Struct, frozen=True, kw_only=True):
    """An asset, and the places where DAGs name it, by the roles schedule, inlet and outlet."""

    id: int
    name: str
    uri: str
    group: str
    extra: dict[str, Any]
    created_at: datetime
    references: tuple[AssetReference, ...]
    aliases: tuple[AliasInfo, ...]
    watchers: tuple[WatcherInfo, ...]
    last_event_id: int | None
    last_event_at: datetime | None


class CausedRun(Struct, frozen=True):
    """A run that an event triggered."""

    dag_id: str
    run_id: str
    logical_date: datetime | None
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    state: str
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    partition_key: str | None


class EventInfo(Struct, frozen=True, kw_only=True):
    """An update of an asset, the aliases through which it was made, and the runs that it triggered.

    One from outside has no source.
    """

    id: int
    asset_id: int
    name: str
    uri: str
    group_name: str
    created_at: datetime
    extra: dict[str, Any] | None
    source_dag_id: str | None
    source_run_id: str | None
    source_task_id: str | None
    source_map_index: int
    partition_key: str | None
    aliases: tuple[str, ...] = ()
    runs: tuple[CausedRun, ...] = ()


class QueuedInfo(Struct, frozen=True):
    """An asset whose events wait for a run of a DAG, and the first of these events."""

    dag_id: str
    asset_id: int
    created_at: datetime


class QueuedFilter(Struct, frozen=True, kw_only=True):
    """Which events that wait for runs are wanted; None: all.

    Attributes:
        dag_id: Only those that wait for this DAG.
        asset_id: Only events of this asset.
        before: Only events before this instant.
        seen_dags: Only those that wait for one of these DAGs.
    """

    dag_id: str | None = None
    asset_id: int | None = None
    before: datetime | None = None
    seen_dags: frozenset[str] | None = None


class AssetFilter(Struct, frozen=True, kw_only=True):
    """Which assets are wanted.

    Attributes:
        active: Only those that an active DAG names, or that an alias stands for.
        of_dags: Only those that one of these DAGs names.
        seen_dags: The DAGs whose references and runs are shown; None: all.
    """

    name: Pattern = ANY_TEXT
    uri: Pattern = ANY_TEXT
    active: bool = False
    of_dags: tuple[str, ...] = ()
    seen_dags: frozenset[str] | None = None


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events are wanted.

    Attributes:
        alias: The name of an alias through which the asset was updated.
        consumed_by: The run that they triggered.
        seen_dags: As in AssetFilter; events of other DAGs' tasks are left out.
    """

    asset_id: int | None = None
    alias: str | None = None
    source_dag_id: str | None = None
    source_run_id: str | None = None
    source_task_id: str | None = None
    source_map_index: int | None = None
    name: Pattern = ANY_TEXT
    created_at: Range = Range()
    consumed_by: DagRunKey | None = None
    seen_dags: frozenset[str] | None = None


class AliasFilter(Struct, frozen=True):
    """Which aliases are wanted.

    Attributes:
        seen_dags: The list leaves out aliases that none of these DAGs uses; None: it has all.
    """

    name: Pattern = ANY_TEXT
    seen_dags: frozenset[str] | None = None


def list_assets(conn: Connection, wanted: AssetFilter, paging: Paging = FIRST_PAGE) -> Page[AssetInfo]:
    """Return assets. Raises BadRequest."""
    rows, after = select_page(conn, _matching(wanted), ASSETS, paging)
    return Page(tuple(_infos(conn, [as_struct(AssetRow, row) for row in rows], wanted.seen_dags)), after)


def count_assets(conn: Connection, wanted: AssetFilter) -> int:
    """Count such assets."""
    return count(conn, _matching(wanted).with_only_columns(asset.c.id))


def get_asset(conn: Connection, asset_id: int, seen_dags: frozenset[str] | None = None) -> AssetInfo:
    """Return an asset. Raises NotFound."""
    return _infos(conn, [_row(conn, asset_id)], seen_dags)[0]


def ids_of_assets(conn: Connection, condition: AssetCondition) -> dict[str, int]:
    """Return the row ids of the assets of a condition that are stored, by the digests of its leaves."""
    digests = [store.leaf_digest(leaf) for leaf in condition.leaves() if leaf.asset is not None]
    return {row.digest: row.id for row in select_in(conn, _ASSETS, asset.c.digest, digests)}


def asset_named(conn: Connection, name_or_uri: str) -> AssetInfo:
    """Return the newest asset of a name or, if there is none, of a URI. Raises NotFound with the nearest names."""
    return _infos(conn, [store.get_asset(conn, name_or_uri)], None)[0]


class AssetDetails(Struct, frozen=True):
    """More about an asset.

    Attributes:
        references: The places where DAGs name it, or one of its aliases.
        waiting_dags: The DAGs for which events of it wait.
        watchers: With their triggers, their states and their errors.
        state: The values that tasks have stored for it.
    """

    references: tuple[AssetReference, ...]
    waiting_dags: tuple[str, ...]
    watchers: tuple[Watching, ...]
    state: tuple[dict[str, Any], ...]


def asset_details(conn: Connection, of: AssetInfo) -> AssetDetails:
    """Return more about an asset."""
    digests = store.waiting_digests(of.name, of.uri, [alias.name for alias in of.aliases])
    return AssetDetails(
        tuple(store.references_to(conn, digests)),
        tuple(store.waiting_dag_ids(conn, of.id)),
        tuple(one for one in list_watchers(conn) if (one.asset, one.uri) == (of.name, of.uri)),
        tuple(list_asset_state(conn, of.id)),
    )


def list_aliases(conn: Connection, wanted: AliasFilter, paging: Paging = FIRST_PAGE) -> Page[AliasInfo]:
    """Return aliases. Raises BadRequest."""
    rows, after = select_page(conn, _of_aliases(wanted), ALIASES, paging)
    return Page(tuple(as_struct(AliasInfo, row) for row in rows), after)


def list_aliased_assets(conn: Connection) -> tuple[AliasedAssets, ...]:
    """Return the aliases with the assets that they have stood for, by name."""
    return tuple(AliasedAssets(name, group, tuple(assets)) for name, group, assets in store.list_aliases(conn))


def count_aliases(conn: Connection, wanted: AliasFilter) -> int:
    """Count such aliases."""
    return count(conn, _of_aliases(wanted))


def get_alias(conn: Connection, alias_id: int, seen_dags: frozenset[str] | None = None) -> AliasInfo:
    """Return an alias. Raises NotFound."""
    row = conn.execute(_of_aliases(AliasFilter(seen_dags=seen_dags)).where(asset_alias.c.id == alias_id)).first()
    if row is None:
        raise NotFound("asset alias", str(alias_id))
    return as_struct(AliasInfo, row)


def list_events(conn: Connection, wanted: EventFilter, paging: Paging = FIRST_PAGE) -> Page[EventInfo]:
    """Return events. Raises BadRequest."""
    rows, after = select_page(conn, _of_events(wanted), EVENTS, paging)
    return Page(tuple(_event_infos(conn, rows, wanted.seen_dags)), after)


def count_events(conn: Connection, wanted: EventFilter) -> int:
    """Count such events."""
    return count(conn, _of_events(wanted).with_only_columns(asset_event.c.id))


def count_events_by_asset(conn: Connection, asset_ids: Sequence[int], *, since: datetime) -> dict[int, int]:
    """Return how many events these assets have had since an instant; those without any are absent."""
    of_assets = (asset_event.c.asset_id.in_(asset_ids), asset_event.c.created_at >= since)
    query = sa.select(asset_event.c.asset_id, sa.func.count()).where(*of_assets).group_by(asset_event.c.asset_id)
    return {row[0]: row[1] for row in conn.execute(query)}


def create_event(
    conn: Connection, asset_id: int, extra: Mapping[str, Any], *, partition_key: str | None, now: datetime
) -> Act[EventInfo]:
    """Report an update of an asset. Raises the errors of `report_update`."""
    act = report_update(conn, asset_id, extra, partition_key=partition_key, now=now)
    is_it = (asset_event.c.asset_id == asset_id, asset_event.c.created_at == now, asset_event.c.token.is_(None))
    row = conn.execute(_EVENTS.where(*is_it).order_by(asset_event.c.id.desc()).limit(1)).one()
    return Act(_event_infos(conn, [row], None)[0], act.action, act.hint, detail=act.detail)


def report_update(
    conn: Connection, asset_id: int, extra: Mapping[str, Any], *, partition_key: str | None, now: datetime
) -> Act[list[str]]:
    """Report an update of an asset, and return the DAGs that wait for it.

    Raises NotFound, and DagError for a bad extra or key.
    """
    from asynsched.authoring.assets import Asset  # as `update_asset`: few questions need it
    from asynsched.scheduling.creation.triggering import update_asset

    found = _row(conn, asset_id)
    named = Asset(found.name, found.uri, group=found.group_name, extra=found.extra)
    _, dag_ids = update_asset(conn, named, extra, now=now, partition_key=partition_key)
    return Act(dag_ids, "asset.event", Hint("asset"), detail={"asset": found.name})


def only_producer(conn: Connection, asset_id: int, *, seen_dags: frozenset[str] | None = None) -> str:
    """Return the only DAG with a task that updates an asset.

    Raises NotFound if there is none, and AlreadyExists if there are several, which names those of `seen_dags`.
    """
    found = _row(conn, asset_id)
    references = store.references_to(conn, store.waiting_digests(found.name, found.uri, ()))
    dag_ids = sorted({one.dag_id for one in references if one.role == store.OUTLET})
    if not dag_ids:
        raise NotFound("DAG that updates the asset", found.name)
    if len(dag_ids) > 1:
        shown = ", ".join(one for one in dag_ids if seen_dags is None or one in seen_dags)
        names = f": {shown}" if shown else ""
        raise AlreadyExists(f"Several DAGs update the asset {found.name!r}{names}. Trigger one of them by its name.")
    return dag_ids[0]


def list_queued(conn: Connection, wanted: QueuedFilter, paging: Paging = FIRST_PAGE) -> Page[QueuedInfo]:
    """Return the assets whose events wait for runs of DAGs. Raises BadRequest."""
    found = _queued(wanted)
    columns = {name: found.c[name] for name in QueuedInfo.__struct_fields__}
    sorting = Sorting(columns, key=found.c.asset_id, usual=("dag_id",), before_key=("dag_id",))
    rows, after = select_page(conn, sa.select(found), sorting, paging)
    return Page(tuple(as_struct(QueuedInfo, row) for row in rows), after)


def count_queued(conn: Connection, wanted: QueuedFilter) -> int:
    """Count such assets, each once for each DAG."""
    return count(conn, sa.select(_queued(wanted)))


def all_queued(conn: Connection, seen_dags: frozenset[str] | None) -> set[tuple[int, str]]:
    """Return all assets whose events wait for runs, by their ids, each with the DAG; of all DAGs, or only of these."""
    query = _QUEUED.where(*one_of(asset_dag_run_queue.c.dag_id, seen_dags))
    return {(row.asset_id, row.dag_id) for row in conn.execute(query)}


def _queued(wanted: QueuedFilter) -> sa.Subquery:
    conditions = _of_queue(wanted.dag_id, wanted.asset_id, wanted.before)
    return _QUEUED.where(*conditions, *one_of(asset_dag_run_queue.c.dag_id, wanted.seen_dags)).subquery()


def delete_queued(
    conn: Connection, *, dag_ids: Sequence[str], asset_id: int | None = None, before: datetime | None = None
) -> Act[int]:
    """Forget events that wait for runs of these DAGs. Returns how many. Raises NotFound if there are none."""
    of_queue = _of_queue(None, asset_id, before)
    events = sa.select(asset_event.c.id).where(*of_queue)
    waits = asset_dag_run_queue.c.dag_id.in_(dag_ids)
    gone = conn.execute(sa.delete(asset_dag_run_queue).where(waits, asset_dag_run_queue.c.event_id.in_(events)))
    if not gone.rowcount:
        raise NotFound("queued event of", f"asset {asset_id}" if asset_id is not None else ", ".join(dag_ids))
    detail: dict[str, Any] = {"dag_ids": list(dag_ids), "asset_id": asset_id}
    return Act(gone.rowcount, "asset.unqueue", Hint("asset"), detail=detail)


def _row(conn: Connection, asset_id: int) -> AssetRow:
    found = fetch_one(conn, AssetRow, _ASSETS.where(asset.c.id == asset_id))
    if found is None:
        raise NotFound("asset", str(asset_id))
    return found


def _of_aliases(wanted: AliasFilter) -> sa.Select[Any]:
    query = _ALIASES.where(*wanted.name.holds_for(asset_alias.c.name))
    if wanted.seen_dags is not None:
        is_named = asset_reference.c.digest == asset_alias.c.digest
        seen = sa.exists().where(is_named, asset_reference.c.dag_id.in_(wanted.seen_dags))
        query = query.where(seen.correlate(asset_alias))
    return query


def _matching(wanted: AssetFilter) -> sa.Select[Any]:
    query = _ASSETS.where(*wanted.name.holds_for(asset.c.name), *wanted.uri.holds_for(asset.c.uri))
    is_named = asset_reference.c.digest == asset.c.digest
    if wanted.active:
        is_active = sa.exists().where(is_named, dag.c.dag_id == asset_reference.c.dag_id, dag.c.is_active)
        has_alias = sa.exists().where(asset_alias_asset.c.asset_id == asset.c.id)
        query = query.where(sa.or_(is_active.correlate(asset), has_alias.correlate(asset)))
    if wanted.of_dags:
        named = sa.exists().where(is_named, asset_reference.c.dag_id.in_(wanted.of_dags))
        query = query.where(named.correlate(asset))
    return query


def _infos(conn: Connection, rows: Sequence[AssetRow], seen_dags: frozenset[str] | None) -> list[AssetInfo]:
    """Return assets with everything about them, by one query for each kind of it."""
    ids = [row.id for row in rows]
    digests = {row.id: store.waiting_digests(row.name, row.uri, ()) for row in rows}
    references: dict[str, list[AssetReference]] = {}
    for reference in store.references_to(conn, [digest for some in digests.values() for digest in some]):
        if seen_dags is None or reference.dag_id in seen_dags:
            references.setdefault(reference.digest, []).append(reference)
    aliases = _grouped(select_in(conn, _ALIASES_OF, asset_alias_asset.c.asset_id, ids))
    watchers = _grouped(select_in(conn, _WATCHERS_OF, asset_watcher.c.digest, [row.digest for row in rows]))
    last = _last_events(conn, ids)
    return [
        AssetInfo(
            id=row.id, name=row.name, uri=row.uri, group=row.group_name, extra=row.extra, created_at=row.created_at,
            references=tuple(one for digest in digests[row.id] for one in references.get(digest, ())),
            aliases=tuple(AliasInfo(*one) for one in aliases.get(row.id, ())),
            watchers=tuple(WatcherInfo(*one) for one in dict.fromkeys(watchers.get(row.digest, ()))),
            last_event_id=last.get(row.id, (None, None))[0], last_event_at=last.get(row.id, (None, None))[1],
        )
        for row in rows
    ]  # fmt: skip


def _grouped(rows: "Iterable[Row[Any]]") -> dict[Any, list[tuple[Any, ...]]]:
    """Return the rows without their first value, by it."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(tuple(row[1:]))
    return found


def _last_events(conn: Connection, asset_ids: Sequence[int]) -> dict[int, tuple[int, datetime]]:
    """Return the id and the time of the last event of each asset."""
    newest = (
        sa.select(asset_event.c.id)
        .where(asset_event.c.asset_id == asset.c.id)
        .order_by(asset_event.c.created_at.desc(), asset_event.c.id.desc())
        .limit(1)
        .correlate(asset)
        .scalar_subquery()
    )
    query: sa.Select[Any] = sa.select(asset.c.id, asset_event.c.id, asset_event.c.created_at).join(
        asset_event, asset_event.c.id == newest
    )
    return {row[0]: (row[1], row[2]) for row in conn.execute(query.where(asset.c.id.in_(asset_ids)))}


def _of_events(wanted: EventFilter) -> sa.Select[Any]:
    query = _EVENTS.where(*wanted.name.holds_for(asset.c.name), *wanted.created_at.holds_for(asset_event.c.created_at))
    for name in ("asset_id", "source_dag_id", "source_run_id", "source_task_id", "source_map_index"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(asset_event.c[name] == value)
    if wanted.alias is not None:
        through = sa.select(asset_alias_event.c.event_id).join(
            asset_alias, asset_alias.c.id == asset_alias_event.c.alias_id
        )
        query = query.where(asset_event.c.id.in_(through.where(asset_alias.c.name == wanted.alias)))
    if (run := wanted.consumed_by) is not None:
        consumed = sa.exists().where(
            dag_run_asset_event.c.event_id == asset_event.c.id, dag_run.c.id == dag_run_asset_event.c.dag_run_id,
            dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id,
        )  # fmt: skip
        query = query.where(consumed)
    if wanted.seen_dags is not None:
        source = asset_event.c.source_dag_id
        query = query.where(sa.or_(source.is_(None), source.in_(wanted.seen_dags)))
    return query


def _event_infos(conn: Connection, rows: "Sequence[Row[Any]]", seen_dags: frozenset[str] | None) -> list[EventInfo]:
    ids = [row.id for row in rows]
    caused = _grouped(select_in(conn, _RUNS_OF, dag_run_asset_event.c.event_id, ids))
    aliases = _grouped(select_in(conn, store.ALIASES_OF_EVENTS, asset_alias_event.c.event_id, ids))
    found = []
    for row in rows:
        runs = [CausedRun(*one) for one in caused.get(row.id, ())]
        seen = tuple(one for one in runs if seen_dags is None or one.dag_id in seen_dags)
        through = tuple(name for (name,) in aliases.get(row.id, ()))
        found.append(as_struct(EventInfo, row, aliases=through, runs=seen))
    return found


def _of_queue(dag_id: str | None, asset_id: int | None, before: datetime | None) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if dag_id is not None:
        conditions.append(asset_dag_run_queue.c.dag_id == dag_id)
    if asset_id is not None:
        conditions.append(asset_event.c.asset_id == asset_id)
    if before is not None:
        conditions.append(asset_event.c.created_at < before)
    return conditions
