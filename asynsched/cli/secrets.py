"""`asynsched variables …` and `asynsched connections …`: values that are stored encrypted.

Secrets are hidden in listings, and passwords wherever a connection is shown; only `export` writes them. `export`
writes JSON, `import` also reads YAML and lines of `name=value`, and `-` is standard input or output.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from asynsched.airflow.exceptions import AirflowFileParseException
from asynsched.airflow.local_filesystem import load_variables
from asynsched.authoring.connection import FIELDS
from asynsched.authoring.exceptions import AsynschedException
from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, Record, are, fields_of, note
from asynsched.cli.session import Session
from asynsched.errors import SecretsUnreadable
from asynsched.queries import secrets as queries
from asynsched.queries.paging import ANY_TEXT
from asynsched.store import secrets as store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
STANDARD_STREAM = "-"
VARIABLE_COLUMNS = ("key", "value", "description")
CONNECTION_COLUMNS = ("conn_id", *FIELDS)
USUAL_CONNECTION_COLUMNS = ("conn_id", "conn_type", "host", "port", "schema", "login", "description")

key_argument = click.argument("key")
conn_id_argument = click.argument("conn_id")
file_argument = click.argument("file")


@command("list", tables=True)
def variables_list(session: Session) -> Listing:
    """List the variables. Secrets are hidden, long values left out; without the encryption key, all values are."""
    try:
        rows: Sequence[Any] = session.pages(queries.list_variables, ANY_TEXT)
    except SecretsUnreadable as exc:
        note(f"Warning: no value can be read. {exc}")
        rows = [{"key": key, "value": None, "description": text} for key, text in session.read(store.variable_names)]
    return Listing(VARIABLE_COLUMNS, rows, nothing="There are no variables.")


@command("get")
@key_argument
def variables_get(session: Session, key: str) -> Record:
    """Show a variable, even if it is secret."""
    return Record(fields_of(session.read(store.get_variable, key), VARIABLE_COLUMNS))


@command("set")
@key_argument
@click.argument("value")
@click.option("--description", default="", help="The variable's purpose.")
def variables_set(session: Session, key: str, value: str, description: str) -> Done:
    """Set a variable.

    VALUE - reads it from standard input, which keeps a secret out of the list of processes.
    """
    text = _given(value)
    session.make()
    session.act(queries.set_variable, key, text, description)
    return Done(f"Variable {key!r} is set.", {"key": key})


@command("delete")
@key_argument
def variables_delete(session: Session, key: str) -> Done:
    """Delete a variable."""
    session.act(queries.delete_variable, key)
    return Done(f"Variable {key!r} is deleted.", {"key": key})


@command("import")
@file_argument
def variables_import(session: Session, file: str) -> Done:
    """Set variables from a file; - is standard input.

    The file is JSON, or by its ending YAML or lines of `name=value` (`.env`). It maps each key to its value, or to
    {"value": …, "description": …}, as Airflow writes it.
    """
    content = read_object(file, "variables", dict[str, Any])
    parsed = {key: value_and_description(value) for key, value in sorted(content.items())}
    session.make()
    names = session.act(queries.import_variables, parsed)
    return Done(f"{are(len(names), 'variable')} set.", {"keys": names})


@command("export")
@file_argument
def variables_export(session: Session, file: str) -> Done | None:
    """Write all variables, including secret ones, as a JSON file that `import` reads; - is standard output."""
    rows = session.read(store.list_variables)
    content = {
        row.key: {"value": row.value, "description": row.description} if row.description else row.value for row in rows
    }
    return _write_private(file, "variable", content)


def value_and_description(value: Any) -> tuple[str, str]:
    """Return the text and the description of a variable in a file."""
    description = ""
    if isinstance(value, dict) and "value" in value and set(value) <= {"value", "description"}:
        value, description = value["value"], str(value.get("description") or "")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode(), description


@command("list", tables=True)
def connections_list(session: Session) -> Listing:
    """List the connections. Passwords are hidden, and without the key there are only names and types."""
    try:
        rows: Sequence[Any] = session.pages(queries.list_connections, ANY_TEXT)
    except SecretsUnreadable as exc:
        note(f"Warning: of the connections, only these fields can be read. {exc}")
        found = session.read(store.connection_names)
        nameless = dict.fromkeys(CONNECTION_COLUMNS)
        rows = [nameless | dict(zip(("conn_id", "conn_type", "description"), names, strict=True)) for names in found]
    nothing = "There are no connections."
    return Listing(CONNECTION_COLUMNS, rows, nothing, usual=USUAL_CONNECTION_COLUMNS, spare=("description",))


@command("get")
@conn_id_argument
def connections_get(session: Session, conn_id: str) -> Record:
    """Show a connection. Its password is hidden."""
    return Record(fields_of(session.read(queries.get_connection, conn_id), CONNECTION_COLUMNS))


PARTS = (
    click.option("--conn-type", help="Kind of system, e.g. postgres."),
    click.option("--conn-description", "description", help="Text for people."),
    click.option("--conn-host", "host", help="Host name or address."),
    click.option("--conn-login", "login", help="User name."),
    click.option("--conn-password", "password", help="Password; - reads it from standard input."),
    click.option("--conn-schema", "schema", help="Database, or the like."),
    click.option("--conn-port", "port", type=click.IntRange(0, 65535), help="Port."),
    click.option("--conn-extra", "extra", metavar="JSON", help="More, as an object."),
)
"""Options of the parts of a connection."""


def parts_options(function: F) -> F:
    """Add the options of PARTS to a command."""
    for option in reversed(PARTS):
        function = option(function)
    return function


@command("add")
@conn_id_argument
@click.option("--conn-uri", "uri", metavar="URI", help="All of it: type://login:password@host:port/schema; - reads it.")
@parts_options
def connections_add(session: Session, conn_id: str, uri: str | None, password: str | None, **parts: Any) -> Done:
    """Add a connection: by its URI, or by its parts.

    Standard input keeps a secret out of the list of processes.
    """
    whole = {"uri": _given(uri), "password": _given(password), **parts}
    queries.checked_connection(conn_id, whole)  # before a home is made for it
    session.make()
    session.act(queries.create_connection, conn_id, whole)
    return Done(f"Connection {conn_id!r} is added.", {"conn_id": conn_id})


@command("change")
@conn_id_argument
@parts_options
def connections_change(session: Session, conn_id: str, password: str | None, **parts: Any) -> Done:
    """Change parts of a connection; the others stay.

    Standard input keeps a secret out of the list of processes.
    """
    given = {name: value for name, value in {"password": _given(password), **parts}.items() if value is not None}
    if not given:
        raise click.UsageError("Name a part to change, such as --conn-host.")
    session.act(queries.change_connection, conn_id, given)
    return Done(f"Connection {conn_id!r} is changed.", {"conn_id": conn_id, "changed": sorted(given)})


@command("delete")
@conn_id_argument
def connections_delete(session: Session, conn_id: str) -> Done:
    """Delete a connection."""
    session.act(queries.delete_connection, conn_id)
    return Done(f"Connection {conn_id!r} is deleted.", {"conn_id": conn_id})


@command("import")
@file_argument
def connections_import(session: Session, file: str) -> Done:
    """Set connections from a file; - is standard input.

    The file is JSON, or by its ending YAML or lines of `conn_id=uri` (`.env`): by conn_id its parts, or its URI, as
    Airflow writes it.
    """
    content = read_object(file, "connections", dict[str, dict[str, Any] | str])
    rows = [queries.checked_connection(conn_id, parts_of(value)) for conn_id, value in sorted(content.items())]
    session.make()
    names = session.act(queries.import_connections, rows)
    return Done(f"{are(len(names), 'connection')} set.", {"conn_ids": names})


@command("export")
@file_argument
def connections_export(session: Session, file: str) -> Done | None:
    """Write all connections, with their passwords, as a JSON file that `import` reads; - is standard output."""
    rows = session.read(store.list_connections)
    return _write_private(file, "connection", {row.conn_id: fields_of(row, FIELDS) for row in rows})


def parts_of(value: dict[str, Any] | str) -> dict[str, Any]:
    """Return the parts of a connection in a file, or its `uri`. A text is a URI, or the parts as JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(msgspec.DecodeError):  # then it is no URI either, which the connection's check says
            return msgspec.json.decode(value, type=dict[str, Any])
    return {"uri": value} if isinstance(value, str) else value


def _given(value: T) -> T | str:
    """Return the value of an argument, `-` replaced by the text of standard input."""
    return sys.stdin.read().rstrip("\n") if value == STANDARD_STREAM else value


def read_object(file: str, what: str, form: type[T]) -> T:
    """Return the content of a file, which has this form. Ends the command if it cannot be read.

    It is JSON, or by its ending YAML or lines of `name=value`, as Airflow writes them.
    """
    try:
        if file.lower().endswith((".env", ".yaml", ".yml")):
            return msgspec.convert(load_variables(file), form)
        content = sys.stdin.buffer.read() if file == STANDARD_STREAM else Path(file).read_bytes()
        return msgspec.json.decode(content.decode("utf-8-sig"), type=form)
    except OSError as exc:
        fail(f"{file}: the file cannot be read: {exc.strerror}")
    except UnicodeDecodeError:
        fail(f"{file}: the file is not UTF-8.")
    except AirflowFileParseException as exc:
        fail(f"{file}:{exc.parse_errors[0].line_no}: {exc.parse_errors[0].message}")
    except AsynschedException as exc:
        fail(str(exc))
    except ModuleNotFoundError:
        fail(f"{file}: PyYAML is needed to read it: pip install pyyaml")
    except (msgspec.DecodeError, RecursionError) as exc:
        fail(f"{file}: not an object of {what}: {exc}")


def _write_private(file: str, what: str, content: Mapping[str, Any]) -> Done | None:
    """Write an object as JSON, into a file that only its user can read. Returns the command's answer."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    if file == STANDARD_STREAM:
        sys.stdout.write(text.decode())
        return None
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, 0o600)
            opened.write(text)
    except OSError as exc:
        fail(f"{file}: the file cannot be written: {exc.strerror}")
    return Done(f"{are(len(content), what)} written to {file}.", {"file": file, "count": len(content)})
