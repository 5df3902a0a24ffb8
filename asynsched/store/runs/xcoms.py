"""Queries of `xcom`: the values that tasks returned or pushed, as JSON."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec.structs import asdict, astuple
from sqlalchemy import Connection

from asynsched.errors import StoreError
from asynsched.store.rows import MANY_ROWS, check_name, fetch, if_small, length, n_fitting
from asynsched.store.runs.task_instances import of_try
from asynsched.store.schema import XComRow, dag_run, task_instance, xcom
from asynsched.store.statements import insert_or_update

LONGEST_KEY = 512


class FoundXCom(NamedTuple):
    """A value of a task instance; `value` is JSON."""

    task_id: str
    map_index: int
    value: bytes


class MappedXComs(NamedTuple):
    """Values of a key that instances of a mapped task pushed: map indexes `first` up to but not including `end`."""

    run: int
    task: str
    name: str
    first: int
    end: int


_IS_MAPPED = (
    xcom.c.dag_run_id == sa.bindparam("run"),
    xcom.c.task_id == sa.bindparam("task"),
    xcom.c.key == sa.bindparam("name"),
    xcom.c.map_index >= sa.bindparam("first"),
    xcom.c.map_index < sa.bindparam("end"),
)


class _Some(NamedTuple):
    """Two queries of values in order: of their sizes with the small values, and of all values of as many as fit."""

    sizes: sa.Select[Any]
    values: sa.Select[Any]


_PLACE = (xcom.c.task_id, xcom.c.map_index)
_OF_KEY = (
    sa.select(xcom)
    .where(xcom.c.dag_run_id == sa.bindparam("run"), xcom.c.key == sa.bindparam("name"))
    .order_by(*_PLACE)
)
_N_MAPPED = sa.select(sa.func.count()).select_from(xcom).where(*_IS_MAPPED)
_IS_AFTER = (
    xcom.c.dag_run_id == sa.bindparam("run"),
    xcom.c.key == sa.bindparam("name"),
    # Not as a pair: SQLite would look through everything after it in the run.
    (xcom.c.task_id > sa.bindparam("after_task"))
    | ((xcom.c.task_id == sa.bindparam("after_task")) & (xcom.c.map_index > sa.bindparam("after_index"))),
)


def _some(*conditions: sa.ColumnElement[bool]) -> _Some:
    offset, limit = (sa.bindparam(name, type_=sa.Integer) for name in ("offset", "limit"))
    query = sa.select(*_PLACE).where(*conditions).order_by(*_PLACE).offset(offset).limit(limit)
    small = if_small(xcom.c.value).label("value"), length(xcom.c.value).label("size")
    return _Some(query.add_columns(*small), query.add_columns(xcom.c.value))


_SOME_MAPPED = _some(*_IS_MAPPED)
_SOME_OF_RUN = _some(*_IS_AFTER)
_IS_OF_TASKS = xcom.c.task_id.in_(sa.bindparam("tasks", expanding=True))
_SOME_OF_TASKS = _some(*_IS_AFTER, _IS_OF_TASKS)
_SOME_OF_INDEXES = _some(*_IS_AFTER, _IS_OF_TASKS, xcom.c.map_index.in_(sa.bindparam("indexes", expanding=True)))
_OF_TRY = of_try(
    task_instance.c.dag_run_id,
    task_instance.c.task_id,
    task_instance.c.map_index,
    sa.bindparam("name", type_=xcom.c.key.type),
    sa.bindparam("content", type_=xcom.c.value.type),
    sa.bindparam("at", type_=xcom.c.created_at.type),
)


def put_xcom(conn: Connection, value: XComRow) -> None:
    """Store a value, in place of an earlier one of the same key. Raises StoreError for a bad key."""
    check_name("XCom key", value.key, LONGEST_KEY)
    conn.execute(insert_or_update(conn, xcom), asdict(value))


def put_xcom_of_try(conn: Connection, value: XComRow, token: str) -> None:
    """Store a value as `put_xcom` does. Raises StoreError also when its task instance goes on without this try."""
    check_name("XCom key", value.key, LONGEST_KEY)
    names = ("run", "task", "index", "name", "content", "at")
    given = dict(zip(names, astuple(value), strict=True)) | {"token": token}
    if not conn.execute(insert_or_update(conn, xcom, _OF_TRY), given).rowcount:
        raise StoreError("the task instance was cleared, and goes on without this try")


def get_xcoms(conn: Connection, dag_run_id: int, *, key: str) -> list[XComRow]:
    """Return the values of a key in a run, by task and map index."""
    return fetch(conn, XComRow, _OF_KEY, {"run": dag_run_id, "name": key})


def some_xcoms(
    conn: Connection,
    dag_run_id: int,
    *,
    key: str,
    task_ids: Collection[str] | None = None,
    map_indexes: Collection[int] | None = None,
    after: tuple[str, int] | None = None,
) -> tuple[list[FoundXCom], bool]:
    """Return values of tasks under a key, by task and map index: as many as one answer should hold.

    Returns also whether these were the last. `after`: the task_id and map_index of the value after which to begin.
    """
    task_id, map_index = after or ("", -2)
    given = {"run": dag_run_id, "name": key, "after_task": task_id, "after_index": map_index}
    if task_ids is None:
        return _part(conn, _SOME_OF_RUN, given)
    given["tasks"] = list(task_ids)
    if map_indexes is None:
        return _part(conn, _SOME_OF_TASKS, given)
    return _part(conn, _SOME_OF_INDEXES, {**given, "indexes": list(map_indexes)})


def _part(
    conn: Connection, some: _Some, given: dict[str, Any], *, offset: int = 0, limit: int = MANY_ROWS
) -> tuple[list[FoundXCom], bool]:
    given = {**given, "offset": offset}
    rows = conn.execute(some.sizes, {**given, "limit": limit}).all()
    n = n_fitting(row.size for row in rows)
    is_last = len(rows) < limit and len(rows) <= n
    if any(row.value is None for row in rows[:n]):
        rows = conn.execute(some.values, {**given, "limit": n}).all()
    return [FoundXCom(*row[:3]) for row in rows[:n]], is_last


def count_mapped_xcoms(conn: Connection, wanted: MappedXComs) -> int:
    """Count these values."""
    found: int = conn.scalar(_N_MAPPED, wanted._asdict()) or 0
    return found


def mapped_xcoms(conn: Connection, wanted: MappedXComs, offset: int, limit: int | None) -> list[bytes]:
    """Return these values, as JSON, by map index: as many as one answer should hold, without the first `offset`."""
    limit = min(limit or MANY_ROWS, MANY_ROWS)
    found, _ = _part(conn, _SOME_MAPPED, wanted._asdict(), offset=offset, limit=limit)
    return [item.value for item in found]


def newest_run_with_xcom(
    conn: Connection, dag_id: str, *, key: str, task_ids: Collection[str], until: datetime
) -> int | None:
    """Return the row id of a DAG's newest run in which one of the tasks has a value of the key.

    A run's date is its logical date, or else its `run_after`. Runs with a later date than `until` are passed over.
    """
    is_wanted = (dag_run.c.dag_id == dag_id, xcom.c.key == key, xcom.c.task_id.in_(list(task_ids)))
    runs = sa.select(dag_run.c.id).join(xcom, xcom.c.dag_run_id == dag_run.c.id).where(*is_wanted).limit(1)
    date, run_after = dag_run.c.logical_date, dag_run.c.run_after
    # Each in the order of an index, and not further than needed: most DAGs have runs of one kind.
    dated = conn.execute(runs.add_columns(date).where(date <= until).order_by(date.desc())).first()
    is_newer = sa.true() if dated is None else run_after > dated.logical_date
    undated: int | None = conn.scalar(
        runs.where(date.is_(None), run_after <= until, is_newer).order_by(run_after.desc(), dag_run.c.id.desc())
    )
    return undated if undated is not None or dated is None else dated.id


def delete_xcom(conn: Connection, dag_run_id: int, task_id: str, map_index: int, key: str) -> None:
    """Delete the value of a key, if there is one."""
    is_of_task = (xcom.c.dag_run_id == dag_run_id, xcom.c.task_id == task_id, xcom.c.map_index == map_index)
    conn.execute(sa.delete(xcom).where(*is_of_task, xcom.c.key == key))
