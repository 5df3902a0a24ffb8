"""Statements that SQLAlchemy does not offer: inserts with a conflict clause, and statements for many rows.

An insert that meets a row skips it or replaces it. Both databases can do that, each in its own dialect of SQLAlchemy.
Statements are built once for each table and dialect, so that SQLAlchemy reuses their compiled form.

Many rows travel to the database as one JSON array: one statement for any number, built once for each database from the
fields of the rows' type. On PostgreSQL a statement that changes many rows locks them first, in the order of their keys,
so two transactions that change the same rows never deadlock; the server itself would lock them in the order of its
plan. Each row is looked up by its key, even if the server believes that the table is small: it expects an array to have
a hundred rows and keeps plans from when the table was new, so for one task it would read all rows.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, TextClause, text

from asynsched.store.rows import portions, storable
from asynsched.store.schema import DecodedJson, metadata, microseconds


def insert_ignoring(conn: Connection, table: sa.Table) -> Any:
    """Return an INSERT that leaves an existing row of the same key as it is."""
    return _ignoring(table, conn.dialect.name)


def insert_or_update(conn: Connection, table: sa.Table, source: "sa.Select[Any] | None" = None) -> Any:
    """Return an INSERT that overwrites every column of an existing row with the same primary key.

    `source` selects the values, column by column in the table's order, with a WHERE; None: the parameters.
    """
    return _updating(table, conn.dialect.name, source)


@cache
def _ignoring(table: sa.Table, dialect: str) -> Any:
    return _insert(table, dialect).on_conflict_do_nothing()


@cache
def _updating(table: sa.Table, dialect: str, source: "sa.Select[Any] | None") -> Any:
    insert = _insert(table, dialect)
    if source is not None:
        insert = insert.from_select([column.name for column in table.columns], source)
    keys = [column.name for column in table.primary_key]
    written = {column.name: insert.excluded[column.name] for column in table.columns if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=keys, set_=written)


def _insert(table: sa.Table, dialect: str) -> Any:
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)  # loaded only where it is used


DIALECTS = ("sqlite", "postgresql")
_SQL_TYPES = {int: "bigint", bool: "boolean", float: "double precision", datetime: "timestamptz"}


def for_each_dialect(build: Callable[[str], str]) -> dict[str, TextClause]:
    """Build a statement for each dialect."""
    return {dialect: text(build(dialect)) for dialect in DIALECTS}


def rows_of(row: type, dialect: str, parameter: str = "rows") -> str:
    """Return a table expression that reads a JSON array of rows, each an array of the fields of a `row`."""
    fields = enumerate(get_type_hints(row).items())
    if dialect == "sqlite":
        columns = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, (name, _) in fields)
        return f"(SELECT {columns} FROM json_each(:{parameter}))"  # noqa: S608 - names come from our own types
    columns = ", ".join(f"CAST(item ->> {place} AS {_sql_type(hint)}) AS {name}" for place, (name, hint) in fields)
    return f"(SELECT {columns} FROM jsonb_array_elements(CAST(:{parameter} AS jsonb)) AS item)"  # noqa: S608 - as above


def _sql_type(hint: Any) -> str:
    kinds = get_args(hint) or (hint,)
    return next((sql for kind, sql in _SQL_TYPES.items() if kind in kinds), "text")


def insert_of(
    table: str,
    row: type[Struct],
    dialect: str,
    *,
    conflict: str,
    skip: frozenset[str] = frozenset({"id"}),
    extra: Mapping[str, str] | None = None,
) -> str:
    """Return an INSERT of structs, in their order, without the fields to `skip`.

    `conflict`: the clauses for an existing row, and for the returned columns; `extra`: expressions of further columns.
    """
    names = [name for name in row.__struct_fields__ if name not in skip]
    values = [_value(metadata.tables[table].c[name], dialect) for name in names]
    columns = ", ".join([*names, *(extra or {})])
    # WHERE true keeps SQLite from reading ON CONFLICT as a join's ON.
    return (
        f"INSERT INTO {table} ({columns}) SELECT {', '.join([*values, *(extra or {}).values()])}"  # noqa: S608 - as above
        f" FROM {rows_of(row, dialect)} AS v WHERE true ON CONFLICT {conflict}"
    )


def _value(column: "sa.Column[Any]", dialect: str) -> str:
    """Return the expression of a column's value. Values of binary columns arrive as text, and are converted."""
    if not isinstance(column.type, sa.LargeBinary | DecodedJson):
        return f"v.{column.name}"
    return f"CAST(v.{column.name} AS BLOB)" if dialect == "sqlite" else f"convert_to(v.{column.name}, 'UTF8')"


def update_of(
    table: str,
    struct: type[Struct],
    dialect: str,
    *,
    keys: tuple[str, ...],
    guard: str,
    given: str = "",
) -> str:
    """Return an UPDATE by structs that returns the keys of the changed rows.

    The keys are not written, nor are fields with values from before. `guard`: a further condition on a row `t` and a
    struct `v`; `given`: text before the UPDATE.
    """
    written = assignments(struct, keys)
    same = " AND ".join(f"t.{key} = v.{key}" for key in keys)
    rows = f"{rows_of(struct, dialect)} AS v"
    if dialect == "sqlite":
        changed = f"{table} AS t SET {written} FROM {rows} WHERE {same} AND {guard}"
        returned = ", ".join(keys)  # SQLite knows no alias there
    else:
        locked = (
            f"SELECT t.id AS row_id, v.* FROM (SELECT * FROM {rows} ORDER BY {', '.join(keys)}) AS v"  # noqa: S608 - as above
            f" CROSS JOIN LATERAL (SELECT * FROM {table} AS t WHERE {same} FOR NO KEY UPDATE) AS t WHERE {guard}"
        )
        changed = f"{table} AS t SET {written} FROM ({locked}) AS v WHERE t.id = v.row_id"
        returned = ", ".join(f"t.{key}" for key in keys)
    return f"{given}UPDATE {changed} RETURNING {returned}"


def assignments(struct: type[Struct], keys: tuple[str, ...]) -> str:
    """Return the assignments of an UPDATE by structs `v`: no keys, and no values from before."""
    skip = {*keys, "before_state", "before_try", "before_epoch"}
    return ", ".join(f"{name} = v.{name}" for name in struct.__struct_fields__ if name not in skip)


def execute_rows(conn: Connection, statement: TextClause, rows: Sequence[Any], **parameters: Any) -> list[Any]:
    """Execute a statement for rows, a thousand at a time, and return its rows."""
    returned: list[Any] = []
    for some in portions(rows):
        result = conn.execute(statement, {"rows": as_json(some, conn.dialect.name), **parameters})
        returned += result.all() if result.returns_rows else ()
    return returned


def as_json(rows: Sequence[Any], dialect: str) -> str:
    """Return rows as a JSON array of arrays; SQLite stores instants as microseconds since 1970."""
    plain: Sequence[Any] = [row if isinstance(row, tuple) else astuple(row) for row in rows]
    if dialect == "sqlite":
        plain = [[microseconds(value) if isinstance(value, datetime) else value for value in row] for row in plain]
    encoded = msgspec.json.encode(plain).decode()
    if r"\u0000" in encoded:  # no database stores NUL in a text
        cleaned = [[_cleaned(value) for value in row] for row in msgspec.json.decode(encoded)]
        encoded = msgspec.json.encode(cleaned).decode()
    return encoded


def _cleaned(value: object) -> object:
    return storable(value) if isinstance(value, str) else value
