"""Questions about variables and connections, and actions on them. No answer has a password.

A list shows short values only, so that a page is small: a longer one is None, and `get_…` returns it. Fields whose
names sound secret are hidden, as in Airflow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.authoring.connection import FIELDS
from asynsched.authoring.connection import Connection as AuthorsConnection
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.masking import MASK, redact
from asynsched.bell import Hint
from asynsched.errors import AlreadyExists, StoreError
from asynsched.queries.context import Act
from asynsched.queries.paging import FIRST_PAGE, BadRequest, Page, Paging, Pattern, Sorting, select_page
from asynsched.store import secrets as store
from asynsched.store.rows import count, existing_names, length
from asynsched.store.schema import VariableRow, connection, variable
from asynsched.store.secrets import ConnectionRow

LONGEST_LISTED = 16 * 1024
"""Characters of the longest encrypted value that a list shows."""
VARIABLES = Sorting({"key": variable.c.key, "description": variable.c.description}, key=variable.c.key, usual=("key",))
CONNECTIONS = Sorting(
    {"conn_id": connection.c.conn_id, "conn_type": connection.c.conn_type, "description": connection.c.description},
    key=connection.c.conn_id,
    usual=("conn_id",),
)
_VARIABLES: sa.Select[Any] = sa.select(
    variable.c.key,
    variable.c.description,
    sa.case((length(variable.c.value) <= LONGEST_LISTED, variable.c.value)).label("value"),
)
_CONNECTIONS: sa.Select[Any] = sa.select(
    connection.c.conn_id,
    connection.c.conn_type,
    connection.c.description,
    sa.case((length(connection.c.secret) <= LONGEST_LISTED, connection.c.secret)).label("secret"),
)


class VariableInfo(Struct, frozen=True):
    """A variable. `value`: without secrets; None in a list if it is long."""

    key: str
    value: str | None
    description: str


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """A connection without its secrets: `password` and secret fields of `extra` are hidden."""

    conn_id: str
    conn_type: str
    description: str
    host: str | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    port: int | None = None
    extra: str | None = None


def list_variables(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[VariableInfo]:
    """Return variables. Raises BadRequest, and SecretsUnreadable."""
    rows, after = select_page(conn, _VARIABLES.where(*name.holds_for(variable.c.key)), VARIABLES, paging)
    cipher = store.reading_cipher(conn)
    texts = [None if row.value is None else cipher.decrypt(row.value) for row in rows]
    return Page(tuple(_variable(row.key, text, row.description) for row, text in zip(rows, texts, strict=True)), after)


def list_variable_names(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[VariableInfo]:
    """Return variables without their values, which are not decrypted. Raises BadRequest."""
    named = sa.select(variable.c.key, variable.c.description).where(*name.holds_for(variable.c.key))
    rows, after = select_page(conn, named, VARIABLES, paging)
    return Page(tuple(VariableInfo(row.key, None, row.description) for row in rows), after)


def count_variables(conn: Connection, name: Pattern) -> int:
    """Count such variables."""
    return count(conn, sa.select(variable.c.key).where(*name.holds_for(variable.c.key)))


def get_variable(conn: Connection, key: str) -> VariableInfo:
    """Return a variable. Raises NotFound with the nearest keys, and SecretsUnreadable."""
    return _info(store.get_variable(conn, key))


def create_variable(conn: Connection, key: str, value: str, description: str = "") -> Act[VariableInfo]:
    """Create a variable. Raises AlreadyExists, and StoreError for a key or value that cannot be stored."""
    if existing_names(conn, variable.c.key, [key]):
        raise AlreadyExists(f"The variable {key!r} already exists.")
    return set_variable(conn, key, value, description)


def set_variable(conn: Connection, key: str, value: str, description: str = "") -> Act[VariableInfo]:
    """Create or replace a variable. Raises StoreError for a key or value that cannot be stored."""
    store.set_variable(conn, key, value, description)
    return _of_variable(_variable(key, value, description), "variable.set")


def change_variable(
    conn: Connection, key: str, *, value: str | None = None, description: str | None = None
) -> Act[VariableInfo]:
    """Change a variable; None changes nothing, nor does the mask instead of a hidden value. Raises NotFound."""
    before = store.get_variable(conn, key)
    if value is None or value == _info(before).value:
        value = before.value
    return set_variable(conn, key, value, before.description if description is None else description)


def delete_variable(conn: Connection, key: str) -> Act[VariableInfo]:
    """Delete a variable. Raises NotFound with the nearest keys."""
    store.delete_variable(conn, key)
    return _of_variable(VariableInfo(key, None, ""), "variable.delete")


def import_variables(conn: Connection, variables: Mapping[str, tuple[str, str]]) -> Act[list[str]]:
    """Create or replace variables, each with its value and its description. Raises the errors of `set_variable`."""
    for key, (value, description) in variables.items():
        store.set_variable(conn, key, value, description)
    return Act([*variables], "variable.import", Hint("variable"), detail={"keys": [*variables]})


def list_connections(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[ConnectionInfo]:
    """Return connections. Raises BadRequest, and SecretsUnreadable."""
    rows, after = select_page(conn, _CONNECTIONS.where(*name.holds_for(connection.c.conn_id)), CONNECTIONS, paging)
    cipher = store.reading_cipher(conn)
    return Page(tuple(_listed_connection(cipher, row) for row in rows), after)


def list_connection_names(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[tuple[str, str, str]]:
    """Return name, type and description of connections, without decrypting the rest. Raises BadRequest."""
    named = sa.select(*CONNECTIONS.names.values()).where(*name.holds_for(connection.c.conn_id))
    rows, after = select_page(conn, named, CONNECTIONS, paging)
    return Page(tuple((row.conn_id, row.conn_type, row.description or "") for row in rows), after)


def count_connections(conn: Connection, name: Pattern) -> int:
    """Count such connections."""
    return count(conn, sa.select(connection.c.conn_id).where(*name.holds_for(connection.c.conn_id)))


def get_connection(conn: Connection, conn_id: str) -> ConnectionInfo:
    """Return a connection. Raises NotFound with the nearest names, and SecretsUnreadable."""
    return without_secrets(store.get_connection(conn, conn_id))


def create_connection(conn: Connection, conn_id: str, parts: Mapping[str, Any]) -> Act[ConnectionInfo]:
    """Create a connection of these parts. Raises AlreadyExists, and StoreError if they make none."""
    made = checked_connection(conn_id, parts)
    store.add_connection(conn, made)
    return _of_connection(without_secrets(made), "connection.add")


def set_connection(conn: Connection, conn_id: str, parts: Mapping[str, Any]) -> Act[ConnectionInfo]:
    """Create a connection of these parts, or replace one as a whole. Raises StoreError, and BadRequest."""
    made = checked_connection(conn_id, parts)
    store.set_connection(conn, made)
    return _of_connection(without_secrets(made), "connection.set")


def import_connections(conn: Connection, rows: Sequence[ConnectionRow]) -> Act[list[str]]:
    """Create or replace connections. Raises StoreError."""
    for row in rows:
        store.set_connection(conn, row)
    names = [row.conn_id for row in rows]
    return Act(names, "connection.import", Hint("connection"), detail={"conn_ids": names})


def change_connection(conn: Connection, conn_id: str, parts: Mapping[str, Any]) -> Act[ConnectionInfo]:
    """Change parts of a connection; the mask instead of a secret keeps it. Raises NotFound, and StoreError."""
    before = store.get_connection(conn, conn_id)
    changed = dict(parts)
    if changed.get("password") == MASK:
        del changed["password"]
    if isinstance(extra := changed.get("extra"), str):
        changed["extra"] = _with_secrets(extra, before.extra)
    return set_connection(conn, conn_id, {name: getattr(before, name) for name in FIELDS} | changed)


def delete_connection(conn: Connection, conn_id: str) -> Act[ConnectionInfo]:
    """Delete a connection. Raises NotFound with the nearest names."""
    store.delete_connection(conn, conn_id)
    return _of_connection(ConnectionInfo(conn_id=conn_id, conn_type="", description=""), "connection.delete")


def without_secrets(row: ConnectionRow) -> ConnectionInfo:
    """Return a connection as it is shown."""
    extra = _json(row.extra) if row.extra else None
    return ConnectionInfo(
        conn_id=row.conn_id, conn_type=row.conn_type, description=row.description or "", host=row.host,
        schema=row.schema, login=row.login, port=row.port, password=MASK if row.password else row.password,
        extra=_text(redact(extra, max_depth=DEEPEST)) if isinstance(extra, dict) else None,
    )  # fmt: skip


DEEPEST = 100
"""Levels of JSON in which secrets are looked for; the decoder of JSON allows not many more."""


def _info(row: VariableRow) -> VariableInfo:
    return _variable(row.key, row.value, row.description)


def _variable(key: str, value: str | None, description: str) -> VariableInfo:
    if value is not None:
        structure = _json(value)
        if isinstance(structure, dict | list):
            shown = redact(structure, key, max_depth=DEEPEST)
            value = value if shown == structure else _text(shown)
        else:
            value = redact(value, key)
    return VariableInfo(key, value, description)


def _listed_connection(cipher: store.Cipher, row: "Row[Any]") -> ConnectionInfo:
    if row.secret is None:
        return ConnectionInfo(conn_id=row.conn_id, conn_type=row.conn_type, description=row.description)
    return without_secrets(store.opened_connection(cipher, row))


def _of_variable(info: VariableInfo, action: str) -> Act[VariableInfo]:
    return Act(info, action, Hint("variable", name=info.key), detail={"key": info.key})


def _of_connection(info: ConnectionInfo, action: str) -> Act[ConnectionInfo]:
    return Act(info, action, Hint("connection", name=info.conn_id), detail={"conn_id": info.conn_id})


def checked_connection(conn_id: str, parts: Mapping[str, Any]) -> ConnectionRow:
    """Return a connection of these parts, or of its `uri`. Raises BadRequest, and StoreError if they make none."""
    if unknown := set(parts) - {*FIELDS, "uri"}:
        raise BadRequest(f"The connection {conn_id!r} has unknown fields: {', '.join(sorted(unknown))}.")
    try:
        made = AuthorsConnection(conn_id, **parts)
    except (AsynschedException, ValueError, TypeError) as exc:
        raise StoreError(str(exc)) from exc
    if not made.conn_type:
        raise BadRequest(f"The connection {conn_id!r} needs a type: give `conn_type`, or a URI that begins with one.")
    if made.extra and not isinstance(_json(made.extra), dict):
        raise BadRequest(f"The connection {conn_id!r}: its extra is not a JSON object.")
    return ConnectionRow(conn_id, **{name: getattr(made, name) for name in FIELDS})


def _with_secrets(text: str, before: str | None) -> str:
    """Return an extra in which the secrets of the one before stand where it has the mask."""
    changed, known = _json(text), _json(before or "")
    return _text(_unmasked(changed, known)) if isinstance(changed, dict) and isinstance(known, dict) else text


def _unmasked(value: Any, before: Any) -> Any:
    if value == MASK:
        return before if isinstance(before, str) else value
    if isinstance(value, dict) and isinstance(before, dict):
        return {name: _unmasked(item, before.get(name)) for name, item in value.items()}
    if isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        return [_unmasked(*pair) for pair in zip(value, before, strict=True)]
    return value


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
