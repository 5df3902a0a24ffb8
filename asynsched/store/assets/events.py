"""Queries of `asset_event`: updates of assets, by tasks and from outside."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.assets.names import digest_of, find_asset, link_alias, put_aliases, put_assets
from asynsched.store.assets.queue import queue_event
from asynsched.store.rows import MANY_ROWS, from_json, length, n_fitting, storable, to_json
from asynsched.store.runs.changes import AssetEventRow
from asynsched.store.schema import (
    asset,
    asset_alias,
    asset_alias_event,
    asset_dag_run_queue,
    asset_event,
    dag_run,
    dag_run_asset_event,
)
from asynsched.store.statements import insert_ignoring
from asynsched.timetables.asset_condition import AliasForm, AssetForm


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
    aliases: list[str] = []


class EventFilter(Struct, frozen=True):
    """Events of one asset or alias, or of all; empty and None mean no filter.

    `after` and `before` are not part of what is wanted. With `run`, a row id, only those that triggered that run.
    """

    name: str = ""
    uri: str = ""
    alias: str = ""
    after: datetime | None = None
    before: datetime | None = None
    run: int | None = None


class EventsLeft(NamedTuple):
    """Where the next part of some events begins: after this one; and how many are wanted, None for all."""

    created_at: datetime
    id: int
    limit: int | None


_EVENTS = sa.select(
    asset_event.c.id, asset.c.name, asset.c.uri, asset.c.extra.label("asset_extra"), asset_event.c.created_at,
    asset_event.c.extra, asset_event.c.source_dag_id, asset_event.c.source_run_id, asset_event.c.source_task_id,
    asset_event.c.source_map_index,
).join(asset, asset.c.id == asset_event.c.asset_id)  # fmt: skip
_SIZES = sa.select(
    asset_event.c.id,
    asset_event.c.created_at,
    (length(asset_event.c.extra) + length(asset.c.extra)).label("size"),
).join(asset, asset.c.id == asset_event.c.asset_id)
_CONSUMED = (
    _EVENTS.join(dag_run_asset_event, dag_run_asset_event.c.event_id == asset_event.c.id)
    .where(dag_run_asset_event.c.dag_run_id == sa.bindparam("run"))
    .order_by(asset_event.c.created_at, asset_event.c.id)
)
_ALIASES = (
    sa.select(asset_alias_event.c.event_id, asset_alias.c.name)
    .join(asset_alias, asset_alias.c.id == asset_alias_event.c.alias_id)
    .where(asset_alias_event.c.event_id.in_(sa.bindparam("events", expanding=True)))
    .order_by(asset_alias.c.name)
)
_LAST = sa.select(asset_event.c.asset_id, sa.func.max(asset_event.c.created_at).label("last")).group_by(
    asset_event.c.asset_id
)
_IS_KEPT = (
    sa.exists()
    .where(
        dag_run_asset_event.c.event_id == asset_event.c.id,
        dag_run.c.id == dag_run_asset_event.c.dag_run_id,
        sa.or_(dag_run.c.ended_at.is_(None), dag_run.c.ended_at >= sa.bindparam("before")),
    )
    .correlate(asset_event)
)
_OLD = sa.select(asset_event.c.id).where(
    asset_event.c.created_at < sa.bindparam("before"),
    ~sa.exists().where(asset_dag_run_queue.c.event_id == asset_event.c.id),
    ~_IS_KEPT,
)
_DELETE = sa.delete(asset_event).where(asset_event.c.id.in_(sa.bindparam("keys", expanding=True)))


def record_events(conn: Connection, events: Iterable[AssetEventRow]) -> list[str]:
    """Store updates of assets, and let them wait for the DAGs that are scheduled by these.

    An event of a reference to an asset that nobody has defined is left out, as in Airflow.

    Returns:
        The DAGs that now have something to be examined.
    """
    events = [_storable(event) for event in events]
    if not events:
        return []
    names = _Names(conn, events)
    dag_ids: dict[str, None] = {}
    for event in events:
        found = names.asset_of(event)
        if found is None:
            continue
        asset_id, name, uri = found
        values = {
            "asset_id": asset_id, "created_at": event.created_at, "extra": to_json(event.extra),
            "source_dag_id": event.dag_id, "source_run_id": event.run_id, "source_task_id": event.task_id or None,
            "source_map_index": event.map_index, "token": event.token, "ordinal": event.ordinal,
        }  # fmt: skip
        event_id = conn.scalar(insert_ignoring(conn, asset_event).returning(asset_event.c.id), values)
        if event_id is None:
            continue  # a batch that is applied again
        for alias_id in sorted(names.alias_ids[alias] for alias in event.aliases):
            link_alias(conn, alias_id, asset_id)
            conn.execute(insert_ignoring(conn, asset_alias_event), {"alias_id": alias_id, "event_id": event_id})
        dag_ids.update(dict.fromkeys(queue_event(conn, event_id, name, uri, event.aliases)))
    return sorted(dag_ids)


def _storable(event: AssetEventRow) -> AssetEventRow:
    """Return an event whose names every database can keep: a task may have made them up."""
    names = {field: storable(getattr(event, field)) for field in ("name", "uri", "group")}
    return msgspec.structs.replace(event, **names)


class _Names:
    """The assets and aliases of some events. New ones are stored first, in key order: no ring of waiting."""

    def __init__(self, conn: Connection, events: list[AssetEventRow]) -> None:
        self._conn = conn
        forms = [AssetForm(it.name, it.uri, it.group, it.asset_extra) for it in events if it.name and it.uri]
        self._asset_ids = put_assets(conn, forms, events[0].created_at, describe=False)
        self.alias_ids = put_aliases(conn, [AliasForm(alias) for event in events for alias in event.aliases])

    def asset_of(self, event: AssetEventRow) -> tuple[int, str, str] | None:
        """Return the row id, the name and the URI of an event's asset; None when nobody has defined it."""
        if event.name and event.uri:
            return self._asset_ids[digest_of("asset", event.name, event.uri)], event.name, event.uri
        found = find_asset(self._conn, name=event.name, uri=event.uri)
        return None if found is None else (found.id, found.name, found.uri)


def consumed_events(conn: Connection, dag_run_id: int) -> list[AssetEvent]:
    """Return the events that triggered a run, oldest first."""
    return _events(conn, conn.execute(_CONSUMED, {"run": dag_run_id}).all())


def list_events(
    conn: Connection,
    *,
    name: str = "",
    uri: str = "",
    alias: str = "",
    after: datetime | None = None,
    before: datetime | None = None,
    ascending: bool = True,
    limit: int | None = None,
) -> list[AssetEvent]:
    """Return events, of one asset or alias or of all, within bounds that are not part of it, in order of time."""
    statement = _matching(conn, _EVENTS, EventFilter(name, uri, alias, after, before)).order_by(*_order(ascending))
    return _events(conn, conn.execute(statement if limit is None else statement.limit(limit)).all())


def some_events(
    conn: Connection,
    wanted: EventFilter,
    *,
    ascending: bool = True,
    limit: int | None = None,
    left: EventsLeft | None = None,
) -> tuple[list[AssetEvent], EventsLeft | None]:
    """Return events in order of time, as many as one answer should hold.

    Args:
        limit: How many are wanted; None for all.
        left: Where to begin, and how many are wanted from there on, as an earlier part has said.

    Returns:
        The events, and where the next part begins; None where these were the last.
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
        # By their ids: so the index of an asset's events gives them in order.
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


def last_event_times(conn: Connection) -> dict[int, datetime]:
    """Return when each asset that has events was last updated, by the asset's row id."""
    return {row.asset_id: row.last for row in conn.execute(_LAST)}


def count_old_events(conn: Connection, *, before: datetime) -> int:
    """Return how many events of before an instant wait for no DAG, and triggered no run that is active or newer."""
    n: int = conn.execute(sa.select(sa.func.count()).select_from(_OLD.subquery()), {"before": before}).scalar_one()
    return n


def delete_old_events(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` of those events, the oldest first. Returns how many."""
    oldest = _OLD.order_by(asset_event.c.id).limit(sa.bindparam("limit"))
    keys = list(conn.scalars(oldest, {"before": before, "limit": limit}))
    if keys:
        conn.execute(_DELETE, {"keys": keys})
    return len(keys)


def _events(conn: Connection, rows: Sequence[Any]) -> list[AssetEvent]:
    aliases: dict[int, list[str]] = {}
    if rows:
        for alias in conn.execute(_ALIASES, {"events": [row.id for row in rows]}):
            aliases.setdefault(alias.event_id, []).append(alias.name)
    return [
        AssetEvent(
            **{
                **row._mapping,  # noqa: SLF001 - public in spite of its name
                "asset_extra": from_json(row.asset_extra),
                "extra": from_json(row.extra),
                "aliases": aliases.get(row.id, []),
            }
        )
        for row in rows
    ]
