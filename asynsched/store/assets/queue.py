"""Which DAGs wait for which assets, and the events that wait for a DAG until a run consumes them.

The tables are `asset_reference`, which also tells what tasks read and update, `asset_dag_run_queue` and
`dag_run_asset_event`. A row of the queue is made in the transaction of its event, and goes in the transaction that
creates the run which consumes it: no event is lost, and no DAG consumes one twice.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.serialization.schema import SerializedDag
from asynsched.store.assets.names import leaf_digest, leaf_names, put_aliases, put_assets, waiting_digests
from asynsched.store.schema import (
    asset,
    asset_alias,
    asset_alias_asset,
    asset_dag_run_queue,
    asset_event,
    asset_reference,
    dag,
    dag_run_asset_event,
)
from asynsched.store.statements import insert_ignoring
from asynsched.timetables.asset_condition import AssetCondition, AssetNames

SCHEDULE, INLET, OUTLET = "schedule", "inlet", "outlet"


class AssetReference(NamedTuple):
    """One place where a DAG names an asset, an alias or a reference; `task_id` is empty for its schedule."""

    dag_id: str
    role: str
    task_id: str
    kind: str
    name: str
    uri: str


_OF_DAG = sa.select(asset_reference).where(asset_reference.c.dag_id == sa.bindparam("dag_id"))
_INSERT = asset_reference.insert()
_DELETE = sa.delete(asset_reference).where(
    asset_reference.c.dag_id == sa.bindparam("of_dag"),
    asset_reference.c.role == sa.bindparam("of_role"),
    asset_reference.c.task_id == sa.bindparam("of_task"),
    asset_reference.c.digest == sa.bindparam("of_digest"),
)
_ALL = (
    sa.select(asset_reference.c.digest, *(asset_reference.c[name] for name in AssetReference._fields))
    .join(dag, dag.c.dag_id == asset_reference.c.dag_id)
    .where(dag.c.is_active)
    .order_by(asset_reference.c.role, asset_reference.c.dag_id, asset_reference.c.task_id)
)
_TO = _ALL.where(asset_reference.c.digest.in_(sa.bindparam("digests", expanding=True)))


def store_references(conn: Connection, found: SerializedDag, now: datetime, *, is_new: bool = False) -> None:
    """Take over which assets a DAG names; store those that are new, and forget events that it waits for no more.

    Args:
        is_new: The DAG was not known before.
    """
    named = list(_named(found))
    if is_new and not named:
        return
    put_assets(conn, (leaf.asset for *_, leaf in named if leaf.asset is not None), now, describe=True)
    put_aliases(conn, (leaf.alias for *_, leaf in named if leaf.alias is not None))
    wanted = {(role, task_id, leaf_digest(leaf)): leaf_names(leaf) for role, task_id, leaf in named}
    rows = conn.execute(_OF_DAG, {"dag_id": found.dag_id})
    known = {(row.role, row.task_id, row.digest) for row in rows}
    gone = sorted(known - wanted.keys())
    if gone:
        keys = ("of_role", "of_task", "of_digest")
        conn.execute(_DELETE, [{"of_dag": found.dag_id, **dict(zip(keys, key, strict=True))} for key in gone])
    for key in sorted(wanted.keys() - known):
        role, task_id, digest = key
        kind, name, uri = wanted[key]
        values = {"dag_id": found.dag_id, "role": role, "task_id": task_id, "digest": digest}
        conn.execute(_INSERT, {**values, "kind": kind, "name": name, "uri": uri, "created_at": now})
    if any(role == SCHEDULE for role, *_ in gone):
        drop_unawaited(conn, found.dag_id, [leaf for role, _, leaf in named if role == SCHEDULE])


def references_to(conn: Connection, digests: Iterable[str]) -> list[AssetReference]:
    """Return where active DAGs name one of these."""
    return [AssetReference(*row[1:]) for row in conn.execute(_TO, {"digests": list(digests)})]


def list_references(conn: Connection) -> list[tuple[str, AssetReference]]:
    """Return where active DAGs name anything, each with the digest of what is named."""
    return [(row.digest, AssetReference(*row[1:])) for row in conn.execute(_ALL)]


def _named(found: SerializedDag) -> Iterator[tuple[str, str, AssetCondition]]:
    """Yield each role, task_id and leaf."""
    if found.asset_condition is not None:
        for leaf in found.asset_condition.leaves():
            yield SCHEDULE, "", leaf
    for task in found.tasks:
        for leaf in task.inlets:
            yield INLET, task.task_id, leaf
        for leaf in task.outlets:
            yield OUTLET, task.task_id, leaf


MAX_CONSUMED = 10_000
"""Most events that one run consumes: the newest of those that wait."""
MAX_WAITING = 11_000
"""When more events wait for a DAG, some that no run would consume are dropped."""


class PendingEvent(NamedTuple):
    """An event that a DAG waits for; `asset` has the aliases that stand for its asset."""

    event_id: int
    asset: AssetNames
    created_at: datetime


class ArrivedAsset(NamedTuple):
    """An asset that events of wait for a DAG: how many, and the newest of them."""

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
    )
    .order_by(asset_reference.c.dag_id)
)
_PENDING = (
    sa.select(asset_dag_run_queue.c.event_id, asset.c.id.label("asset_id"), asset.c.name, asset.c.uri,
              asset_event.c.created_at)
    .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
    .join(asset, asset.c.id == asset_event.c.asset_id)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("dag_id"))
    .order_by(asset_dag_run_queue.c.event_id)
    .with_for_update(of=asset_dag_run_queue)
)  # fmt: skip
_ARRIVED = (
    sa.select(asset.c.id.label("asset_id"), asset.c.name, asset.c.uri,
              sa.func.max(asset_event.c.created_at).label("created_at"), sa.func.count().label("n_events"),
              sa.func.max(asset_event.c.id).label("newest_id"))
    .select_from(asset_dag_run_queue)
    .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
    .join(asset, asset.c.id == asset_event.c.asset_id)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("dag_id"))
    .group_by(asset.c.id, asset.c.name, asset.c.uri)
    .order_by(sa.func.min(asset_event.c.id))
)  # fmt: skip
_OLDEST = (
    sa.select(asset_dag_run_queue.c.event_id)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("dag_id"))
    .order_by(asset_dag_run_queue.c.event_id)
    .limit(sa.bindparam("n", type_=sa.Integer))
    .with_for_update(skip_locked=True)
)
_ALIASES = (
    sa.select(asset_alias_asset.c.asset_id, asset_alias.c.name)
    .join(asset_alias, asset_alias.c.id == asset_alias_asset.c.alias_id)
    .where(asset_alias_asset.c.asset_id.in_(sa.bindparam("assets", expanding=True)))
)
_EXAMINED = (
    sa.update(asset_dag_run_queue)
    .where(asset_dag_run_queue.c.dag_id == sa.bindparam("of_dag"), ~asset_dag_run_queue.c.is_examined)
    .values(is_examined=True)
)
_UNEXAMINED = (
    sa.select(asset_dag_run_queue.c.dag_id)
    .distinct()
    .where(sa.text("NOT asset_dag_run_queue.is_examined"))
    .order_by(asset_dag_run_queue.c.dag_id)
)
_FORGET = sa.delete(asset_dag_run_queue).where(
    asset_dag_run_queue.c.dag_id == sa.bindparam("of_dag"), asset_dag_run_queue.c.event_id == sa.bindparam("of_event")
)
_WAITING_FOR = (
    sa.select(asset_dag_run_queue.c.dag_id)
    .distinct()
    .join(asset_event, asset_event.c.id == asset_dag_run_queue.c.event_id)
    .where(asset_event.c.asset_id == sa.bindparam("asset"))
    .order_by(asset_dag_run_queue.c.dag_id)
)


def queue_event(conn: Connection, event_id: int, name: str, uri: str, aliases: Collection[str]) -> list[str]:
    """Let an event wait for each DAG that is active, not paused, and waits for its asset. Returns their dag_ids."""
    dag_ids = list(conn.scalars(_WAITING, {"digests": waiting_digests(name, uri, aliases)}))
    for dag_id in dag_ids:
        values = {"dag_id": dag_id, "event_id": event_id, "is_examined": False}
        conn.execute(insert_ignoring(conn, asset_dag_run_queue), values)
    return dag_ids


def arrived_assets(conn: Connection, dag_id: str) -> list[ArrivedAsset]:
    """Return the assets that events of wait for a run of a DAG."""
    rows = conn.execute(_ARRIVED, {"dag_id": dag_id}).all()
    names = _names_of(conn, rows)
    return [ArrivedAsset(names[row.asset_id], row.created_at, row.n_events, row.newest_id) for row in rows]


def pending_events(conn: Connection, dag_id: str) -> list[PendingEvent]:
    """Return the events that wait for a run of a DAG, oldest first.

    Nobody else can consume them until this transaction ends, which must not be a reading one.
    """
    rows = conn.execute(_PENDING, {"dag_id": dag_id}).all()
    names = _names_of(conn, rows)
    return [PendingEvent(row.event_id, names[row.asset_id], row.created_at) for row in rows]


def _names_of(conn: Connection, rows: Sequence[Any]) -> dict[int, AssetNames]:
    assets = {row.asset_id: row for row in rows}
    aliases: dict[int, set[str]] = {}
    if assets:
        for alias in conn.execute(_ALIASES, {"assets": sorted(assets)}):
            aliases.setdefault(alias.asset_id, set()).add(alias.name)
    return {
        asset_id: AssetNames(row.name, row.uri, frozenset(aliases.get(asset_id, ())))
        for asset_id, row in assets.items()
    }


def drop_surplus(conn: Connection, dag_id: str, arrived: Collection[ArrivedAsset]) -> None:
    """Drop the oldest events that wait for a DAG where more wait than a run would consume; of each asset one stays."""
    n_events = sum(item.n_events for item in arrived)
    if n_events > MAX_WAITING:
        kept = {item.newest_id for item in arrived}
        oldest = conn.scalars(_OLDEST, {"dag_id": dag_id, "n": min(n_events - MAX_CONSUMED, MAX_CONSUMED)})
        _forget(conn, dag_id, [event_id for event_id in oldest if event_id not in kept])


def mark_examined(conn: Connection, dag_id: str) -> None:
    """Note that the events which wait for a DAG are not enough."""
    conn.execute(_EXAMINED, {"of_dag": dag_id})


def unexamined_dag_ids(conn: Connection) -> list[str]:
    """Return the DAGs that events wait for which nobody has looked at."""
    return list(conn.scalars(_UNEXAMINED))


def waiting_dag_ids(conn: Connection, asset_id: int) -> list[str]:
    """Return the DAGs that have events of an asset waiting."""
    return list(conn.scalars(_WAITING_FOR, {"asset": asset_id}))


def consume(conn: Connection, dag_run_id: int, dag_id: str, events: Collection[PendingEvent]) -> None:
    """Give a new run the events that have triggered it, and take them out of the queue."""
    newest = sorted(events)[-MAX_CONSUMED:]
    values = [{"dag_run_id": dag_run_id, "event_id": event.event_id} for event in newest]
    conn.execute(insert_ignoring(conn, dag_run_asset_event), values)
    _forget(conn, dag_id, (event.event_id for event in events))


def drop_unawaited(conn: Connection, dag_id: str, leaves: Collection[AssetCondition]) -> None:
    """Take out of a DAG's queue what none of these leaves of its schedule waits for."""
    pending = pending_events(conn, dag_id)
    gone = [event.event_id for event in pending if not any(leaf.names(event.asset) for leaf in leaves)]
    _forget(conn, dag_id, gone)


def _forget(conn: Connection, dag_id: str, event_ids: Iterable[int]) -> None:
    rows: list[dict[str, Any]] = [{"of_dag": dag_id, "of_event": event_id} for event_id in event_ids]
    if rows:
        conn.execute(_FORGET, rows)
