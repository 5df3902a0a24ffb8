"""Queries of `variable`. Every value is encrypted, because names do not show which values are secret."""

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound, StoreError
from asynsched.store.rows import as_struct, check_name, near_names, storable
from asynsched.store.schema import ID_LENGTH, VariableRow, variable
from asynsched.store.secrets.encryption import reading_cipher, writing_cipher
from asynsched.store.statements import insert_or_update

_ALL = sa.select(variable).order_by(variable.c.key)
_ONE = sa.select(variable).where(variable.c.key == sa.bindparam("key"))
_KEYS = sa.select(variable.c.key).order_by(variable.c.key)
_DELETE = sa.delete(variable).where(variable.c.key == sa.bindparam("name"))


def list_variables(conn: Connection) -> list[VariableRow]:
    """Return all variables, by key."""
    cipher = reading_cipher(conn)
    return [as_struct(VariableRow, row, value=cipher.decrypt(row.value)) for row in conn.execute(_ALL)]


def variable_names(conn: Connection) -> list[tuple[str, str]]:
    """Return key and description of all variables, by key, without decrypting their values."""
    return [(row.key, row.description) for row in conn.execute(_ALL)]


def get_variable(conn: Connection, key: str) -> VariableRow:
    """Return a variable.

    Raises:
        NotFound: It does not exist; carries the nearest keys.
    """
    row = conn.execute(_ONE, {"key": key}).first()
    if row is None:
        raise NotFound("variable", key, near_names(key, conn.scalars(_KEYS)))
    return as_struct(VariableRow, row, value=reading_cipher(conn).decrypt(row.value))


def set_variable(conn: Connection, key: str, value: str, description: str = "") -> None:
    """Create or change a variable.

    Raises:
        StoreError: The key is empty or too long, or no database can store the value.
    """
    check_name("variable key", key, ID_LENGTH)
    if storable(value) != value:
        raise StoreError(f"The variable {key!r} cannot hold a NUL character or half of a surrogate pair.")
    token = writing_cipher(conn).encrypt(value)
    conn.execute(insert_or_update(conn, variable), {"key": key, "value": token, "description": description})


def delete_variable(conn: Connection, key: str) -> None:
    """Delete a variable.

    Raises:
        NotFound: It does not exist; carries the nearest keys.
    """
    if conn.execute(_DELETE, {"name": key}).rowcount == 0:
        raise NotFound("variable", key, near_names(key, conn.scalars(_KEYS)))
