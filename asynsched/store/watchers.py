"""Queries of `asset_watcher` and `asset_trigger`: which triggers watch assets, and which scheduler runs each of them.

Watchers whose triggers have the same class and arguments share one trigger, as in Airflow. A trigger is wanted while an
active, unpaused DAG waits for one of its assets. One scheduler runs it; it becomes free when that scheduler has ended.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.authoring.transport import readable
from asynsched.protocol.messages import TriggerOutcome
from asynsched.serialization.schema import SerializedDag
from asynsched.store.assets import SCHEDULE, AssetEventRow, digest_of, record_events, waiting_digests
from asynsched.store.rows import fetch, portions, storable, to_json
from asynsched.store.schedulers import SERVING, holds_lease
from asynsched.store.schema import AssetWatcherRow, asset_reference, asset_trigger, asset_watcher, dag
from asynsched.store.statements import insert_ignoring

LONGEST_ERROR = 1000
"""Characters of a trigger's error that are kept."""
_defines, _code, _waits = (dag.alias(name) for name in ("defines", "code", "waits"))
_AWAITS = sa.and_(
    asset_reference.c.role == SCHEDULE,
    asset_reference.c.digest.in_([asset_watcher.c.digest, asset_watcher.c.name_digest, asset_watcher.c.uri_digest]),
)
_IS_WATCHED = sa.and_(
    sa.exists().where(_defines.c.dag_id == asset_watcher.c.dag_id, _defines.c.is_active).correlate(asset_watcher),
    sa.exists()
    .where(_AWAITS, _waits.c.dag_id == asset_reference.c.dag_id, _waits.c.is_active, ~_waits.c.is_paused)
    .correlate(asset_watcher),
)
"""Whether a DAG waits for the asset of a watcher, which another one may define."""
_OF_TRIGGER = asset_watcher.c.trigger_id == asset_trigger.c.id
_HAS_WATCHER = sa.exists().where(_OF_TRIGGER).correlate(asset_trigger)
_IS_FREE = asset_trigger.c.scheduler_id.is_(None) | asset_trigger.c.scheduler_id.not_in(SERVING)


def drop_watchers(conn: Connection, dag_ids: Sequence[str]) -> None:
    """Delete the watchers of DAGs. A trigger that no watcher has stays until it is stopped."""
    for some in portions(dag_ids):
        conn.execute(sa.delete(asset_watcher).where(asset_watcher.c.dag_id.in_(some)))


def store_watchers(conn: Connection, found: SerializedDag, now: datetime) -> None:
    """Store the watchers of a DAG that has none, and their new triggers."""
    if not found.watchers:
        return
    digests = [digest_of("trigger", one.classpath, to_json(one.kwargs).decode()) for one in found.watchers]
    for digest, watcher in sorted(dict(zip(digests, found.watchers, strict=True)).items()):
        values = {"digest": digest, "classpath": watcher.classpath, "kwargs": watcher.kwargs, "created_at": now}
        conn.execute(insert_ignoring(conn, asset_trigger), values)
    query = sa.select(asset_trigger.c.digest, asset_trigger.c.id).where(asset_trigger.c.digest.in_(digests))
    trigger_ids = {row.digest: row.id for row in conn.execute(query)}
    for digest, watcher in zip(digests, found.watchers, strict=True):
        names = waiting_digests(watcher.asset_name, watcher.asset_uri, ())
        row = AssetWatcherRow(
            found.dag_id, names[0], trigger_ids[digest], watcher.name, watcher.asset_name, watcher.asset_uri, *names[1:]
        )
        conn.execute(insert_ignoring(conn, asset_watcher), asdict(row))


class WatchedTrigger(Struct, frozen=True):
    """A trigger, as one scheduler sees it.

    Attributes:
        watcher: The name of one of its watchers.
        version_id: Of the DAG whose code it runs with; None if no active DAG defines it.
        is_ours: Whether this scheduler runs it.
        is_free: Whether no scheduler does.
        is_unused: Whether no watcher has it any more.
        assets: The name and the URI of each asset that it watches, also where only paused DAGs wait for it.
    """

    id: int
    classpath: str
    kwargs: dict[str, Any]
    watcher: str
    version_id: int | None
    is_wanted: bool
    is_ours: bool
    is_free: bool
    is_unused: bool
    assets: tuple[tuple[str, str], ...]


_WATCHERS = (
    sa.select(
        asset_trigger.c.id, asset_trigger.c.classpath, asset_trigger.c.kwargs, asset_trigger.c.scheduler_id,
        _IS_FREE.label("is_free"), asset_watcher.c.name.label("watcher"), _code.c.version_id,
        asset_watcher.c.asset_name, asset_watcher.c.asset_uri,
        sa.and_(asset_watcher.c.dag_id.is_not(None), _IS_WATCHED).label("is_wanted"),
    )
    .join(asset_watcher, _OF_TRIGGER, isouter=True)
    .join(_code, sa.and_(_code.c.dag_id == asset_watcher.c.dag_id, _code.c.is_active), isouter=True)
    .order_by(asset_trigger.c.id, asset_watcher.c.dag_id, asset_watcher.c.name)
)  # fmt: skip


def watched_triggers(conn: Connection, scheduler_id: str) -> list[WatchedTrigger]:
    """Return all triggers, each with the code of the first active DAG that has it for an asset that a DAG waits for."""
    first: dict[int, sa.Row[Any]] = {}
    assets: dict[int, set[tuple[str, str]]] = {}
    for row in conn.execute(_WATCHERS):
        if row.id not in first or (row.is_wanted and not first[row.id].is_wanted):
            first[row.id] = row
        if row.version_id is not None:
            assets.setdefault(row.id, set()).add((row.asset_name, row.asset_uri))
    return [
        WatchedTrigger(
            row.id, row.classpath, row.kwargs, row.watcher or "", row.version_id, bool(row.is_wanted),
            row.scheduler_id == scheduler_id, bool(row.is_free), row.watcher is None,
            tuple(sorted(assets.get(row.id, ()))),
        )
        for row in first.values()
    ]  # fmt: skip


def assign_triggers(
    conn: Connection, take: Collection[int], leave: Collection[int], scheduler_id: str, lease_epoch: int
) -> None:
    """Give this scheduler the triggers to `take` that are free, unless its lease is over, and take those to `leave`.

    A trigger that no watcher has is deleted once no scheduler runs it.
    """
    if not holds_lease(conn, scheduler_id, lease_epoch):
        return
    of_row = asset_trigger.c.id
    for ids, condition, values in (
        (leave, asset_trigger.c.scheduler_id == scheduler_id, {"scheduler_id": None, "error": None, "failed_at": None}),
        (take, _IS_FREE, {"scheduler_id": scheduler_id}),
    ):
        locked = sa.select(of_row).where(of_row.in_(list(ids)), condition).order_by(of_row).with_for_update()
        conn.execute(sa.update(asset_trigger).where(of_row.in_(list(conn.scalars(locked)))).values(values))
    unused = sa.select(of_row).where(~_HAS_WATCHER, _IS_FREE)
    locked = unused.order_by(of_row).with_for_update(skip_locked=True)
    conn.execute(sa.delete(asset_trigger).where(of_row.in_(list(conn.scalars(locked)))))


_ASSETS = (
    sa.select(asset_watcher.c.asset_name, asset_watcher.c.asset_uri)
    .distinct()
    .where(asset_watcher.c.trigger_id == sa.bindparam("trigger"), _IS_WATCHED)
    .order_by(asset_watcher.c.asset_name, asset_watcher.c.asset_uri)
)


def store_outcomes(conn: Connection, outcomes: Sequence[tuple[int, TriggerOutcome]], now: datetime) -> None:
    """Store events and failures of triggers, each with the row id of its trigger. One that is stored adds nothing.

    An event updates the assets of all watchers of its trigger that a DAG waits for.

    Source: the extra of such an event is that of Airflow's `Trigger.submit_event`.
    """
    events: list[AssetEventRow] = []
    for trigger_id, outcome in outcomes:
        error = storable(outcome.detail)[:LONGEST_ERROR] if outcome.kind == "error" else None
        of_trigger = asset_trigger.c.id == trigger_id
        if error is not None:
            conn.execute(sa.update(asset_trigger).where(of_trigger).values(error=error, failed_at=now))
            continue
        is_failed = asset_trigger.c.error.is_not(None)
        conn.execute(sa.update(asset_trigger).where(of_trigger, is_failed).values(error=None, failed_at=None))
        if outcome.kind == "event":
            extra = {"from_trigger": True, "payload": readable(outcome.payload)}
            for name, uri in conn.execute(_ASSETS, {"trigger": trigger_id}):
                token = sha256(f"{outcome.event_id} {name}\0{uri}".encode()).hexdigest()[:32]
                events.append(AssetEventRow(name, uri, extra, now, token=token))
    record_events(conn, events)


class Watching(Struct, frozen=True):
    """A watcher of an asset for people: its trigger, who runs it, and how it failed last, if it did."""

    watcher: str
    asset: str
    uri: str
    dag_id: str
    trigger: str
    is_wanted: bool
    scheduler_id: str | None
    error: str | None
    failed_at: datetime | None

    @property
    def state(self) -> str:
        """One word: stopped, waiting (for a scheduler), failed or running."""
        if not self.is_wanted:
            return "stopped"
        return "failed" if self.error is not None else "waiting" if self.scheduler_id is None else "running"


_WATCHING = (
    sa.select(
        asset_watcher.c.name.label("watcher"), asset_watcher.c.asset_name.label("asset"),
        asset_watcher.c.asset_uri.label("uri"), asset_watcher.c.dag_id, asset_trigger.c.classpath.label("trigger"),
        _IS_WATCHED.label("is_wanted"), asset_trigger.c.scheduler_id, asset_trigger.c.error,
        asset_trigger.c.failed_at,
    )
    .join(asset_trigger, _OF_TRIGGER)
    .join(dag, sa.and_(dag.c.dag_id == asset_watcher.c.dag_id, dag.c.is_active))
    .order_by(asset_watcher.c.asset_name, asset_watcher.c.name, asset_watcher.c.dag_id)
)  # fmt: skip


def list_watchers(conn: Connection) -> list[Watching]:
    """Return the watchers that active DAGs define."""
    return fetch(conn, Watching, _WATCHING)


def failing_watchers(conn: Connection, dag_id: str) -> list[Watching]:
    """Return the watchers of the assets that a DAG waits for whose triggers fail."""
    awaits = sa.exists().where(asset_reference.c.dag_id == dag_id, _AWAITS).correlate(asset_watcher)
    return fetch(conn, Watching, _WATCHING.where(asset_trigger.c.error.is_not(None), awaits))
