"""Queries of `asset_reference`: where DAGs name assets, aliases and references, in schedules, inlets and outlets."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.serialization.schema import SerializedDag
from asynsched.store.assets.events import drop_unawaited
from asynsched.store.assets.names import leaf_digest, leaf_names, put_aliases, put_assets
from asynsched.store.rows import fetch
from asynsched.store.schema import AssetReference, asset_reference, dag
from asynsched.timetables.asset_condition import AssetCondition

SCHEDULE, INLET, OUTLET = "schedule", "inlet", "outlet"


_ALL = (
    sa.select(asset_reference)
    .join(dag, dag.c.dag_id == asset_reference.c.dag_id)
    .where(dag.c.is_active)
    .order_by(asset_reference.c.role, asset_reference.c.dag_id, asset_reference.c.task_id)
)


def store_references(conn: Connection, found: SerializedDag, now: datetime, *, is_new: bool = False) -> None:
    """Store a DAG's references to assets, and the new assets; drop events that it no longer waits for.

    Args:
        is_new: The DAG was not known before.
    """
    named = list(_named(found))
    if is_new and not named:
        return
    put_assets(conn, (leaf.asset for *_, leaf in named if leaf.asset is not None), now, describe=True)
    put_aliases(conn, (leaf.alias for *_, leaf in named if leaf.alias is not None))
    wanted = {(role, task_id, leaf_digest(leaf)): leaf_names(leaf) for role, task_id, leaf in named}
    key = (asset_reference.c.role, asset_reference.c.task_id, asset_reference.c.digest)
    is_of_dag = asset_reference.c.dag_id == found.dag_id
    known = {tuple(row) for row in conn.execute(sa.select(*key).where(is_of_dag))}
    gone = sorted(known - wanted.keys())
    if gone:
        conn.execute(sa.delete(asset_reference).where(is_of_dag, sa.tuple_(*key).in_(gone)))
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
    return fetch(conn, AssetReference, _ALL.where(asset_reference.c.digest.in_(list(digests))))


def list_references(conn: Connection) -> list[AssetReference]:
    """Return all references of active DAGs."""
    return fetch(conn, AssetReference, _ALL)
