"""Queries of `connection`: how to reach other systems. Rows hold passwords: never log or print one as it is."""

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import AlreadyExists, NotFound
from asynsched.store.conflicts import insert_ignoring, insert_or_update
from asynsched.store.metadata import ID_LENGTH
from asynsched.store.rows import as_struct, check_name, near_names
from asynsched.store.tables import connection


class ConnectionRow(Struct, frozen=True):
    """A Connection. `extra` is text, by convention a JSON object."""

    conn_id: str
    conn_type: str
    description: str | None = None
    host: str | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    port: int | None = None
    extra: str | None = None

    def __repr__(self) -> str:
        return f"ConnectionRow({self.conn_id!r}, {self.conn_type!r}, …)"


_ALL = sa.select(connection).order_by(connection.c.conn_id)
_ONE = sa.select(connection).where(connection.c.conn_id == sa.bindparam("conn_id"))
_IDS = sa.select(connection.c.conn_id).order_by(connection.c.conn_id)
_DELETE = sa.delete(connection).where(connection.c.conn_id == sa.bindparam("name"))


def list_connections(conn: Connection) -> list[ConnectionRow]:
    """Return all connections, by conn_id."""
    return [as_struct(ConnectionRow, row) for row in conn.execute(_ALL)]


def get_connection(conn: Connection, conn_id: str) -> ConnectionRow:
    """Return a connection.

    Raises:
        NotFound: There is none; carries the nearest names.
    """
    row = conn.execute(_ONE, {"conn_id": conn_id}).first()
    if row is None:
        raise NotFound("connection", conn_id, near_names(conn_id, conn.scalars(_IDS)))
    return as_struct(ConnectionRow, row)


def add_connection(conn: Connection, added: ConnectionRow) -> None:
    """Make a connection.

    Raises:
        AlreadyExists: There is one of that name.
        StoreError: The name is empty or too long.
    """
    if conn.execute(insert_ignoring(conn, connection), _values(added)).rowcount == 0:
        raise AlreadyExists(f"There is a connection {added.conn_id!r} already; delete it first.")


def set_connection(conn: Connection, changed: ConnectionRow) -> None:
    """Make a connection, or replace it. Raises StoreError when the name is empty or too long."""
    conn.execute(insert_or_update(conn, connection), _values(changed))


def delete_connection(conn: Connection, conn_id: str) -> None:
    """Delete a connection.

    Raises:
        NotFound: There is none; carries the nearest names.
    """
    if conn.execute(_DELETE, {"name": conn_id}).rowcount == 0:
        raise NotFound("connection", conn_id, near_names(conn_id, conn.scalars(_IDS)))


def _values(row: ConnectionRow) -> dict[str, object]:
    check_name("connection name", row.conn_id, ID_LENGTH)
    return {**msgspec.structs.asdict(row), "description": row.description or ""}
