"""`asynsched connections …`. Passwords are hidden wherever a connection is shown; `export` alone writes them."""

from typing import Annotated, Any

import msgspec
import typer

from asynsched.authoring.connection import FIELDS, Connection
from asynsched.authoring.exceptions import AsynschedException
from asynsched.cli.command import command, fail, new_app
from asynsched.cli.rendering import Done, Listing, Record
from asynsched.cli.session import Session
from asynsched.cli.text_files import STANDARD_STREAM, read_text, write_private
from asynsched.store import connections as store
from sandbox.masking import is_sensitive

app = new_app()

HIDDEN = "***"

COLUMNS = ("conn_id", *FIELDS)
IdArgument = Annotated[str, typer.Argument(metavar="CONN_ID")]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="JSON; - for the standard stream.")]


@command(app, "list")
def list_connections(session: Session) -> Listing:
    """List the connections. Passwords are hidden."""
    return Listing(COLUMNS, [_shown(row) for row in session.read(store.list_connections)])


@command(app, "get")
def get_connection(session: Session, conn_id: IdArgument) -> Record:
    """Show a connection. Its password is hidden."""
    return Record(_shown(session.read(store.get_connection, conn_id)))


@command(app, "add")
def add_connection(
    session: Session,
    conn_id: IdArgument,
    *,
    conn_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="All of it as type://login:password@host:port/schema; - to read it."),
    ] = None,
    conn_type: Annotated[str | None, typer.Option(help="Kind of system, e.g. postgres.")] = None,
    conn_description: Annotated[str | None, typer.Option(help="Text for people.")] = None,
    conn_host: Annotated[str | None, typer.Option(help="Host name or address.")] = None,
    conn_login: Annotated[str | None, typer.Option(help="User name.")] = None,
    conn_password: Annotated[str | None, typer.Option(help="Password; - to read it from standard input.")] = None,
    conn_schema: Annotated[str | None, typer.Option(help="Database, or the like.")] = None,
    conn_port: Annotated[int | None, typer.Option(help="Port.")] = None,
    conn_extra: Annotated[str | None, typer.Option(help="More, as a JSON object.")] = None,
) -> Done:
    """Add a connection: by its URI, or by its parts. Standard input keeps a secret out of the list of processes."""
    parts = {
        "conn_type": conn_type, "host": conn_host, "login": conn_login, "password": _read(conn_password),
        "schema": conn_schema, "port": conn_port, "extra": conn_extra, "uri": _read(conn_uri),
    }  # fmt: skip
    added = _checked(conn_id, description=conn_description, **parts)
    session.change("connection.add", lambda conn: store.add_connection(conn, added), detail={"conn_id": conn_id})
    return Done(f"Connection {conn_id!r} is added.", {"conn_id": conn_id})


@command(app, "delete")
def delete_connection(session: Session, conn_id: IdArgument) -> Done:
    """Delete a connection."""
    session.change(
        "connection.delete", lambda conn: store.delete_connection(conn, conn_id), detail={"conn_id": conn_id}
    )
    return Done(f"Connection {conn_id!r} is deleted.", {"conn_id": conn_id})


@command(app, "import")
def import_connections(session: Session, file: FileArgument) -> Done:
    """Set connections from a JSON object: by conn_id its parts, or its URI, as Airflow writes it."""
    try:
        content = msgspec.json.decode(read_text(file), type=dict[str, dict[str, Any] | str])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        fail(f"{file}: this is no JSON object of connections: {exc}")
    rows = []
    for conn_id, value in sorted(content.items()):
        given = {"uri": value} if isinstance(value, str) else value
        if unknown := set(given) - {*FIELDS, "uri"}:
            fail(f"{file}: the connection {conn_id!r} has unknown fields: {', '.join(sorted(unknown))}")
        rows.append(_checked(conn_id, **given))

    def write(conn: Any) -> None:
        for row in rows:
            store.set_connection(conn, row)

    names = [row.conn_id for row in rows]
    session.change("connection.import", write, detail={"conn_ids": names})
    return Done(f"{len(rows)} connections are set.", {"conn_ids": names})


@command(app, "export")
def export_connections(session: Session, file: FileArgument) -> Done | None:
    """Write all connections, with their passwords, as a JSON object that `connections import` reads."""
    rows = session.read(store.list_connections)
    content = {row.conn_id: {name: getattr(row, name) for name in FIELDS} for row in rows}
    return write_private(file, content, f"{len(content)} connections are written to {file}.")


def _read(text: str | None) -> str | None:
    return read_text(text).rstrip("\n") if text == STANDARD_STREAM else text


def _checked(conn_id: str, **parts: Any) -> store.ConnectionRow:
    try:
        made = Connection(conn_id, **parts)
    except (AsynschedException, ValueError, TypeError) as exc:
        fail(str(exc))
    if not made.conn_type:
        fail(f"The connection {conn_id!r} needs a type: give --conn-type, or a URI that begins with one.")
    if made.extra and not isinstance(_json(made.extra), dict):
        fail(f"The connection {conn_id!r}: its extra is no JSON object.")
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
    """Return a JSON value with every field hidden whose name is that of a secret."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_sensitive(key) else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
