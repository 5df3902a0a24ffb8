"""Queries of `task_state_store` and `asset_state_store`: values that tasks keep between their tries, and on assets.

Source: Apache Airflow's `MetastoreBackend`.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.errors import StoreError
from asynsched.store.rows import check_name, count, from_json
from asynsched.store.runs.task_instances import of_try
from asynsched.store.schema import AssetStateRow, TaskStateRow, asset_state_store, task_state_store
from asynsched.store.statements import insert_or_update

LONGEST_KEY = 512
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The `expires_at` of a value that never expires."""
Scope = tuple[int, str, int]
"""The task instance that a state belongs to: its run's row id, its task_id and its map index."""
_IS_OF_TRY = of_try(sa.literal(1))


def check_try(conn: Connection, scope: Scope, token: str) -> None:
    """Raise StoreError if a task instance goes on without this try: then the try may change nothing any more."""
    given = dict(zip(("run", "task", "index"), scope, strict=True)) | {"token": token}
    if conn.scalar(_IS_OF_TRY, given) is None:
        raise StoreError("the task instance was cleared, and goes on without this try")


def expiry(now: datetime, seconds: float) -> datetime:
    """Return the instant after these seconds; NEVER if it is beyond the range of datetime."""
    try:
        return min(now + timedelta(seconds=seconds), NEVER)
    except OverflowError:
        return NEVER


def get_task_state(conn: Connection, scope: Scope, key: str, *, now: datetime) -> bytes | None:
    """Return a value as JSON; None if there is none, or it has expired."""
    query = sa.select(task_state_store.c.value).where(*_of_task(scope), task_state_store.c.key == key)
    is_valid = task_state_store.c.expires_at.is_(None) | (task_state_store.c.expires_at > now)
    found: bytes | None = conn.scalar(query.where(is_valid))
    return found


def put_task_state(conn: Connection, row: TaskStateRow) -> None:
    """Store a value, in place of an earlier one of the same key. Raises StoreError for a bad key."""
    check_name("state key", row.key, LONGEST_KEY)
    conn.execute(insert_or_update(conn, task_state_store), asdict(row))


def delete_task_state(conn: Connection, scope: Scope, key: str | None = None) -> None:
    """Delete a value if there is one; None: all values of the task instance."""
    query = sa.delete(task_state_store).where(*_of_task(scope))
    conn.execute(query if key is None else query.where(task_state_store.c.key == key))


def _of_task(scope: Scope) -> tuple[sa.ColumnElement[bool], ...]:
    table = task_state_store.c
    return table.dag_run_id == scope[0], table.task_id == scope[1], table.map_index == scope[2]


def get_asset_state(conn: Connection, asset_id: int, key: str) -> bytes | None:
    """Return a value as JSON; None if there is none."""
    table = asset_state_store.c
    found: bytes | None = conn.scalar(sa.select(table.value).where(table.asset_id == asset_id, table.key == key))
    return found


def list_asset_state(conn: Connection, asset_id: int) -> list[dict[str, Any]]:
    """Return the fields of all values of an asset, and of the task instances that wrote them last, by key."""
    fields = [column for column in asset_state_store.columns if column.name != "asset_id"]
    query = sa.select(*fields).where(asset_state_store.c.asset_id == asset_id)
    rows = conn.execute(query.order_by(asset_state_store.c.key)).mappings()
    return [{**row, "value": from_json(row["value"])} for row in rows]


def put_asset_state(conn: Connection, row: AssetStateRow) -> None:
    """Store a value, in place of an earlier one of the same key. Raises StoreError for a bad key."""
    check_name("state key", row.key, LONGEST_KEY)
    conn.execute(insert_or_update(conn, asset_state_store), asdict(row))


def delete_asset_state(conn: Connection, asset_id: int, key: str | None = None) -> None:
    """Delete a value if there is one; None: all values of the asset."""
    query = sa.delete(asset_state_store).where(asset_state_store.c.asset_id == asset_id)
    conn.execute(query if key is None else query.where(asset_state_store.c.key == key))


def _old_states(before: datetime | None, now: datetime) -> "sa.Select[Any]":
    """Return the keys of task states that have expired, or have no expiry and were last changed before an instant."""
    table = task_state_store
    is_over = table.c.expires_at < now
    if before is not None:
        is_over |= table.c.expires_at.is_(None) & (table.c.updated_at < before)
    return sa.select(*table.primary_key.columns).where(is_over)


def count_old_states(conn: Connection, *, before: datetime | None, now: datetime) -> int:
    """Count the task states that `delete_old_states` deletes."""
    return count(conn, _old_states(before, now))


def delete_old_states(conn: Connection, *, before: datetime | None, now: datetime, limit: int) -> int:
    """Delete up to `limit` task states that have expired, or have no expiry and are old. Returns how many.

    `before`: A value without an expiry is old if it was last changed before this; None: never.
    """
    keys = sa.tuple_(*task_state_store.primary_key.columns)
    return conn.execute(sa.delete(task_state_store).where(keys.in_(_old_states(before, now).limit(limit)))).rowcount
