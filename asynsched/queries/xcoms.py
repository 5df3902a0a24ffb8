"""Questions about XComs, and actions on them."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, Row

from asynsched.authoring.transport import TYPE_KEY, VALUE_KEY, readable
from asynsched.bell import Hint
from asynsched.errors import AlreadyExists, NotFound
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.protocol.frames import MAX_VALUE_BYTES, mebibytes
from asynsched.queries.context import Act, QueryContext
from asynsched.queries.dag_versions import get_structure, read_structure
from asynsched.queries.paging import (
    ANY_TEXT,
    FIRST_PAGE,
    MOST_ROWS,
    BadRequest,
    Page,
    Paging,
    Pattern,
    Sorting,
    one_of,
    select_page,
)
from asynsched.queries.runs import DISPLAY_NAME, RunFilter, RunInfo, conditions_of_runs, get_run
from asynsched.queries.task_instances import get_task_instance, names_of_tasks, no_such_instance
from asynsched.results import by_task
from asynsched.store.rows import count, from_json, length, to_json
from asynsched.store.runs import xcoms
from asynsched.store.schema import XComRow, dag, dag_run, task_instance, xcom

RETURN_VALUE = "return_value"
LARGEST_VALUE = 4 * 1024**2
"""Bytes of the largest value that is shown."""
DECODED_ON_LOOP = 64 * 1024
"""Bytes of a larger value are decoded by a thread."""
SORTING = Sorting(
    {
        "dag_id": dag_run.c.dag_id,
        "run_id": dag_run.c.run_id,
        "task_id": xcom.c.task_id,
        "map_index": xcom.c.map_index,
        "key": xcom.c.key,
        "created_at": xcom.c.created_at,
        "run_after": dag_run.c.run_after,
    },
    key=xcom.c.dag_run_id,
    usual=("dag_id", "task_id", "run_id", "map_index", "key"),
)


class XComInfo(Struct, frozen=True, kw_only=True):
    """An XCom, without its value. `size` is that of the value, in bytes."""

    dag_id: str
    dag_display_name: str
    run_id: str
    task_id: str
    task_display_name: str
    map_index: int
    key: str
    size: int
    created_at: datetime
    logical_date: datetime | None
    run_after: datetime


class XComFilter(Struct, frozen=True):
    """Which XComs are wanted; None and empty ones: all. `run`: of such runs; `dag_name`: of DAGs with such names."""

    run: RunFilter = RunFilter()
    task_ids: tuple[str, ...] | None = None
    map_indexes: tuple[int, ...] | None = None
    keys: tuple[str, ...] | None = None
    dag_name: Pattern = ANY_TEXT
    task_id: Pattern = ANY_TEXT
    key: Pattern = ANY_TEXT


_INFOS = (
    sa.select(
        xcom.c.task_id,
        xcom.c.map_index,
        xcom.c.key,
        xcom.c.created_at,
        length(xcom.c.value).label("size"),
        dag_run.c.dag_id,
        dag_run.c.run_id,
        dag_run.c.logical_date,
        dag_run.c.run_after,
        dag_run.c.version_id,
        DISPLAY_NAME.label("dag_display_name"),
    )
    .select_from(xcom)
    .join(dag_run, dag_run.c.id == xcom.c.dag_run_id)
    .join(dag, dag.c.dag_id == dag_run.c.dag_id, isouter=True)
)


def list_xcoms(conn: Connection, wanted: XComFilter, paging: Paging = FIRST_PAGE) -> Page[XComInfo]:
    """Return XComs, without their values. Raises BadRequest."""
    wanted_order = paging.order_by or SORTING.usual
    # The key of XComs is of several columns, which decide between equal rows.
    order = (*wanted_order, *(name for name in SORTING.usual if {name, f"-{name}"}.isdisjoint(wanted_order)))
    rows, after = select_page(conn, _INFOS.where(*_conditions(wanted)), SORTING, replace(paging, order_by=order))
    return Page(tuple(_infos(conn, rows)), after)


def count_xcoms(conn: Connection, wanted: XComFilter) -> int:
    """Count such XComs."""
    return count(conn, _INFOS.where(*_conditions(wanted)))


class XComValue(Struct, frozen=True):
    """An XCom with its value, as it travels between tasks: `from_transport` makes the value of it."""

    info: XComInfo
    value: Any


async def get_xcom(context: QueryContext, key: TaskInstanceKey, name: str) -> XComValue:
    """Return an XCom with its value. Raises NotFound, and BadRequest if it is too large to be shown."""
    from anyio.to_thread import run_sync  # commands, which have no loop, import this module too

    info, data = await context.ask(_read, key, name)
    value = from_json(data) if len(data) <= DECODED_ON_LOOP else await run_sync(from_json, data)
    return XComValue(info, value)


def _read(conn: Connection, key: TaskInstanceKey, name: str) -> tuple[XComInfo, bytes]:
    info = _find(conn, key, name)
    if info.size > LARGEST_VALUE:
        raise BadRequest(f"The XCom {name!r} has {info.size} bytes; {LARGEST_VALUE} are shown at most.")
    row = conn.execute(_INFOS.add_columns(xcom.c.value).where(*_is_it(key, name))).one()
    return info, row.value


class ReadableXCom(Struct, frozen=True):
    """An XCom with its value in a form for people, unless it is too large for a list of them."""

    info: XComInfo
    is_shown: bool
    value: Any


async def list_readable(context: QueryContext, key: TaskInstanceKey, *, at_most: int) -> list[ReadableXCom]:
    """Return the first XComs of a task instance, by their keys, with values of up to `DECODED_ON_LOOP` bytes."""
    from anyio.to_thread import run_sync

    rows = await context.ask(_values, key, at_most, DECODED_ON_LOOP)
    return await run_sync(_decoded, rows)


def readable_xcoms(conn: Connection, key: TaskInstanceKey) -> list[ReadableXCom]:
    """Return the XComs of a task instance, with values of up to `LARGEST_VALUE` bytes, decoded here."""
    return _decoded(_values(conn, key, MOST_ROWS, LARGEST_VALUE))


def _values(conn: Connection, key: TaskInstanceKey, at_most: int, longest: int) -> list[tuple[XComInfo, bytes | None]]:
    value = sa.case((length(xcom.c.value) <= longest, xcom.c.value)).label("value")
    query = _INFOS.add_columns(value).where(*_is_of(key)).order_by(xcom.c.key).limit(at_most)
    rows = conn.execute(query).all()
    return [(info, row.value) for info, row in zip(_infos(conn, rows), rows, strict=True)]


def _decoded(rows: list[tuple[XComInfo, bytes | None]]) -> list[ReadableXCom]:
    return [
        ReadableXCom(info, value is not None, None if value is None else readable(from_json(value)))
        for info, value in rows
    ]


async def read_results(
    context: QueryContext, key: DagRunKey, task_ids: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the return values of tasks of a run, by task_id, in a form for people; a list for a mapped task.

    Args:
        task_ids: By default, the tasks whose return values the DAG makes its results.

    Raises:
        BadRequest: They are too large to be shown.
        NotFound: There is no such run.
    """
    from anyio.to_thread import run_sync

    if task_ids is None:
        run = await context.ask(get_run, *key)
        dag = (await read_structure(context, key.dag_id, run.version_number)).dag
        task_ids = [task.task_id for task in dag.tasks if task.returns_dag_result]
    if not task_ids:
        return {}
    rows = await context.ask(_results, key, task_ids)
    return await run_sync(_readable, rows)


def _results(conn: Connection, key: DagRunKey, task_ids: Collection[str]) -> "list[tuple[str, int, bytes]]":
    of_run = (dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
    is_result = (*of_run, xcom.c.task_id.in_(list(task_ids)), xcom.c.key == RETURN_VALUE)
    joined = sa.select(xcom.c.task_id, xcom.c.map_index).join(dag_run, dag_run.c.id == xcom.c.dag_run_id)
    size = conn.scalar(joined.with_only_columns(sa.func.sum(length(xcom.c.value))).where(*is_result)) or 0
    if size > LARGEST_VALUE:
        raise BadRequest(f"The results have {size} bytes; {LARGEST_VALUE} are shown at most.")
    found = joined.add_columns(xcom.c.value).where(*is_result).order_by(xcom.c.task_id, xcom.c.map_index)
    return [(row.task_id, row.map_index, row.value) for row in conn.execute(found)]


def _readable(rows: "list[tuple[str, int, bytes]]") -> dict[str, Any]:
    return by_task({(task_id, map_index): readable(from_json(value)) for task_id, map_index, value in rows})


async def list_links(context: QueryContext, key: TaskInstanceKey) -> dict[str, str | None]:
    """Return the addresses of a task instance's work in other systems, by their names; None: none was stored.

    A task has them after each of its tries, and while it is deferred. Raises NotFound.
    """
    info = await context.ask(get_task_instance, key)
    dag = (await read_structure(context, key.dag_id, None if info.version is None else info.version.number)).dag
    names = next((task.extra_links for task in dag.tasks if task.task_id == key.task_id), {})
    stored = await context.ask(_stored_links, key, tuple(names.values()))
    return {name: stored.get(names[name]) for name in sorted(names)}


class LinkInfo(Struct, frozen=True):
    """The address of a task instance's work in another system."""

    task_id: str
    map_index: int
    name: str
    url: str


def list_links_of_run(conn: Connection, run: RunInfo, task_id: str | None = None) -> list[LinkInfo]:
    """Return the addresses that the tasks of a run have stored, or one of its tasks, decoded here."""
    if run.version is None:
        return []
    names = {
        (task.task_id, key): name
        for task in get_structure(conn, run.dag_id, run.version.number).tasks
        if task_id in (None, task.task_id)
        for name, key in task.extra_links.items()
    }
    query = sa.select(xcom.c.task_id, xcom.c.map_index, xcom.c.key, xcom.c.value)
    query = query.where(xcom.c.dag_run_id == run.id, xcom.c.key.in_({key for _, key in names}))
    query = query.where(length(xcom.c.value) <= DECODED_ON_LOOP)
    found = [
        LinkInfo(row.task_id, row.map_index, names[row.task_id, row.key], str(readable(from_json(row.value))))
        for row in conn.execute(query)
        if (row.task_id, row.key) in names
    ]
    return sorted(found, key=lambda link: (link.task_id, link.map_index, link.name))


def _stored_links(conn: Connection, key: TaskInstanceKey, keys: Collection[str]) -> dict[str, str]:
    of_run = (dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
    query = sa.select(xcom.c.key, xcom.c.value).join(dag_run, dag_run.c.id == xcom.c.dag_run_id)
    query = query.where(*of_run, xcom.c.task_id == key.task_id, xcom.c.map_index == key.map_index)
    query = query.where(xcom.c.key.in_(list(keys)), length(xcom.c.value) <= DECODED_ON_LOOP)
    return {row.key: str(readable(from_json(row.value))) for row in conn.execute(query)}


def put_xcom(
    conn: Connection, key: TaskInstanceKey, name: str, value: Any, *, is_new: bool | None = None, now: datetime
) -> Act[XComInfo]:
    """Store a value of JSON for the tasks of a run.

    Args:
        is_new: Whether the XCom must not exist yet; False: it must exist; None: it is created or replaced.

    Raises:
        NotFound: There is no such task instance or XCom.
        AlreadyExists: There is such an XCom.
        BadRequest: The value has a key that stands for types of Python, or is larger than tasks can read.
        StoreError: The key is too long.
    """
    _refuse_types(value)
    encoded = to_json(value)
    if len(encoded) > MAX_VALUE_BYTES:
        raise BadRequest(
            f"The XCom {name!r} of the task {key.task_id!r} is too large: {mebibytes(len(encoded))} of JSON; the limit"
            f" is {mebibytes(MAX_VALUE_BYTES)}. Write it to a file or an object storage, and store the path."
        )
    row_id = _dag_run_id(conn, key)
    exists = conn.execute(_INFOS.where(*_is_it(key, name))).first() is not None
    if is_new is False:
        _find(conn, key, name)
    elif is_new and exists:
        raise AlreadyExists(f"The task instance {key.task_id!r} has an XCom {name!r} already.")
    xcoms.put_xcom(conn, XComRow(row_id, key.task_id, key.map_index, name, encoded, now))
    action = "xcom.change" if exists else "xcom.create"
    return Act(_find(conn, key, name), action, Hint("edit", *key.run), key.task_id, detail={"key": name})


def delete_xcom(conn: Connection, key: TaskInstanceKey, name: str) -> Act[None]:
    """Delete an XCom. Raises NotFound."""
    _find(conn, key, name)
    xcoms.delete_xcom(conn, _dag_run_id(conn, key), key.task_id, key.map_index, name)
    return Act(None, "xcom.delete", Hint("edit", *key.run), key.task_id, detail={"key": name})


def _refuse_types(value: Any) -> None:
    """Raise BadRequest for a value that tasks would read as one of a type that JSON lacks."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if reserved := part.keys() & {TYPE_KEY, VALUE_KEY}:
                raise BadRequest(f"The value of an XCom cannot have the key {min(reserved)!r}: it is reserved.")
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _dag_run_id(conn: Connection, key: TaskInstanceKey) -> int:
    query = (
        sa.select(dag_run.c.id)
        .join(task_instance, task_instance.c.dag_run_id == dag_run.c.id)
        .where(dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
        .where(task_instance.c.task_id == key.task_id, task_instance.c.map_index == key.map_index)
    )
    found: int | None = conn.scalar(query)
    if found is None:
        raise no_such_instance(conn, key)
    return found


def _find(conn: Connection, key: TaskInstanceKey, name: str) -> XComInfo:
    row = conn.execute(_INFOS.where(*_is_it(key, name))).first()
    if row is None:
        _dag_run_id(conn, key)  # perhaps it is the task instance that does not exist
        raise NotFound("XCom", name, where=f"the task instance {key.task_id!r} of the run {key.run_id!r}")
    return _infos(conn, [row])[0]


def _is_it(key: TaskInstanceKey, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return *_is_of(key), xcom.c.key == name


def _is_of(key: TaskInstanceKey) -> tuple[sa.ColumnElement[bool], ...]:
    of_run = (dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
    return *of_run, xcom.c.task_id == key.task_id, xcom.c.map_index == key.map_index


def _infos(conn: Connection, rows: "Sequence[Row[Any]]") -> list[XComInfo]:
    tasks = names_of_tasks(conn, rows)
    own = [name for name in XComInfo.__struct_fields__ if name != "task_display_name"]
    return [
        XComInfo(
            **{name: getattr(row, name) for name in own},
            task_display_name=tasks[row.version_id, row.task_id].task_display_name,
        )
        for row in rows
    ]


def _conditions(wanted: XComFilter) -> list[sa.ColumnElement[bool]]:
    return [
        *conditions_of_runs(wanted.run),
        *one_of(xcom.c.task_id, wanted.task_ids),
        *one_of(xcom.c.map_index, wanted.map_indexes),
        *one_of(xcom.c.key, wanted.keys),
        *wanted.dag_name.holds_for(DISPLAY_NAME),
        *wanted.task_id.holds_for(xcom.c.task_id),
        *wanted.key.holds_for(xcom.c.key),
    ]
