"""Queries of `variable`. Every value is encrypted, because names do not show which values are secret."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import StoreError
from asynsched.store.rows import as_struct, check_name, delete_named, get_named, storable
from asynsched.store.schema import ID_LENGTH, VariableRow, variable
from asynsched.store.secrets.encryption import reading_cipher, writing_cipher
from asynsched.store.statements import insert_or_update


def list_variables(conn: Connection) -> list[VariableRow]:
    """Return all variables, by key."""
    cipher = reading_cipher(conn)
    return [as_struct(VariableRow, row, value=cipher.decrypt(row.value)) for row in _rows(conn)]


def variable_names(conn: Connection) -> list[tuple[str, str]]:
    """Return key and description of all variables, by key, without decrypting their values."""
    return [(row.key, row.description) for row in _rows(conn)]


def _rows(conn: Connection) -> "sa.CursorResult[Any]":
    return conn.execute(sa.select(variable).order_by(variable.c.key))


def get_variable(conn: Connection, key: str) -> VariableRow:
    """Return a variable. Raises NotFound with the nearest keys."""
    row = get_named(conn, "variable", variable.c.key, key)
    return as_struct(VariableRow, row, value=reading_cipher(conn).decrypt(row.value))


def set_variable(conn: Connection, key: str, value: str, description: str = "") -> None:
    """Create or change a variable. Raises StoreError for a bad key, or a value that no database can store."""
    check_name("variable key", key, ID_LENGTH)
    if storable(value) != value:
        raise StoreError(f"The variable {key!r} cannot hold a NUL character or half of a surrogate pair.")
    token = writing_cipher(conn).encrypt(value)
    conn.execute(insert_or_update(conn, variable), {"key": key, "value": token, "description": description})


def delete_variable(conn: Connection, key: str) -> None:
    """Delete a variable. Raises NotFound with the nearest keys."""
    delete_named(conn, "variable", variable.c.key, key)
