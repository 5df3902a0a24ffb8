"""The one function that writes a state change of a DagRun or a TaskInstance, and the one of runs that change hands.

All changes of one moment are one batch in one transaction, and each kind of change is one statement for a thousand of
them: the rows travel as a JSON array. Every update is guarded by the state, the try number and the lease epoch
that its author knew. What does not match was changed by somebody else: it is left as it is, and returned as stale.
A batch whose commit was not confirmed may be applied again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace
from sqlalchemy import Connection, TextClause, bindparam, select, text, update

from asynsched.states import TaskInstanceState
from asynsched.store.asset_events import record_events
from asynsched.store.changes import (
    AssetEventRow,
    Batch,
    CallbackRow,
    ExpandedRow,
    ForgottenRow,
    HistoryRow,
    RunRow,
    Stale,
    TaskRow,
    TaskRowKey,
    XComRow,
)
from asynsched.store.encryption import writing_cipher
from asynsched.store.rows import portions, storable
from asynsched.store.schema.column_types import microseconds
from asynsched.store.schema.tables import dag_run, task_instance


def apply(conn: Connection, batch: Batch) -> Stale:
    """Write a batch. Returns what was stale; everything else of it is written.

    What is guarded goes first. Nothing is added for a task instance or a run that was stale, but what belongs to task
    instances that were written. A run is stale when one of its task instances is: its state follows from theirs.
    """
    epoch = batch.lease_epoch
    tasks = _update_tasks(conn, _encrypted(conn, batch.tasks), epoch) | _delete_expanded(conn, batch.expanded, epoch)
    disturbed = {key[0] for key in tasks}
    runs = {row.id for row in batch.runs if row.id in disturbed}
    runs |= _update_runs(conn, [row for row in batch.runs if row.id not in disturbed])
    runs |= _taken_away(conn, {row.dag_run_id for row in batch.new_tasks} - {row.id for row in batch.runs}, epoch)

    written = {_key(row) for row in batch.tasks} - tasks

    def is_valid(row: HistoryRow | ForgottenRow | TaskRow | XComRow | CallbackRow | AssetEventRow) -> bool:
        return _key(row) in written or (row.dag_run_id not in runs and _key(row) not in tasks)

    for statement, rows in (
        ("insert_tasks", _encrypted(conn, batch.new_tasks)),
        ("insert_history", batch.history),
        ("delete_xcoms", batch.forgotten),
        ("upsert_xcoms", batch.xcoms),
        ("insert_callbacks", batch.callbacks),
    ):
        if valid := [row for row in rows if is_valid(row)]:
            _execute(conn, statement, valid, epoch)
    if batch.asset_events:
        record_events(conn, filter(is_valid, batch.asset_events))
    return Stale(frozenset(runs), frozenset(tasks))


_TAKE_FOR_BEGUN = (
    update(task_instance)
    .where(
        task_instance.c.dag_run_id.in_(bindparam("ids", expanding=True)),
        task_instance.c.state == TaskInstanceState.QUEUED,
    )
    .values(state=TaskInstanceState.RUNNING)
)


def take_for_begun(conn: Connection, run_row_ids: Sequence[int]) -> None:
    """Let queued task instances of some runs be running: nobody knows whether their tries have begun.

    Call it in the transaction that makes the runs one's own, with their rows locked.
    """
    if run_row_ids:
        conn.execute(_TAKE_FOR_BEGUN, {"ids": list(run_row_ids)})


def _key(row: TaskRow | HistoryRow | ForgottenRow | XComRow | CallbackRow | AssetEventRow) -> TaskRowKey:
    return (row.dag_run_id, row.task_id, row.map_index)


def _encrypted(conn: Connection, rows: list[TaskRow]) -> list[TaskRow]:
    """Return the rows with what deferred tasks wait for as it is stored: arguments of triggers may be secrets."""
    if all(row.deferral is None for row in rows):
        return rows
    cipher = writing_cipher(conn)
    return [row if row.deferral is None else replace(row, deferral=cipher.encrypt(row.deferral)) for row in rows]


def _update_tasks(conn: Connection, rows: list[TaskRow], epoch: int) -> set[TaskRowKey]:
    if not rows:
        return set()
    updated = {(key[0], key[1], key[2]) for key in _execute(conn, "update_tasks", rows, epoch)}
    missing = [row for row in rows if _key(row) not in updated]
    return {_key(row) for row in missing if not _is_applied(conn, row, epoch)}


def _delete_expanded(conn: Connection, rows: list[ExpandedRow], epoch: int) -> set[TaskRowKey]:
    """Delete the unexpanded task instances; one that is still there was changed by somebody else."""
    if not rows:
        return set()
    _execute(conn, "delete_expanded", rows, epoch)
    return {(key[0], key[1], key[2]) for key in _execute(conn, "find_expanded", rows)}


def _update_runs(conn: Connection, rows: list[RunRow]) -> set[int]:
    if not rows:
        return set()
    updated = {key[0] for key in _execute(conn, "update_runs", rows)}
    return {row.id for row in rows if row.id not in updated and not _run_is_applied(conn, row)}


_OWNED = (
    select(dag_run.c.id)
    .where(dag_run.c.id.in_(bindparam("ids", expanding=True)), dag_run.c.lease_epoch == bindparam("epoch"))
    .order_by(dag_run.c.id)
    .with_for_update(read=True)
)


def _taken_away(conn: Connection, run_row_ids: set[int], epoch: int) -> set[int]:
    """Return those of some runs that are another scheduler's by now. The others stay this one's until this commits.

    A task instance that is new has no row whose epoch could guard it.
    """
    owned = conn.scalars(_OWNED, {"ids": sorted(run_row_ids), "epoch": epoch}) if run_row_ids else ()
    return run_row_ids.difference(owned)


_IS_APPLIED = text(
    "SELECT 1 FROM task_instance WHERE dag_run_id = :dag_run_id AND task_id = :task_id AND map_index = :map_index"
    " AND coalesce(state, '') = :state AND try_number = :try_number AND coalesce(token, '') = :token"
    " AND lease_epoch = :epoch"
)
_RUN_IS_APPLIED = text("SELECT 1 FROM dag_run WHERE id = :id AND state = :state AND lease_epoch = :epoch")


def _is_applied(conn: Connection, row: TaskRow, epoch: int) -> bool:
    found = conn.execute(
        _IS_APPLIED,
        {
            "dag_run_id": row.dag_run_id,
            "task_id": row.task_id,
            "map_index": row.map_index,
            "state": row.state or "",
            "try_number": row.try_number,
            "token": row.token or "",
            "epoch": epoch,
        },
    )
    return found.first() is not None


def _run_is_applied(conn: Connection, row: RunRow) -> bool:
    found = conn.execute(_RUN_IS_APPLIED, {"id": row.id, "state": row.state, "epoch": row.lease_epoch})
    return found.first() is not None


_TYPES: dict[str, str] = {"dag_run_id": "bigint", "id": "bigint", "version_id": "bigint", "before_epoch": "bigint"} | {
    "lease_epoch": "bigint",
    "priority_weight": "bigint",
    "map_index": "integer",
    "before_try": "integer",
    "try_number": "integer",
    "max_tries": "integer",
    "machine_kills": "integer",
    "pool_slots": "integer",
    "result_length": "integer",
} | dict.fromkeys(
    ("scheduled_at", "queued_at", "started_at", "ended_at", "next_try_at", "created_at"), "timestamptz"
)  # fmt: skip


def _rows_of(struct: type[Struct], dialect: str) -> str:
    """Return a table expression that reads the JSON array `:rows` of such structs, each an array of its fields."""
    fields = struct.__struct_fields__
    if dialect == "sqlite":
        columns = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(fields))
        return f"(SELECT {columns} FROM json_each(:rows))"  # noqa: S608 - names come from the structs above
    columns = ", ".join(
        f"CAST(item ->> {place} AS {_TYPES.get(name, 'text')}) AS {name}" for place, name in enumerate(fields)
    )
    return f"(SELECT {columns} FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS item)"  # noqa: S608 - as above


def _insert(table: str, struct: type[Struct], dialect: str, *, skip: frozenset[str], extra: str, conflict: str) -> str:
    names = [name for name in struct.__struct_fields__ if name not in skip]
    values = ", ".join(_blob(name, dialect) if (table, name) == ("xcom", "value") else f"v.{name}" for name in names)
    columns = ", ".join(names)
    if extra:
        columns, values = f"{columns}, {extra}", f"{values}, {_EXTRA[extra]}"
    # WHERE true keeps SQLite from reading ON CONFLICT as a join's ON.
    return (
        f"INSERT INTO {table} ({columns}) SELECT {values} FROM {_rows_of(struct, dialect)} AS v"  # noqa: S608 - as above
        f" WHERE true ON CONFLICT {conflict}"
    )


_EXTRA = {"lease_epoch": ":epoch", "state, attempts": "'queued', 0"}


def _blob(name: str, dialect: str) -> str:
    return f"CAST(v.{name} AS BLOB)" if dialect == "sqlite" else f"convert_to(v.{name}, 'UTF8')"


def _update(table: str, struct: type[Struct], dialect: str, *, keys: tuple[str, ...], guard: str, extra: str) -> str:
    skip = {*keys, "before_state", "before_try", "before_epoch"}
    written = ", ".join(f"{name} = v.{name}" for name in struct.__struct_fields__ if name not in skip)
    same = " AND ".join(f"{table}.{key} = v.{key}" for key in keys)
    returned = ", ".join(f"{table}.{key}" for key in keys)
    return (
        f"UPDATE {table} SET {written}{extra} FROM {_rows_of(struct, dialect)} AS v"  # noqa: S608 - as above
        f" WHERE {same} AND {guard} RETURNING {returned}"
    )


_SAME_TASK = "t.dag_run_id = v.dag_run_id AND t.task_id = v.task_id AND t.map_index = v.map_index"


def _statements(dialect: str) -> dict[str, TextClause]:
    none: frozenset[str] = frozenset()
    same_state = "IS" if dialect == "sqlite" else "IS NOT DISTINCT FROM"
    before = frozenset({"before_state", "before_try"})
    statements = {
        "insert_tasks": _insert(
            "task_instance", TaskRow, dialect, skip=before, extra="lease_epoch", conflict="DO NOTHING"
        ),
        "insert_history": _insert(
            "task_instance_history", HistoryRow, dialect, skip=none, extra="", conflict="DO NOTHING"
        ),
        "delete_xcoms": "DELETE FROM xcom WHERE (dag_run_id, task_id, map_index) IN"  # noqa: S608 - as above
        f" (SELECT v.dag_run_id, v.task_id, v.map_index FROM {_rows_of(ForgottenRow, dialect)} AS v)",
        "upsert_xcoms": _insert(
            "xcom", XComRow, dialect, skip=none, extra="",
            conflict="(dag_run_id, task_id, map_index, key) DO UPDATE SET value = excluded.value,"
            " created_at = excluded.created_at",
        ),
        "insert_callbacks": _insert(
            "callback_request", CallbackRow, dialect, skip=none, extra="state, attempts", conflict="DO NOTHING"
        ),
        "update_tasks": _update(
            "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"), extra="",
            guard=f"task_instance.state {same_state} v.before_state AND task_instance.try_number = v.before_try"
            " AND task_instance.lease_epoch = :epoch",
        ),
        "delete_expanded": "DELETE FROM task_instance WHERE id IN (SELECT t.id"  # noqa: S608 - as above
        f" FROM {_rows_of(ExpandedRow, dialect)} AS v JOIN task_instance AS t ON {_SAME_TASK}"
        f" WHERE t.state {same_state} v.before_state AND t.lease_epoch = :epoch)",
        "find_expanded": "SELECT t.dag_run_id, t.task_id, t.map_index"  # noqa: S608 - as above
        f" FROM {_rows_of(ExpandedRow, dialect)} AS v JOIN task_instance AS t ON {_SAME_TASK}",
        "update_runs": _update(
            "dag_run", RunRow, dialect, keys=("id",), extra="",
            guard="dag_run.state = v.before_state AND dag_run.lease_epoch = v.before_epoch",
        ),
    }  # fmt: skip
    return {name: text(statement) for name, statement in statements.items()}


_STATEMENTS = {dialect: _statements(dialect) for dialect in ("sqlite", "postgresql")}


def _execute(conn: Connection, name: str, rows: list[Any], epoch: int | None = None) -> list[Any]:
    dialect = conn.dialect.name
    statement = _STATEMENTS[dialect][name]
    parameters = {"epoch": epoch} if ":epoch" in statement.text else {}
    returned: list[Any] = []
    for some in portions(rows):
        result = conn.execute(statement, {"rows": _as_json(some, dialect), **parameters})
        returned += result.all() if result.returns_rows else ()
    return returned


def _as_json(rows: list[Any], dialect: str) -> str:
    """Return the rows as a JSON array of arrays; SQLite keeps instants as microseconds since 1970."""
    plain: list[Any] = rows
    if dialect == "sqlite":
        plain = [
            [microseconds(value) if isinstance(value, datetime) else value for value in astuple(row)] for row in rows
        ]
    encoded = msgspec.json.encode(plain).decode()
    if r"\u0000" in encoded:  # no database keeps that in a text
        cleaned = [[_cleaned(value) for value in row] for row in msgspec.json.decode(encoded)]
        encoded = msgspec.json.encode(cleaned).decode()
    return encoded


def _cleaned(value: object) -> object:
    return storable(value) if isinstance(value, str) else value
