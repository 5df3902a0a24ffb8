"""Queries of assets and aliases, of the places where DAGs name them, of their events, and of the queue of events.

The transaction of an event adds a row to the queue (`asset_dag_run_queue`) for each DAG that waits for its asset; the
transaction that creates a run removes the rows that the run consumes, and adds them to `dag_run_asset_event`. So no
event is lost, and no DAG consumes one twice.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.serialization.schema import SerializedDag
from asynsched.store.rows import (
    MANY_ROWS,
    as_new,
    as_struct,
    count,
    fetch,
    fetch_in,
    fetch_one,
    length,
    n_fitting,
    near_names,
    portions,
    select_in,
    storable,
    to_json,
)
from asynsched.store.schema import (
    AssetReference,
    AssetRow,
    ListenerCall,
    asset,
    asset_alias,
    asset_alias_asset,
    asset_alias_event,
    asset_dag_run_queue,
    asset_event,
    asset_reference,
    dag,
    dag_run,
    dag_run_asset_event,
    listener_call,
)
from asynsched.store.statements import insert_ignoring
from asynsched.timetables.asset_condition import AliasForm, AssetCondition, AssetForm, AssetNames, PartitionEvent

Form = TypeVar("Form", AssetForm, AliasForm)
_ASSETS = sa.select(asset)
_ALL = _ASSETS.order_by(asset.c.name, asset.c.uri)
_ALIASES = sa.select(asset_alias.c.id, asset_alias.c.digest)
_ALIASES_OF_ASSETS = (
    sa.select(asset_alias_asset.c.asset_id, asset_alias.c.name)
    .join(asset_alias, asset_alias.c.id == asset_alias_asset.c.alias_id)
    .order_by(asset_alias.c.name)
)
ALIASES_OF_EVENTS = (
    sa.select(asset_alias_event.c.event_id, asset_alias.c.name)
    .join(asset_alias, asset_alias.c.id == asset_alias_event.c.alias_id)
    .order_by(asset_alias.c.name)
)


def digest_of(kind: str, *names: str) -> str:
    """Return the index key of an asset, an alias or a reference: 64 hexadecimal digits."""
    return sha256("\0".join((kind, *names)).encode("utf-8", "surrogatepass")).hexdigest()


def leaf_digest(leaf: AssetCondition) -> str:
    """Return the digest of an asset, an alias or a reference."""
    kind, name, uri = leaf_names(leaf)
    return digest_of(kind, name, uri) if kind == "asset" else digest_of(kind, name or uri)


def leaf_names(leaf: AssetCondition) -> tuple[str, str, str]:
    """Return the kind, the name and the URI of an asset, an alias or a reference."""
    if leaf.asset is not None:
        return "asset", leaf.asset.name, leaf.asset.uri
    if leaf.alias is not None:
        return "alias", leaf.alias.name, ""
    if leaf.asset_ref is None:
        raise ValueError("an expression of assets has no name of its own")
    return ("name", leaf.asset_ref.name, "") if leaf.asset_ref.name else ("uri", "", leaf.asset_ref.uri)


def waiting_digests(name: str, uri: str, aliases: Collection[str]) -> list[str]:
    """Return the digests of everything that may wait for an event of an asset through these aliases."""
    own = [digest_of("asset", name, uri), digest_of("name", name), digest_of("uri", uri)]
    return own + [digest_of("alias", alias) for alias in sorted(aliases)]


class Put(NamedTuple, Generic[Form]):
    """Assets or aliases that were stored: the row ids of all of them, and the forms of the new ones."""

    ids: dict[str, int]
    new: list[Form]


def put_assets(conn: Connection, assets: Iterable[AssetForm], now: datetime, *, describe: bool) -> Put[AssetForm]:
    """Store new assets, and `describe` known ones: update their group and extra. The row ids are by digest."""
    forms = {digest_of("asset", form.name, form.uri): form for form in assets}
    known = _by_digest(conn, forms)
    new = []
    for digest, form in sorted(forms.items()):
        before = known.get(digest)
        if before is None:
            values = {"digest": digest, "name": form.name, "uri": form.uri, "group_name": form.group}
            added = conn.execute(insert_ignoring(conn, asset), {**values, "extra": form.extra, "created_at": now})
            if added.rowcount:
                new.append(form)
        elif describe and (before.group_name, to_json(before.extra)) != (form.group, to_json(form.extra)):
            described = sa.update(asset).where(asset.c.digest == digest)
            conn.execute(described.values(group_name=form.group, extra=form.extra))
    if len(known) < len(forms):
        known = _by_digest(conn, forms)
    return Put({digest: row.id for digest, row in known.items()}, new)


def _by_digest(conn: Connection, digests: Iterable[str]) -> dict[str, AssetRow]:
    return {row.digest: row for row in fetch_in(conn, AssetRow, _ASSETS, asset.c.digest, list(digests))}


def put_aliases(conn: Connection, aliases: Iterable[AliasForm]) -> Put[AliasForm]:
    """Store new aliases. The row ids are by name."""
    forms = {digest_of("alias", form.name): form for form in aliases}
    new = []
    for digest, form in sorted(forms.items()):
        values = {"digest": digest, "name": form.name, "group_name": form.group}
        if conn.execute(insert_ignoring(conn, asset_alias), values).rowcount:
            new.append(form)
    rows = select_in(conn, _ALIASES, asset_alias.c.digest, list(forms))
    return Put({forms[row.digest].name: row.id for row in rows}, new)


ON_ASSET_CREATED, ON_ALIAS_CREATED = "on_asset_created", "on_asset_alias_created"
"""The hooks of listeners that hear of new assets and aliases."""


def _request_listeners(
    conn: Connection, heard: Collection[str], assets: Sequence[AssetForm], aliases: Sequence[AliasForm], now: datetime
) -> None:
    """Store the calls of listeners for new assets and aliases, if any listener hears of them."""
    new: dict[str, list[dict[str, Any]]] = {
        ON_ASSET_CREATED: [{"name": it.name, "uri": it.uri, "group": it.group, "extra": it.extra} for it in assets],
        ON_ALIAS_CREATED: [{"name": it.name, "group": it.group} for it in aliases],
    }
    for event, subjects in new.items():
        for some in portions(subjects) if event in heard else ():
            conn.execute(listener_call.insert(), as_new(ListenerCall(event=event, subjects=some, created_at=now)))


def link_alias(conn: Connection, alias_id: int, asset_id: int) -> None:
    """Record that an alias stands for an asset."""
    conn.execute(insert_ignoring(conn, asset_alias_asset), {"alias_id": alias_id, "asset_id": asset_id})


def find_asset(conn: Connection, *, name: str = "", uri: str = "") -> AssetRow | None:
    """Return the newest asset of a name, or of a URI, or of both; None if none exists."""
    if name and uri:
        is_it = asset.c.digest == digest_of("asset", name, uri)
    else:
        is_it = asset.c.name == name if name else asset.c.uri == uri
    return fetch_one(conn, AssetRow, sa.select(asset).where(is_it).order_by(asset.c.id.desc()).limit(1))


def get_asset(conn: Connection, name_or_uri: str) -> AssetRow:
    """Return an asset by its name or its URI. Raises NotFound with the nearest names."""
    found = find_asset(conn, name=name_or_uri) or find_asset(conn, uri=name_or_uri)
    if found is None:
        raise NotFound("asset", name_or_uri, near_names(name_or_uri, (row.name for row in conn.execute(_ALL))))
    return found


def aliases_of(conn: Connection, asset_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the names of the aliases that stand for assets, by the assets' row ids."""
    found: dict[int, list[str]] = {asset_id: [] for asset_id in asset_ids}
    for row in select_in(conn, _ALIASES_OF_ASSETS, asset_alias_asset.c.asset_id, sorted(found)):
        found[row.asset_id].append(row.name)
    return found


def assets_of_alias(conn: Connection, name: str) -> list[AssetRow]:
    """Return the assets that an alias stands for, by name."""
    is_alias = asset_alias.c.digest == digest_of("alias", name)
    linked = sa.select(asset_alias_asset.c.asset_id).join(asset_alias, asset_alias.c.id == asset_alias_asset.c.alias_id)
    return fetch(conn, AssetRow, _ALL.where(asset.c.id.in_(linked.where(is_alias))))


def list_aliases(conn: Connection) -> list[tuple[str, str, list[str]]]:
    """Return the name and the group of each alias, and the names of the assets that it stands for."""
    query = (
        sa.select(asset_alias.c.name, asset_alias.c.group_name, asset.c.name.label("asset_name"))
        .join(asset_alias_asset, asset_alias_asset.c.alias_id == asset_alias.c.id, isouter=True)
        .join(asset, asset.c.id == asset_alias_asset.c.asset_id, isouter=True)
        .order_by(asset_alias.c.name, asset.c.name)
    )
    found: dict[tuple[str, str], list[str]] = {}
    for row in conn.execute(query):
        assets = found.setdefault((row.name, row.group_name), [])
        if row.asset_name is not None:
            assets.append(row.asset_name)
    return [(*names, assets) for names, assets in found.items()]


class AssetEventRow(Struct, frozen=True):
    """An update of an asset, by a try or from outside.

    Attributes:
        name: Of the asset; empty where only its URI is known.
        uri: Of the asset; empty where only its name is known.
        aliases: The aliases through which it was updated.
        group: Of an asset that is new.
        asset_extra: Describes an asset that is new.
        token: The try that updated it; None from outside.
        ordinal: Its place among the try's events.
        listens: Whether listeners hear of an asset that is new.
    """

    name: str
    uri: str
    extra: dict[str, Any]
    created_at: datetime
    aliases: tuple[str, ...] = ()
    group: str = "asset"
    asset_extra: dict[str, Any] = {}
    dag_run_id: int = 0
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str = ""
    map_index: int = -1
    token: str | None = None
    ordinal: int = 0
    partition_key: str | None = None
    partition_date: datetime | None = None
    listens: bool = False


class AssetEvent(Struct, frozen=True):
    """An update of an asset. One from outside has no source."""

    id: int
    name: str
    uri: str
    asset_extra: dict[str, Any]
    created_at: datetime
    extra: dict[str, Any]
    source_dag_id: str | None
    source_run_id: str | None
    source_task_id: str | None
    source_map_index: int
    partition_key: str | None = None
    aliases: list[str] = []


class EventFilter(Struct, frozen=True):
    """Events of one asset or alias, or of all; empty and None mean no filter.

    `after` and `before` are exclusive. `run` is the row id of a run: only the events that triggered it.
    """

    name: str = ""
    uri: str = ""
    alias: str = ""
    after: datetime | None = None
    before: datetime | None = None
    run: int | None = None


ANY_EVENT = EventFilter()


class EventsLeft(NamedTuple):
    """The place after which the next part of some events begins; `limit` is the number still wanted, None for all."""

    created_at: datetime
    id: int
    limit: int | None


_EVENTS = sa.select(
    asset_event.c.id, asset.c.name, asset.c.uri, asset.c.extra.label("asset_extra"), asset_event.c.created_at,
    asset_event.c.extra, asset_event.c.source_dag_id, asset_event.c.source_run_id, asset_event.c.source_task_id,
    asset_event.c.source_map_index, asset_event.c.partition_key,
).join(asset, asset.c.id == asset_event.c.asset_id)  # fmt: skip
_SIZES = _EVENTS.with_only_columns(
    asset_event.c.id, asset_event.c.created_at, (length(asset_event.c.extra) + length(asset.c.extra)).label("size")
)


def record_events(conn: Connection, events: Iterable[AssetEventRow]) -> list[str]:
    """Store updates of assets, and queue them for the DAGs that these assets schedule, which are returned.

    Events of a reference to an undefined asset are left out, as in Airflow.
    """
    events = [_storable(event) for event in events]
    if not events:
        return []
    names = _Names(conn, events)
    waiting: dict[tuple[Any, ...], list[str]] = {}
    queued: list[dict[str, Any]] = []
    for event in events:
        found = names.asset_of(event)
        if found is None:
            continue
        asset_id, name, uri = found
        values = {
            "asset_id": asset_id, "created_at": event.created_at, "extra": event.extra,
            "source_dag_id": event.dag_id, "source_run_id": event.run_id, "source_task_id": event.task_id or None,
            "source_map_index": event.map_index, "token": event.token, "ordinal": event.ordinal,
            "partition_key": event.partition_key, "partition_date": event.partition_date,
        }  # fmt: skip
        event_id = conn.scalar(insert_ignoring(conn, asset_event).returning(asset_event.c.id), values)
        if event_id is None:
            continue  # a batch that is applied again
        for alias_id in sorted(names.alias_ids[alias] for alias in event.aliases):
            link_alias(conn, alias_id, asset_id)
            conn.execute(insert_ignoring(conn, asset_alias_event), {"alias_id": alias_id, "event_id": event_id})
        of_event = (name, uri, event.aliases, event.partition_key is not None)
        if of_event not in waiting:
            waiting[of_event] = awaiting_dag_ids(conn, *of_event)
        queued += [
            {"dag_id": dag_id, "event_id": event_id, "partition_key": "", "is_examined": False}
            for dag_id in waiting[of_event]
        ]
    if queued:
        conn.execute(insert_ignoring(conn, asset_dag_run_queue), queued)
    return sorted({row["dag_id"] for row in queued})


def _storable(event: AssetEventRow) -> AssetEventRow:
    """Return an event with names that every database can store: a task may have made them up."""
    names = {field: storable(getattr(event, field)) for field in ("name", "uri", "group")}
    return msgspec.structs.replace(event, **names)


class _Names:
    """The assets and aliases of some events. New ones are stored first, in key order, so no two schedulers deadlock."""

    def __init__(self, conn: Connection, events: list[AssetEventRow]) -> None:
        self._conn = conn
        now = events[0].created_at
        forms = [AssetForm(it.name, it.uri, it.group, it.asset_extra) for it in events if it.name and it.uri]
        self._asset_ids, new = put_assets(conn, forms, now, describe=False)
        self.alias_ids, _ = put_aliases(conn, [AliasForm(alias) for event in events for alias in event.aliases])
        if new:
            heard = {(event.name, event.uri) for event in events if event.listens}
            _request_listeners(conn, [ON_ASSET_CREATED], [it for it in new if (it.name, it.uri) in heard], [], now)

    def asset_of(self, event: AssetEventRow) -> tuple[int, str, str] | None:
        """Return the row id, the name and the URI of an event's asset; None if the asset is undefined."""
        if event.name and event.uri:
            return self._asset_ids[digest_of("asset", event.name, event.uri)], event.name, event.uri
        found = find_asset(self._conn, name=event.name, uri=event.uri)
        return None if found is None else (found.id, found.name, found.uri)


def consumed_events(conn: Connection, dag_run_id: int) -> list[AssetEvent]:
    """Return the events that triggered a run, oldest first."""
    return list_events(conn, EventFilter(run=dag_run_id))


def list_events(
    conn: Connection, wanted: EventFilter = ANY_EVENT, *, ascending: bool = True, limit: int | None = None
) -> list[AssetEvent]:
    """Return events in order of time."""
    statement = _matching(conn, _EVENTS, wanted).order_by(*_order(ascending))
    return _events(conn, conn.execute(statement if limit is None else statement.limit(limit)).all())


def some_events(
    conn: Connection,
    wanted: EventFilter,
    *,
    ascending: bool = True,
    limit: int | None = None,
    left: EventsLeft | None = None,
) -> tuple[list[AssetEvent], EventsLeft | None]:
    """Return events in order of time, as many as one answer should hold, and where the next part begins.

    The place is None if no events follow. `left`: the value that the previous part returned, with its place and limit.
    """
    statement = _matching(conn, _SIZES, wanted).order_by(*_order(ascending))
    if left is not None:
        limit = left.limit
        statement = statement.where(_is_after(left, ascending))
    at_most = MANY_ROWS if limit is None else max(0, min(limit, MANY_ROWS))
    rows = conn.execute(statement.limit(at_most)).all()
    chosen = rows[: n_fitting(row.size for row in rows)]
    chosen_ids = [row.id for row in chosen]
    found = conn.execute(_EVENTS.where(asset_event.c.id.in_(chosen_ids)).order_by(*_order(ascending))).all()
    limit = None if limit is None else limit - len(chosen)
    is_last = not chosen or limit == 0 or len(chosen) == len(rows) < at_most
    return _events(conn, found), None if is_last else EventsLeft(chosen[-1].created_at, chosen[-1].id, limit)


def _matching(conn: Connection, statement: sa.Select[Any], wanted: EventFilter) -> sa.Select[Any]:
    if wanted.name or wanted.uri:
        named = {asset.c.name: wanted.name, asset.c.uri: wanted.uri}
        ids = sa.select(asset.c.id).where(*(column == text for column, text in named.items() if text))
        # By their ids, so that the index of an asset's events returns them in order.
        statement = statement.where(asset_event.c.asset_id.in_(conn.scalars(ids).all()))
    if wanted.alias:
        of_alias = sa.and_(asset_alias.c.id == asset_alias_event.c.alias_id, asset_alias.c.name == wanted.alias)
        statement = statement.join(asset_alias_event, asset_alias_event.c.event_id == asset_event.c.id)
        statement = statement.join(asset_alias, of_alias)
    if wanted.after is not None:
        statement = statement.where(asset_event.c.created_at > wanted.after)
    if wanted.before is not None:
        statement = statement.where(asset_event.c.created_at < wanted.before)
    if wanted.run is not None:
        statement = statement.join(dag_run_asset_event, dag_run_asset_event.c.event_id == asset_event.c.id)
        statement = statement.where(dag_run_asset_event.c.dag_run_id == wanted.run)
    return statement


def _order(ascending: bool) -> tuple[sa.ColumnElement[Any], ...]:
    order = (asset_event.c.created_at, asset_event.c.id)
    return order if ascending else tuple(column.desc() for column in order)


def _is_after(left: EventsLeft, ascending: bool) -> sa.ColumnElement[bool]:
    at, event_id = asset_event.c.created_at, asset_event.c.id
    if ascending:
        return (at >= left.created_at) & ((at > left.created_at) | (event_id > left.id))
    return (at <= left.created_at) & ((at < left.created_at) | (event_id < left.id))


def count_old_events(conn: Connection, *, before: datetime) -> int:
    """Count the events before an instant that wait for no DAG, and triggered no run that is active or ended later."""
    return count(conn, _old(before))


def delete_old_events(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` of those events, the oldest first. Returns how many."""
    old = _old(before).order_by(asset_event.c.id).limit(limit)
    return conn.execute(sa.delete(asset_event).where(asset_event.c.id.in_(old))).rowcount


def _old(before: datetime) -> sa.Select[Any]:
    is_kept = sa.exists().where(
        dag_run_asset_event.c.event_id == asset_event.c.id,
        dag_run.c.id == dag_run_asset_event.c.dag_run_id,
        dag_run.c.ended_at.is_(None) | (dag_run.c.ended_at >= before),
    )
    is_queued = sa.exists().where(asset_dag_run_queue.c.event_id == asset_event.c.id)
    return sa.select(asset_event.c.id).where(
        asset_event.c.created_at < before, ~is_queued, ~is_kept.correlate(asset_event)
    )


def _events(conn: Connection, rows: Sequence[Any]) -> list[AssetEvent]:
    aliases: dict[int, list[str]] = {}
    for alias in select_in(conn, ALIASES_OF_EVENTS, asset_alias_event.c.event_id, [row.id for row in rows]):
        aliases.setdefault(alias.event_id, []).append(alias.name)
    return [as_struct(AssetEvent, row, aliases=aliases.get(row.id, [])) for row in rows]


MAX_CONSUMED = 10_000
"""The largest number of events that one run consumes: the newest of the waiting ones."""
MAX_WAITING = 11_000
"""When more events wait for a DAG, some that no run would consume are dropped."""


class PendingEvent(NamedTuple):
    """An event that waits for a DAG; `asset` has the aliases that stand for its asset."""

    event_id: int
    asset: AssetNames
    created_at: datetime


class ArrivedAsset(NamedTuple):
    """An asset with events that wait for a DAG: how many, and the newest of them."""

    asset: AssetNames
    created_at: datetime
    n_events: int
    newest_id: int


_WAITING = (
    sa.select(asset_reference.c.dag_id)
    .distinct()
    .join(dag, dag.c.dag_id == asset_reference.c.dag_id)
    .where(
        asset_reference.c.digest.in_(sa.bindparam("digests", expanding=True)),
        asset_reference.c.role == "schedule",
        dag.c.is_active,
        ~dag.c.is_paused,
        dag.c.partitions.is_not(None) == sa.bindparam("has_key"),
    )
    .order_by(asset_reference.c.dag_id)
)
_QUEUED = (
    sa.select(asset.c.id.label("asset_id"), asset.c.name, asset.c.uri)
    .select_from(asset_dag_run_queue)
    .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
    .join(asset, asset.c.id == asset_event.c.asset_id)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("dag_id"))
)
_IN_ORDER = _QUEUED.add_columns(asset_dag_run_queue.c.event_id, asset_event.c.created_at).order_by(
    asset_dag_run_queue.c.event_id
)
_PENDING = _IN_ORDER.with_for_update(of=asset_dag_run_queue)
_PARTITIONED = _IN_ORDER.add_columns(
    asset_dag_run_queue.c.partition_key.label("run_key"), asset_event.c.partition_key, asset_event.c.partition_date
)
_LOCKED_PARTITIONED = _PARTITIONED.with_for_update(of=asset_dag_run_queue)
_ARRIVED = (
    _QUEUED.add_columns(
        sa.func.max(asset_event.c.created_at).label("created_at"),
        sa.func.count().label("n_events"),
        sa.func.max(asset_event.c.id).label("newest_id"),
    )
    .group_by(asset.c.id, asset.c.name, asset.c.uri)
    .order_by(sa.func.min(asset_event.c.id))
)


_OTHER = asset_dag_run_queue.alias()
_EXAMINED = (
    sa.update(asset_dag_run_queue)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("of_dag"), ~asset_dag_run_queue.c.is_examined)
    .values(is_examined=True)
)
_UNEXAMINED_AGAIN = (
    sa.update(asset_dag_run_queue)
    .where(
        asset_dag_run_queue.c.dag_id == sa.bindparam("of_dag"),
        asset_dag_run_queue.c.event_id
        == sa.select(sa.func.min(_OTHER.c.event_id)).where(_OTHER.c.dag_id == sa.bindparam("of_dag")).scalar_subquery(),
    )
    .values(is_examined=False)
)
_UNEXAMINED = (
    sa.select(asset_dag_run_queue.c.dag_id)
    .distinct()
    .where(sa.text("NOT asset_dag_run_queue.is_examined"))
    .order_by(asset_dag_run_queue.c.dag_id)
)


def awaiting_dag_ids(conn: Connection, name: str, uri: str, aliases: Collection[str], has_key: bool) -> list[str]:
    """Return the active, unpaused DAGs that wait for events of an asset through these aliases.

    An event with a partition key counts only for DAGs that are scheduled by partitions, others for the other DAGs.
    """
    return list(conn.scalars(_WAITING, {"digests": waiting_digests(name, uri, aliases), "has_key": has_key}))


def arrived_assets(conn: Connection, dag_id: str) -> list[ArrivedAsset]:
    """Return the assets with events that wait for a run of a DAG."""
    rows = conn.execute(_ARRIVED, {"dag_id": dag_id}).all()
    names = _names_of(conn, rows)
    return [ArrivedAsset(names[row.asset_id], row.created_at, row.n_events, row.newest_id) for row in rows]


def pending_events(conn: Connection, dag_id: str) -> list[PendingEvent]:
    """Return the events that wait for a run of a DAG, oldest first.

    No other transaction can consume them until this one ends, which must be a writing one.
    """
    rows = conn.execute(_PENDING, {"dag_id": dag_id}).all()
    names = _names_of(conn, rows)
    return [PendingEvent(row.event_id, names[row.asset_id], row.created_at) for row in rows]


def partition_events(conn: Connection, dag_id: str, *, is_read_only: bool = False) -> list[PartitionEvent]:
    """Return the events of partitions that wait for runs of a DAG, as `pending_events` does; or only look at them."""
    rows = conn.execute(_PARTITIONED if is_read_only else _LOCKED_PARTITIONED, {"dag_id": dag_id}).all()
    names = _names_of(conn, rows)
    return [
        PartitionEvent(
            row.event_id, names[row.asset_id], row.created_at, row.partition_key or "", row.partition_date, row.run_key
        )
        for row in rows
    ]


def map_events(conn: Connection, dag_id: str, mapped: Iterable[PartitionEvent], unmapped: Iterable[int]) -> None:
    """Store for which runs of a DAG events of partitions count, instead of those that were not mapped yet.

    They count as examined: this examination decides about them.
    """
    values = [
        {"dag_id": dag_id, "event_id": event.event_id, "partition_key": event.run_key, "is_examined": True}
        for event in mapped
    ]
    if values:
        conn.execute(insert_ignoring(conn, asset_dag_run_queue), values)
    _forget(conn, dag_id, unmapped, partition_key="")


def drop_partitions(conn: Connection, dag_id: str) -> None:
    """Remove all events that wait for a DAG: its partition mappers have changed, so they would count otherwise."""
    _forget(conn, dag_id, [event.event_id for event in pending_events(conn, dag_id)])


def _names_of(conn: Connection, rows: Sequence[Any]) -> dict[int, AssetNames]:
    assets = {row.asset_id: row for row in rows}
    aliases = aliases_of(conn, assets.keys())
    return {key: AssetNames(row.name, row.uri, frozenset(aliases[key])) for key, row in assets.items()}


def drop_surplus(conn: Connection, dag_id: str, arrived: Collection[ArrivedAsset]) -> None:
    """Drop the oldest events that wait for a DAG if more wait than a run would consume; each asset keeps its newest."""
    n_events = sum(item.n_events for item in arrived)
    if n_events > MAX_WAITING:
        kept = {item.newest_id for item in arrived}
        query = (
            sa.select(asset_dag_run_queue.c.event_id)
            .where(asset_dag_run_queue.c.dag_id == dag_id)
            .order_by(asset_dag_run_queue.c.event_id)
            .limit(min(n_events - MAX_CONSUMED, MAX_CONSUMED))
            .with_for_update(skip_locked=True)
        )
        oldest = conn.scalars(query)
        _forget(conn, dag_id, [event_id for event_id in oldest if event_id not in kept])


def drop_surplus_partitions(conn: Connection, dag_id: str, waiting: Collection[PartitionEvent]) -> None:
    """Drop the oldest of all events of partitions that wait for a DAG, each for one of its runs, if far too many do."""
    if len(waiting) > MAX_WAITING:
        key = (asset_dag_run_queue.c.event_id, asset_dag_run_queue.c.partition_key)
        oldest = sorted((event.event_id, event.run_key) for event in waiting)[: len(waiting) - MAX_CONSUMED]
        for some in portions(oldest):
            is_gone = (asset_dag_run_queue.c.dag_id == dag_id, sa.tuple_(*key).in_(some))
            conn.execute(sa.delete(asset_dag_run_queue).where(*is_gone))


def mark_examined(conn: Connection, dag_id: str) -> None:
    """Record that the events that wait for a DAG are being examined; to be called before they are read.

    An event that another transaction stores after that stays unexamined, whether it is among those that are read or
    not.
    """
    conn.execute(_EXAMINED, {"of_dag": dag_id})


def mark_unexamined(conn: Connection, dag_id: str) -> None:
    """Record that a DAG with waiting events is to be examined again. One of the events shows that."""
    conn.execute(_UNEXAMINED_AGAIN, {"of_dag": dag_id})


def unexamined_dag_ids(conn: Connection) -> list[str]:
    """Return the DAGs with waiting events that no scheduler has examined."""
    return list(conn.scalars(_UNEXAMINED))


def waiting_dag_ids(conn: Connection, asset_id: int) -> list[str]:
    """Return the DAGs for which events of an asset wait."""
    query = (
        sa.select(asset_dag_run_queue.c.dag_id)
        .distinct()
        .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
        .where(asset_event.c.asset_id == asset_id)
        .order_by(asset_dag_run_queue.c.dag_id)
    )
    return list(conn.scalars(query))


def consume(
    conn: Connection,
    dag_run_id: int,
    dag_id: str,
    events: Iterable[PendingEvent | PartitionEvent],
    *,
    partition_key: str | None = None,
) -> None:
    """Record the events that triggered a new run, perhaps of a partition, and remove them from the queue."""
    ids = sorted({event.event_id for event in events})
    values = [{"dag_run_id": dag_run_id, "event_id": event_id} for event_id in ids[-MAX_CONSUMED:]]
    conn.execute(insert_ignoring(conn, dag_run_asset_event), values)
    _forget(conn, dag_id, ids, partition_key=partition_key)


def drop_unawaited(conn: Connection, dag_id: str, leaves: Collection[AssetCondition]) -> None:
    """Remove from a DAG's queue the events that none of these leaves of its schedule waits for."""
    pending = pending_events(conn, dag_id)
    gone = [event.event_id for event in pending if not any(leaf.names(event.asset) for leaf in leaves)]
    _forget(conn, dag_id, gone)


def _forget(conn: Connection, dag_id: str, event_ids: Iterable[int], *, partition_key: str | None = None) -> None:
    for some in portions(list(event_ids)):
        is_gone = [asset_dag_run_queue.c.dag_id == dag_id, asset_dag_run_queue.c.event_id.in_(some)]
        if partition_key is not None:
            is_gone.append(asset_dag_run_queue.c.partition_key == partition_key)
        conn.execute(sa.delete(asset_dag_run_queue).where(*is_gone))


SCHEDULE, INLET, OUTLET = "schedule", "inlet", "outlet"
_REFERENCES = (
    sa.select(asset_reference)
    .join(dag, dag.c.dag_id == asset_reference.c.dag_id)
    .where(dag.c.is_active)
    .order_by(asset_reference.c.role, asset_reference.c.dag_id, asset_reference.c.task_id)
)


def store_references(conn: Connection, found: SerializedDag, now: datetime, *, is_new: bool) -> None:
    """Store a (new) DAG's references to assets, and the new assets; drop events that it no longer waits for."""
    named = list(_named(found))
    if is_new and not named:
        return
    _, assets = put_assets(conn, (leaf.asset for *_, leaf in named if leaf.asset is not None), now, describe=True)
    _, aliases = put_aliases(conn, (leaf.alias for *_, leaf in named if leaf.alias is not None))
    _request_listeners(conn, found.callbacks, assets, aliases, now)
    wanted = {(role, task_id, leaf_digest(leaf)): leaf_names(leaf) for role, task_id, leaf in named}
    key = (asset_reference.c.role, asset_reference.c.task_id, asset_reference.c.digest)
    is_of_dag = asset_reference.c.dag_id == found.dag_id
    known = {tuple(row) for row in conn.execute(sa.select(*key).where(is_of_dag))}
    gone = sorted(known - wanted.keys())
    for some in portions(gone):
        conn.execute(sa.delete(asset_reference).where(is_of_dag, sa.tuple_(*key).in_(some)))
    for role, task_id, digest in sorted(wanted.keys() - known):
        names = wanted[role, task_id, digest]
        row = AssetReference(found.dag_id, role, task_id, digest, *names, now)
        conn.execute(asset_reference.insert(), asdict(row))
    if any(role == SCHEDULE for role, *_ in gone):
        drop_unawaited(conn, found.dag_id, [leaf for role, _, leaf in named if role == SCHEDULE])


def _named(found: SerializedDag) -> Iterator[tuple[str, str, AssetCondition]]:
    """Yield the role, the task_id and the leaf of each reference."""
    if found.asset_condition is not None:
        for leaf in found.asset_condition.leaves():
            yield SCHEDULE, "", leaf
    for task in found.tasks:
        yield from ((INLET, task.task_id, leaf) for leaf in task.inlets)
        yield from ((OUTLET, task.task_id, leaf) for leaf in task.outlets)


def references_to(conn: Connection, digests: Iterable[str]) -> list[AssetReference]:
    """Return the references of active DAGs to these digests."""
    return fetch(conn, AssetReference, _REFERENCES.where(asset_reference.c.digest.in_(list(digests))))
