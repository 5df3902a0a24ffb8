"""Secrets at rest: the database stores connections, variables, and triggers of deferred tasks as Fernet tokens.

The database has the name of the key that encrypts its secrets, never the key itself. So a scheduler or command with
the wrong key fails immediately, and cannot mix keys. The keys come with the connection (`execution_options`). Secrets
that no key decrypts can be listed and deleted. Every variable is encrypted, because names do not show which values are
secret, and all of a connection but its name, type and description. Never log or print a whole row.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.errors import AlreadyExists, SecretsUnreadable, StoreError
from asynsched.fernet_keys import FernetKeys
from asynsched.store.rows import (
    as_struct,
    check_description,
    check_name,
    delete_named,
    get_named,
    select_in,
    storable,
)
from asynsched.store.schema import (
    ID_LENGTH,
    LONGEST_CONN_TYPE,
    VariableRow,
    connection,
    dag_run,
    fernet_key,
    task_instance,
    variable,
)
from asynsched.store.statements import insert_ignoring, insert_or_update

OPTION = "asynsched_fernet_keys"
ONLY_ROW = 1

_KEY_ID = sa.select(fernet_key.c.key_id).where(fernet_key.c.id == ONLY_ROW)
# Encryption locks the row, so that the key does not change in between.
_KEY_ID_TO_USE = _KEY_ID.with_for_update(read=True)


def execution_options(keys: FernetKeys | None, *, in_memory: bool = False) -> dict[str, Any]:
    """Return the options of an engine whose queries find these keys. A database in memory is not encrypted."""
    return {} if in_memory else {OPTION: keys}


class Cipher(NamedTuple):
    """Keys, and the name of the one that encrypts. Without keys, texts stay as they are."""

    keys: FernetKeys | None
    key_id: str = ""

    def encrypt(self, text: str) -> str:
        """Return a secret as the database stores it."""
        return text if self.keys is None else self.keys.encrypt(text, self.key_id)

    def decrypt(self, token: str) -> str:
        """Return the plain text of a stored secret. Raises SecretsUnreadable."""
        return token if self.keys is None else self.keys.decrypt(token)


def reading_cipher(conn: Connection) -> Cipher:
    """Return the cipher that decrypts the secrets of this database. Raises SecretsUnreadable as `check_key` does."""
    keys = keys_of_connection(conn)
    if keys is not None:
        check_key(conn)
    return Cipher(keys)


def writing_cipher(conn: Connection) -> Cipher:
    """Return the cipher that encrypts secrets in this transaction. A database's first secret decides its key.

    Raises SecretsUnreadable if the key that encrypts the other secrets is missing.
    """
    keys = keys_of_connection(conn)
    if keys is None:
        return Cipher(None)
    key_id = conn.scalar(_KEY_ID_TO_USE)
    if key_id is None:
        conn.execute(insert_ignoring(conn, fernet_key), {"id": ONLY_ROW, "key_id": keys.first()})
        key_id = conn.scalar(_KEY_ID_TO_USE)
    _require(keys, str(key_id))
    return Cipher(keys, str(key_id))


def check_key(conn: Connection) -> str | None:
    """Return the name of the key that encrypts the database's secrets; None while it has none.

    Raises SecretsUnreadable if that key is missing.
    """
    keys, key_id = keys_of_connection(conn), conn.scalar(_KEY_ID)
    if keys is not None and key_id is not None:
        _require(keys, key_id)
    return key_id


def change_key(conn: Connection, *, is_lost: bool = False) -> int:
    """Encrypt every secret with the first key. Returns their number.

    Raises SecretsUnreadable if the former key is missing, unless it `is_lost` and none of its secrets is left.
    """
    keys = keys_of_connection(conn)
    assert keys is not None
    before, after = conn.scalar(_KEY_ID.with_for_update()), keys.first()
    if before is not None and not is_lost:
        _require(keys, before)
    conn.execute(insert_or_update(conn, fernet_key), {"id": ONLY_ROW, "key_id": after})
    return sum(_change_column(conn, keys, column, after) for column in _SECRET_COLUMNS)


_SECRET_COLUMNS = (connection.c.secret, task_instance.c.deferral, variable.c.value)


def _change_column(conn: Connection, keys: FernetKeys, column: sa.Column[Any], key_id: str) -> int:
    """Encrypt one column again, row by row in key order, which is the order of locks."""
    table = column.table
    key = next(iter(table.primary_key.columns))
    update = sa.update(table).where(key == sa.bindparam("row"))
    rows = conn.execute(sa.select(key, column).where(column.is_not(None)).order_by(key).with_for_update()).all()
    for row, token in rows:
        conn.execute(update, {"row": row, column.name: keys.encrypt(keys.decrypt(token), key_id)})
    return len(rows)


def keys_of_connection(conn: Connection) -> FernetKeys | None:
    """Return the keys of a connection; None where secrets are not encrypted."""
    options = conn.get_execution_options()
    if OPTION not in options:
        return None
    keys = options[OPTION]
    if keys is None:
        raise SecretsUnreadable("This database was opened without the keys of its secrets.")
    assert isinstance(keys, FernetKeys)
    return keys


def _require(keys: FernetKeys, key_id: str) -> None:
    if keys.has(key_id):
        return
    found = ", ".join(keys.key_ids)
    raise SecretsUnreadable(
        f"The secrets in the database are encrypted with the key {key_id}, but {keys.source}"
        f" {f'has {found}' if found else 'has no key'}. Put that key there, or name it with ASYNSCHED_FERNET_KEY or"
        " fernet_key_file. All schedulers and commands of one database need the same key. If it is lost for good:"
        " `asynsched db rotate-key --lost`."
    )


class LostSecret(NamedTuple):
    """An unreadable secret: a connection, a variable, or the trigger of a deferred task."""

    kind: str
    name: str


def _secrets_of(key: "sa.Column[Any]", token: "sa.Column[Any]") -> sa.Select[Any]:
    return sa.select(key.label("key"), key.label("name"), token.label("token")).order_by("name")


_VARIABLES = _secrets_of(variable.c.key, variable.c.value)
_CONNECTIONS = _secrets_of(connection.c.conn_id, connection.c.secret)
_DEFERRED = (
    sa.select(
        task_instance.c.id.label("key"),
        (dag_run.c.dag_id + " " + dag_run.c.run_id + " " + task_instance.c.task_id).label("name"),
        task_instance.c.deferral.label("token"),
    )
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .where(task_instance.c.deferral.is_not(None))
    .order_by(task_instance.c.id)
)


def lost_secrets(conn: Connection) -> list[LostSecret]:
    """Return the secrets that no key decrypts. Raises SecretsUnreadable when the keys cannot be read."""
    found = [("connection", _CONNECTIONS), ("variable", _VARIABLES), ("deferred task", _DEFERRED)]
    return [LostSecret(kind, row.name) for kind, query in found for row in _unreadable(conn, query)]


def forget_lost(conn: Connection) -> int:
    """Delete the secrets that no key decrypts, and encrypt the rest with the first key. Returns the number of the rest.

    This deletes connections and variables. A deferred task loses its trigger, and waits until it is cleared.
    """
    for query, column in ((_CONNECTIONS, connection.c.conn_id), (_VARIABLES, variable.c.key)):
        for row in _unreadable(conn, query):
            conn.execute(sa.delete(column.table).where(column == row.key))
    for row in _unreadable(conn, _DEFERRED):
        conn.execute(sa.update(task_instance).where(task_instance.c.id == row.key).values(deferral=None))
    return change_key(conn, is_lost=True)


def _unreadable(conn: Connection, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    keys = keys_of_connection(conn)
    found = []
    for row in [] if keys is None else conn.execute(query).all():
        try:
            Cipher(keys).decrypt(row.token)
        except SecretsUnreadable:
            found.append(row)
    return found


_BY_KEY = sa.select(variable).order_by(variable.c.key)


def list_variables(conn: Connection) -> list[VariableRow]:
    """Return all variables, by key."""
    cipher = reading_cipher(conn)
    return [as_struct(VariableRow, row, value=cipher.decrypt(row.value)) for row in conn.execute(_BY_KEY)]


def variable_names(conn: Connection) -> list[tuple[str, str]]:
    """Return key and description of all variables, by key, without decrypting their values."""
    return [(row.key, row.description) for row in conn.execute(_BY_KEY)]


def variable_keys(conn: Connection, prefix: str) -> list[str]:
    """Return the keys of all variables that begin so, sorted."""
    return [key for key in conn.scalars(sa.select(variable.c.key).order_by(variable.c.key)) if key.startswith(prefix)]


def get_variable(conn: Connection, key: str) -> VariableRow:
    """Return a variable. Raises NotFound with the nearest keys."""
    row = get_named(conn, "variable", variable.c.key, key)
    return as_struct(VariableRow, row, value=reading_cipher(conn).decrypt(row.value))


def set_variable(conn: Connection, key: str, value: str, description: str = "") -> None:
    """Create or change a variable. Raises StoreError for a bad key, or a value that no database can store."""
    check_name("variable key", key, ID_LENGTH)
    check_description("variable", key, description)
    if storable(value) != value:
        raise StoreError(f"The variable {key!r} cannot hold a NUL character or half of a surrogate pair.")
    token = writing_cipher(conn).encrypt(value)
    conn.execute(insert_or_update(conn, variable), {"key": key, "value": token, "description": description})


def delete_variable(conn: Connection, key: str) -> None:
    """Delete a variable. Raises NotFound with the nearest keys."""
    delete_named(conn, "variable", variable.c.key, key)


def digests_of(conn: Connection, kind: Literal["variable", "connection"], names: Sequence[str]) -> dict[str, str]:
    """Return a digest of each of these variables or connections that exists; it changes with the value.

    It is the digest of the encrypted value, so no value can be found from it.
    """
    key, secret = _KEY_AND_SECRET[kind]
    rows = select_in(conn, sa.select(key.label("key"), secret.label("secret")), key, names)
    return {row.key: hashlib.sha256(row.secret.encode()).hexdigest()[:_DIGEST_LENGTH] for row in rows}


_KEY_AND_SECRET = {
    "variable": (variable.c.key, variable.c.value), "connection": (connection.c.conn_id, connection.c.secret)
}  # fmt: skip
_DIGEST_LENGTH = 32


class Sealed(NamedTuple):
    """A variable or a connection as it is stored, with what decrypts it: for a large one, a thread."""

    kind: Literal["variable", "connection"]
    row: Row[Any]
    cipher: Cipher

    @property
    def size(self) -> int:
        """The length of the encrypted value."""
        return len(self.row.value if self.kind == "variable" else self.row.secret)

    def open(self) -> "VariableRow | ConnectionRow":
        """Decrypt it. Raises SecretsUnreadable."""
        if self.kind == "connection":
            return opened_connection(self.cipher, self.row)
        return as_struct(VariableRow, self.row, value=self.cipher.decrypt(self.row.value))


def sealed(conn: Connection, kind: Literal["variable", "connection"], name: str) -> Sealed:
    """Return a variable or a connection. Raises NotFound with the nearest names, or SecretsUnreadable."""
    column, _ = _KEY_AND_SECRET[kind]
    return Sealed(kind, get_named(conn, kind, column, name), reading_cipher(conn))


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
_BY_CONN_ID = sa.select(connection).order_by(connection.c.conn_id)


def list_connections(conn: Connection) -> list[ConnectionRow]:
    """Return all connections, by conn_id."""
    cipher = reading_cipher(conn)
    return [opened_connection(cipher, found) for found in conn.execute(_BY_CONN_ID)]


def connection_names(conn: Connection) -> list[tuple[str, str, str | None]]:
    """Return name, type and description of all connections, by name, without decrypting the rest."""
    return [(row.conn_id, row.conn_type, row.description) for row in conn.execute(_BY_CONN_ID)]


def get_connection(conn: Connection, conn_id: str) -> ConnectionRow:
    """Return a connection. Raises NotFound with the nearest names."""
    row = get_named(conn, "connection", connection.c.conn_id, conn_id)
    return opened_connection(reading_cipher(conn), row)


def add_connection(conn: Connection, added: ConnectionRow) -> None:
    """Create a connection. Raises AlreadyExists, or StoreError for a name that Airflow does not allow."""
    if conn.execute(insert_ignoring(conn, connection), _values(conn, added)).rowcount == 0:
        raise AlreadyExists(f"The connection {added.conn_id!r} already exists; delete it first.")


def set_connection(conn: Connection, changed: ConnectionRow) -> None:
    """Create or replace a connection. Raises StoreError as `add_connection` does."""
    conn.execute(insert_or_update(conn, connection), _values(conn, changed))


def delete_connection(conn: Connection, conn_id: str) -> None:
    """Delete a connection. Raises NotFound with the nearest names."""
    delete_named(conn, "connection", connection.c.conn_id, conn_id)


def opened_connection(cipher: Cipher, found: Row[Any]) -> ConnectionRow:
    """Return the connection of a stored row. Raises SecretsUnreadable."""
    secret = msgspec.json.decode(cipher.decrypt(found.secret), type=dict[str, Any])
    return ConnectionRow(found.conn_id, found.conn_type, found.description, **secret)


def _values(conn: Connection, row: ConnectionRow) -> dict[str, object]:
    check_name("connection name", row.conn_id, ID_LENGTH)
    if _CONN_ID.fullmatch(row.conn_id) is None:
        raise StoreError(f"A connection name has letters, digits and the signs {_SIGNS} only: {row.conn_id!r}.")
    if row.conn_type:
        check_name("connection type", row.conn_type, LONGEST_CONN_TYPE)
    check_description("connection", row.conn_id, row.description or "")
    fields = msgspec.structs.asdict(row)
    shown = {name: fields.pop(name) for name in ("conn_id", "conn_type", "description")}
    secret = writing_cipher(conn).encrypt(msgspec.json.encode(fields).decode())
    return {**shown, "description": row.description or "", "secret": secret}
