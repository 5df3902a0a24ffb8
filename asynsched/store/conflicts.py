"""Inserts that meet an existing row: skip it, or take its place.

Both databases say it alike, SQLAlchemy in two dialects. Statements are built once for each table and dialect, so that
SQLAlchemy finds their compiled form again.
"""

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection


def insert_ignoring(conn: Connection, table: sa.Table) -> Any:
    """Return an INSERT that leaves an existing row of the same key as it is."""
    return _ignoring(table, conn.dialect.name)


def insert_or_update(conn: Connection, table: sa.Table, source: "sa.Select[Any] | None" = None) -> Any:
    """Return an INSERT that overwrites every column of an existing row with the same primary key.

    Args:
        conn: Whose dialect it is to be in.
        table: Where it inserts.
        source: What it inserts, column by column in their order, with a WHERE; None: the values that it is given.
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
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # loaded only where it is used

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
