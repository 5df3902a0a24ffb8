"""`asynsched variables …`."""

from typing import Any

import click
import msgspec
from sqlalchemy import Connection

from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, Record, are, note
from asynsched.cli.session import Session
from asynsched.cli.text_files import STANDARD_STREAM, read_text, write_private
from asynsched.errors import SecretsUnreadable
from asynsched.protocol.sensitive import is_sensitive
from asynsched.store import secrets as store
from asynsched.store.schema import VariableRow

HIDDEN = "***"
COLUMNS = ("key", "value", "description")


@command("list", tables=True)
def show_variables(session: Session) -> Listing:
    """List the variables. Values of keys that sound secret are hidden; without the encryption key, all values are."""
    try:
        rows = [_fields(row) for row in session.read(store.list_variables)]
    except SecretsUnreadable as exc:
        note(f"Warning: no value can be read. {exc}")
        rows = [
            {"key": key, "value": None, "description": description}
            for key, description in session.read(store.variable_names)
        ]
    for row in rows:
        if is_sensitive(row["key"]):
            row["value"] = HIDDEN
    return Listing(COLUMNS, rows, nothing="There are no variables.")


@command("get")
@click.argument("key")
def show_variable(session: Session, key: str) -> Record:
    """Show a variable, even if it is secret."""
    return Record(_fields(session.read(store.get_variable, key)))


@command("set")
@click.argument("key")
@click.argument("value")
@click.option("--description", default="", help="The variable's purpose.")
def set_variable(session: Session, key: str, value: str, description: str) -> Done:
    """Set a variable.

    VALUE - reads it from standard input, which keeps a secret out of the list of processes.
    """
    text = read_text(value).rstrip("\n") if value == STANDARD_STREAM else value
    session.make()
    session.change("variable.set", lambda conn: store.set_variable(conn, key, text, description), detail={"key": key})
    return Done(f"Variable {key!r} is set.", {"key": key})


@command("delete")
@click.argument("key")
def delete_variable(session: Session, key: str) -> Done:
    """Delete a variable."""
    session.change("variable.delete", lambda conn: store.delete_variable(conn, key), detail={"key": key})
    return Done(f"Variable {key!r} is deleted.", {"key": key})


@command("import")
@click.argument("file")
def import_variables(session: Session, file: str) -> Done:
    """Set variables from a JSON file; - is standard input.

    The file is an object that maps each key to its value, or to {"value": …, "description": …}, as Airflow writes it.
    """
    try:
        content = msgspec.json.decode(read_text(file), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        fail(f"{file}: not a JSON object of variables: {exc}")
    parsed = {key: _value_and_description(value) for key, value in content.items()}

    def write(conn: Connection) -> None:
        for key, (value, description) in sorted(parsed.items()):
            store.set_variable(conn, key, value, description)

    session.make()
    session.change("variable.import", write, detail={"keys": sorted(parsed)})
    return Done(f"{are(len(parsed), 'variable')} set.", {"keys": sorted(parsed)})


@command("export")
@click.argument("file")
def export_variables(session: Session, file: str) -> Done | None:
    """Write all variables, including secret ones, as a JSON file that `import` reads; - is standard output."""
    rows = session.read(store.list_variables)
    content = {
        row.key: {"value": row.value, "description": row.description} if row.description else row.value for row in rows
    }
    return write_private(file, content, f"{are(len(content), 'variable')} written to {file}.")


def _fields(row: VariableRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _value_and_description(value: Any) -> tuple[str, str]:
    if isinstance(value, dict) and "value" in value and set(value) <= {"value", "description"}:
        return _as_text(value["value"]), str(value.get("description") or "")
    return _as_text(value), ""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
