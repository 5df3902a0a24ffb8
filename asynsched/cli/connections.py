"""`asynsched connections …`. Passwords are hidden wherever a connection is shown; only `export` writes them."""

from typing import Any

import click
import msgspec
from sqlalchemy import Connection as DatabaseConnection

from asynsched.authoring.connection import FIELDS, Connection
from asynsched.authoring.exceptions import AsynschedException
from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, Record, are, note
from asynsched.cli.session import Session
from asynsched.cli.text_files import STANDARD_STREAM, read_text, write_private
from asynsched.errors import SecretsUnreadable
from asynsched.protocol.sensitive import is_sensitive
from asynsched.store import secrets as store

COLUMNS = ("conn_id", *FIELDS)
USUAL_COLUMNS = ("conn_id", "conn_type", "host", "port", "schema", "login", "description")
HIDDEN = "***"


@command("list", tables=True)
def show_connections(session: Session) -> Listing:
    """List the connections. Passwords are hidden, and without the key there are only names and types."""
    try:
        rows = [_shown(row) for row in session.read(store.list_connections)]
    except SecretsUnreadable as exc:
        note(f"Warning: of the connections, only these fields can be read. {exc}")
        rows = [
            {"conn_id": conn_id, "conn_type": conn_type, "description": description}
            for conn_id, conn_type, description in session.read(store.connection_names)
        ]
    return Listing(COLUMNS, rows, "There are no connections.", usual=USUAL_COLUMNS, spare=("description",))


@command("get")
@click.argument("conn_id")
def show_connection(session: Session, conn_id: str) -> Record:
    """Show a connection. Its password is hidden."""
    return Record(_shown(session.read(store.get_connection, conn_id)))


@command("add")
@click.argument("conn_id")
@click.option("--conn-uri", "uri", metavar="URI", help="All of it: type://login:password@host:port/schema; - reads it.")
@click.option("--conn-type", help="Kind of system, e.g. postgres.")
@click.option("--conn-description", "description", help="Text for people.")
@click.option("--conn-host", "host", help="Host name or address.")
@click.option("--conn-login", "login", help="User name.")
@click.option("--conn-password", "password", help="Password; - reads it from standard input.")
@click.option("--conn-schema", "schema", help="Database, or the like.")
@click.option("--conn-port", "port", type=click.IntRange(0, 65535), help="Port.")
@click.option("--conn-extra", "extra", metavar="JSON", help="More, as an object.")
def add_connection(session: Session, conn_id: str, **parts: Any) -> Done:
    """Add a connection: by its URI, or by its parts.

    Standard input keeps a secret out of the list of processes.
    """
    for name in ("uri", "password"):
        if parts[name] == STANDARD_STREAM:
            parts[name] = read_text(STANDARD_STREAM).rstrip("\n")
    added = _checked(conn_id, parts)
    session.make()
    session.change("connection.add", lambda conn: store.add_connection(conn, added), detail={"conn_id": conn_id})
    return Done(f"Connection {conn_id!r} is added.", {"conn_id": conn_id})


@command("delete")
@click.argument("conn_id")
def delete_connection(session: Session, conn_id: str) -> Done:
    """Delete a connection."""
    session.change(
        "connection.delete", lambda conn: store.delete_connection(conn, conn_id), detail={"conn_id": conn_id}
    )
    return Done(f"Connection {conn_id!r} is deleted.", {"conn_id": conn_id})


@command("import")
@click.argument("file")
def import_connections(session: Session, file: str) -> Done:
    """Set connections from a JSON file; - is standard input.

    The file is an object: by conn_id its parts, or its URI, as Airflow writes it.
    """
    try:
        content = msgspec.json.decode(read_text(file), type=dict[str, dict[str, Any] | str])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        fail(f"{file}: not a JSON object of connections: {exc}")
    rows = []
    for conn_id, value in sorted(content.items()):
        parts = {"uri": value} if isinstance(value, str) else value
        if unknown := set(parts) - {*FIELDS, "uri"}:
            fail(f"{file}: the connection {conn_id!r} has unknown fields: {', '.join(sorted(unknown))}")
        rows.append(_checked(conn_id, parts))

    def write(conn: DatabaseConnection) -> None:
        for row in rows:
            store.set_connection(conn, row)

    names = [row.conn_id for row in rows]
    session.make()
    session.change("connection.import", write, detail={"conn_ids": names})
    return Done(f"{are(len(rows), 'connection')} set.", {"conn_ids": names})


@command("export")
@click.argument("file")
def export_connections(session: Session, file: str) -> Done | None:
    """Write all connections, with their passwords, as a JSON file that `import` reads; - is standard output."""
    rows = session.read(store.list_connections)
    content = {row.conn_id: {name: getattr(row, name) for name in FIELDS} for row in rows}
    return write_private(file, content, f"{are(len(content), 'connection')} written to {file}.")


def _checked(conn_id: str, parts: dict[str, Any]) -> store.ConnectionRow:
    try:
        made = Connection(conn_id, **parts)
    except (AsynschedException, ValueError, TypeError) as exc:
        fail(str(exc))
    if not made.conn_type:
        fail(f"The connection {conn_id!r} needs a type: give --conn-type, or a URI that begins with one.")
    if made.extra and not isinstance(_json(made.extra), dict):
        fail(f"The connection {conn_id!r}: its extra is not a JSON object.")
    return store.ConnectionRow(conn_id, **{name: getattr(made, name) for name in FIELDS})


def _shown(row: store.ConnectionRow) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in COLUMNS}
    shown["password"] = HIDDEN if row.password else row.password
    extra = _json(row.extra) if row.extra else None
    if isinstance(extra, dict):
        shown["extra"] = msgspec.json.encode(_without_secrets(extra)).decode()
    return shown


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _without_secrets(value: Any) -> Any:
    """Return a JSON value in which every field with the name of a secret is hidden."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_sensitive(key) else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
