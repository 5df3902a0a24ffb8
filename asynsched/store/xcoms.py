"""Queries of `xcom`: what tasks returned or pushed, as JSON."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.conflicts import insert_or_update
from asynsched.store.rows import check_name, from_json
from asynsched.store.tables import dag_run, xcom

LONGEST_KEY = 512


class XComValue(NamedTuple):
    """A value that a task instance pushed; `value` is JSON."""

    dag_run_id: int
    task_id: str
    map_index: int
    key: str
    value: bytes
    created_at: datetime


class XComEntry(NamedTuple):
    """A value of one task instance, decoded."""

    key: str
    value: Any
    created_at: datetime


_COLUMNS = tuple(xcom.c[name] for name in XComValue._fields)
_OF_KEY = (
    sa.select(*_COLUMNS)
    .where(xcom.c.dag_run_id == sa.bindparam("run"), xcom.c.key == sa.bindparam("name"))
    .order_by(xcom.c.task_id, xcom.c.map_index)
)
_OF_KEY_AND_TASKS = _OF_KEY.where(xcom.c.task_id.in_(sa.bindparam("task_ids", expanding=True)))
_IS_OF_TASK = (
    xcom.c.dag_run_id == sa.bindparam("run"),
    xcom.c.task_id == sa.bindparam("task"),
    xcom.c.map_index == sa.bindparam("index"),
)
_OF_TASK = sa.select(xcom.c.key, xcom.c.value, xcom.c.created_at).where(*_IS_OF_TASK).order_by(xcom.c.key)
_NEWEST_RUN = (
    sa.select(dag_run.c.id)
    .join(xcom, xcom.c.dag_run_id == dag_run.c.id)
    .where(
        dag_run.c.dag_id == sa.bindparam("dag"),
        dag_run.c.logical_date <= sa.bindparam("until"),
        xcom.c.key == sa.bindparam("name"),
        xcom.c.task_id.in_(sa.bindparam("task_ids", expanding=True)),
    )
    .order_by(dag_run.c.logical_date.desc())
    .limit(1)
)
_DELETE_OF_TASK = sa.delete(xcom).where(*_IS_OF_TASK)


def put_xcom(conn: Connection, value: XComValue) -> None:
    """Store a value, in place of an earlier one of the same key. Raises StoreError when the key is no good."""
    check_name("XCom key", value.key, LONGEST_KEY)
    conn.execute(insert_or_update(conn, xcom), value._asdict())


def get_xcoms(
    conn: Connection,
    dag_run_id: int,
    *,
    key: str = "return_value",
    task_ids: Collection[str] | None = None,
    map_indexes: Collection[int] | None = None,
) -> list[XComValue]:
    """Return the values of a key in a run, by task and map index; of some tasks and indexes only, if given."""
    if task_ids is None:
        rows = conn.execute(_OF_KEY, {"run": dag_run_id, "name": key})
    else:
        rows = conn.execute(_OF_KEY_AND_TASKS, {"run": dag_run_id, "name": key, "task_ids": list(task_ids)})
    found = [XComValue(*row) for row in rows]
    return [value for value in found if map_indexes is None or value.map_index in map_indexes]


def newest_run_with_xcom(
    conn: Connection, dag_id: str, *, key: str, task_ids: Collection[str], until: datetime
) -> int | None:
    """Return the row id of a DAG's newest run, up to a logical date, in which one of the tasks has such a value."""
    found: int | None = conn.scalar(
        _NEWEST_RUN, {"dag": dag_id, "name": key, "task_ids": list(task_ids), "until": until}
    )
    return found


def list_xcoms(conn: Connection, dag_run_id: int, task_id: str, map_index: int = -1) -> list[XComEntry]:
    """Return all that one task instance pushed, by key."""
    rows = conn.execute(_OF_TASK, {"run": dag_run_id, "task": task_id, "index": map_index})
    return [XComEntry(row.key, from_json(row.value), row.created_at) for row in rows]


def delete_xcoms(conn: Connection, dag_run_id: int, task_id: str, map_index: int = -1) -> None:
    """Delete all that one task instance pushed."""
    conn.execute(_DELETE_OF_TASK, {"run": dag_run_id, "task": task_id, "index": map_index})
