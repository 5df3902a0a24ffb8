"""Queries of `connection`: access to other systems. Rows contain passwords: never log or print a whole row.

All fields but the name, the type and the description are encrypted: hosts and logins may hold secrets, too.
"""

import re
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.errors import AlreadyExists, StoreError
from asynsched.store.rows import check_name, delete_named, get_named
from asynsched.store.schema import ID_LENGTH, connection
from asynsched.store.secrets.encryption import Cipher, reading_cipher, writing_cipher
from asynsched.store.statements import insert_ignoring, insert_or_update


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


_SIGNS = "# ! ( ) - _ . : / \\"
_CONN_ID = re.compile(r"[\w#!()\-.:/\\]+")
"""Source: Airflow's `sanitize_conn_id`."""


def list_connections(conn: Connection) -> list[ConnectionRow]:
    """Return all connections, by conn_id."""
    cipher = reading_cipher(conn)
    return [_row(cipher, found) for found in _rows(conn)]


def connection_names(conn: Connection) -> list[tuple[str, str, str | None]]:
    """Return name, type and description of all connections, by name, without decrypting the rest."""
    return [(row.conn_id, row.conn_type, row.description) for row in _rows(conn)]


def _rows(conn: Connection) -> "sa.CursorResult[Any]":
    return conn.execute(sa.select(connection).order_by(connection.c.conn_id))


def get_connection(conn: Connection, conn_id: str) -> ConnectionRow:
    """Return a connection. Raises NotFound with the nearest names."""
    row = get_named(conn, "connection", connection.c.conn_id, conn_id)
    return _row(reading_cipher(conn), row)


def add_connection(conn: Connection, added: ConnectionRow) -> None:
    """Create a connection.

    Raises:
        AlreadyExists: A connection of that name exists.
        StoreError: The name is empty or too long, or has characters that Airflow does not allow.
    """
    if conn.execute(insert_ignoring(conn, connection), _values(conn, added)).rowcount == 0:
        raise AlreadyExists(f"The connection {added.conn_id!r} already exists; delete it first.")


def set_connection(conn: Connection, changed: ConnectionRow) -> None:
    """Create or replace a connection. Raises StoreError as `add_connection` does."""
    conn.execute(insert_or_update(conn, connection), _values(conn, changed))


def delete_connection(conn: Connection, conn_id: str) -> None:
    """Delete a connection. Raises NotFound with the nearest names."""
    delete_named(conn, "connection", connection.c.conn_id, conn_id)


def _row(cipher: Cipher, found: Row[Any]) -> ConnectionRow:
    secret = msgspec.json.decode(cipher.decrypt(found.secret), type=dict[str, Any])
    return ConnectionRow(found.conn_id, found.conn_type, found.description, **secret)


def _values(conn: Connection, row: ConnectionRow) -> dict[str, object]:
    check_name("connection name", row.conn_id, ID_LENGTH)
    if _CONN_ID.fullmatch(row.conn_id) is None:
        raise StoreError(f"A connection name has letters, digits and the signs {_SIGNS} only: {row.conn_id!r}.")
    fields = msgspec.structs.asdict(row)
    shown = {name: fields.pop(name) for name in ("conn_id", "conn_type", "description")}
    secret = writing_cipher(conn).encrypt(msgspec.json.encode(fields).decode())
    return {**shown, "description": row.description or "", "secret": secret}
