"""The statements that write a batch of state changes: one for each kind of change, the rows as a JSON array.

On PostgreSQL a statement that changes many rows locks them first, in the order of their ids: two transactions that
change the same rows then wait for one another, and never in a ring. Left to itself the server would take them in
whatever order its plan has.
"""

from msgspec import Struct
from sqlalchemy import TextClause, text

from asynsched.store.changes import CallbackRow, ExpandedRow, ForgottenRow, HistoryRow, RunRow, TaskRow, XComRow

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


def _update(
    table: str, struct: type[Struct], dialect: str, *, keys: tuple[str, ...], guard: str, given: str = ""
) -> str:
    skip = {*keys, "before_state", "before_try", "before_epoch"}
    written = ", ".join(f"{name} = v.{name}" for name in struct.__struct_fields__ if name not in skip)
    same = " AND ".join(f"t.{key} = v.{key}" for key in keys)
    rows = f"{_rows_of(struct, dialect)} AS v"
    if dialect == "sqlite":
        changed = f"{table} AS t SET {written} FROM {rows} WHERE {same} AND {guard}"
        returned = ", ".join(keys)  # there it knows the table alone, and not by its other name
    else:
        locked = (
            f"SELECT t.id AS row_id, v.* FROM {rows} JOIN {table} AS t ON {same} WHERE {guard}"  # noqa: S608 - as above
            " ORDER BY t.id FOR NO KEY UPDATE OF t"
        )
        changed = f"{table} AS t SET {written} FROM ({locked}) AS v WHERE t.id = v.row_id"
        returned = ", ".join(f"t.{key}" for key in keys)
    return f"{given}UPDATE {changed} RETURNING {returned}"


_ARE_ALL_SIGNED = "(SELECT count(*) FROM signed) = :n_needed"


def _signed(dialect: str) -> str:
    """Return what begins a statement that is given pools: those of them that are signed and have as many slots.

    Rows that somebody else holds are left out. A row that was changed since the statement began is looked at as it is.
    """
    rows, lock = "json_each(:needed)", ""
    if dialect == "postgresql":
        rows, lock = "jsonb_each_text(CAST(:needed AS jsonb))", " ORDER BY p.name FOR NO KEY UPDATE OF p SKIP LOCKED"
    return (
        "WITH signed AS MATERIALIZED (SELECT p.name"  # noqa: S608 - nothing but the above
        f" FROM pool AS p JOIN {rows} AS n ON p.name = n.key WHERE p.settled_by = :epoch"
        f" AND (p.slots = -1 OR p.slots >= CAST(n.value AS bigint)){lock}) "
    )


_SAME_TASK = "t.dag_run_id = v.dag_run_id AND t.task_id = v.task_id AND t.map_index = v.map_index"


def _statements(dialect: str) -> dict[str, TextClause]:
    none: frozenset[str] = frozenset()
    in_order = "" if dialect == "sqlite" else " ORDER BY t.id FOR UPDATE OF t"
    same_state = "IS" if dialect == "sqlite" else "IS NOT DISTINCT FROM"
    before = frozenset({"before_state", "before_try"})
    same_task = f"t.state {same_state} v.before_state AND t.try_number = v.before_try AND t.lease_epoch = :epoch"
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
            "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"), guard=same_task
        ),
        "update_tasks_at_once": _update(
            "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"),
            guard=f"{same_task} AND {_ARE_ALL_SIGNED}", given=_signed(dialect),
        ),
        "delete_expanded": "DELETE FROM task_instance WHERE id IN (SELECT t.id"  # noqa: S608 - as above
        f" FROM {_rows_of(ExpandedRow, dialect)} AS v JOIN task_instance AS t ON {_SAME_TASK}"
        f" WHERE t.state {same_state} v.before_state AND t.lease_epoch = :epoch{in_order})",
        "find_expanded": "SELECT t.dag_run_id, t.task_id, t.map_index"  # noqa: S608 - as above
        f" FROM {_rows_of(ExpandedRow, dialect)} AS v JOIN task_instance AS t ON {_SAME_TASK}",
        "update_runs": _update(
            "dag_run", RunRow, dialect, keys=("id",),
            guard="t.state = v.before_state AND t.lease_epoch = v.before_epoch",
        ),
    }  # fmt: skip
    return {name: text(statement) for name, statement in statements.items()}


STATEMENTS = {dialect: _statements(dialect) for dialect in ("sqlite", "postgresql")}
"""By dialect, then by name."""
