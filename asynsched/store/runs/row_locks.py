"""Locks of rows, in the order that every transaction keeps: runs by their ids, then task instances by their keys.

Two transactions that change the same rows may wait for each other, but never deadlock. Rows are locked as by an update
that changes no key, so inserts of rows that refer to them, such as XComs of a run, do not wait. SQLite has one writing
transaction at a time. Work that only one transaction may do at a time locks a key of its own, before any row.
"""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import portions
from asynsched.store.schema import dag_run, task_instance

_RUNS = (
    sa.select(dag_run.c.id, dag_run.c.lease_epoch)
    .where(dag_run.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(dag_run.c.id)
    .with_for_update(key_share=True)
)
_TASKS = sa.select(sa.func.count()).select_from(
    sa.select(task_instance.c.id)
    .where(task_instance.c.dag_run_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(task_instance.c.dag_run_id, task_instance.c.task_id, task_instance.c.map_index)
    .with_for_update(key_share=True)
    .subquery()
)
_WHOLE = sa.text("SELECT pg_advisory_xact_lock(:key)")


def lock_out_others(conn: Connection, key: int) -> None:
    """Make other transactions wait in this call with the same key until this one ends."""
    if conn.dialect.name == "postgresql":
        conn.execute(_WHOLE, {"key": key})


def lock_runs(conn: Connection, run_row_ids: Collection[int]) -> dict[int, int]:
    """Lock runs until this transaction ends. Returns the lease epoch of each."""
    found = (conn.execute(_RUNS, {"ids": some}) for some in portions(sorted(run_row_ids)))
    return {row.id: row.lease_epoch for rows in found for row in rows}


def lock_tasks(conn: Connection, run_row_ids: Collection[int]) -> None:
    """Lock all task instances of up to a thousand runs that this transaction has locked.

    One statement locks them, in one order over all these runs.
    """
    if run_row_ids and conn.dialect.name != "sqlite":
        conn.execute(_TASKS, {"ids": list(run_row_ids)})
