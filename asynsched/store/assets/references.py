"""Queries of `asset_reference`: where DAGs name assets, aliases and references, in schedules, inlets and outlets."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.serialization.schema import SerializedDag
from asynsched.store.assets.events import drop_unawaited
from asynsched.store.assets.names import leaf_digest, leaf_names, put_aliases, put_assets
from asynsched.store.schema import asset_reference, dag
from asynsched.timetables.asset_condition import AssetCondition

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
    known = {(row.role, row.task_id, row.digest) for row in conn.execute(_OF_DAG, {"dag_id": found.dag_id})}
    gone = sorted(known - wanted.keys())
    if gone:
        keys = ("of_role", "of_task", "of_digest")
        conn.execute(_DELETE, [{"of_dag": found.dag_id, **dict(zip(keys, key, strict=True))} for key in gone])
    for key in sorted(wanted.keys() - known):
        role, task_id, digest = key
        kind, name, uri = wanted[key]
        values = {"dag_id": found.dag_id, "role": role, "task_id": task_id, "digest": digest}
        conn.execute(asset_reference.insert(), {**values, "kind": kind, "name": name, "uri": uri, "created_at": now})
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
    return [AssetReference(*row[1:]) for row in conn.execute(_TO, {"digests": list(digests)})]


def list_references(conn: Connection) -> list[tuple[str, AssetReference]]:
    """Return all references of active DAGs, each with the digest of its target."""
    return [(row.digest, AssetReference(*row[1:])) for row in conn.execute(_ALL)]
