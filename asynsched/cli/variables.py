"""`asynsched variables …`."""

from typing import Annotated, Any

import msgspec
import typer

from asynsched.cli.command import command, fail, new_app
from asynsched.cli.rendering import Done, Listing, Record
from asynsched.cli.session import Session
from asynsched.cli.text_files import STANDARD_STREAM, read_text, write_private
from asynsched.store import variables as store
from sandbox.masking import is_sensitive

app = new_app()

HIDDEN = "***"

KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="JSON; - for the standard stream.")]


@command(app, "list")
def list_variables(session: Session) -> Listing:
    """List the variables. Values whose key sounds secret are hidden."""
    rows = [
        {
            "key": variable.key,
            "value": HIDDEN if is_sensitive(variable.key) else variable.value,
            "description": variable.description,
        }
        for variable in session.read(store.list_variables)
    ]
    return Listing(("key", "value", "description"), rows)


@command(app, "get")
def get_variable(session: Session, key: KeyArgument) -> Record:
    """Show a variable, also a secret one."""
    variable = session.read(store.get_variable, key)
    return Record({"key": variable.key, "value": variable.value, "description": variable.description})


@command(app, "set")
def set_variable(
    session: Session,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A text, or - to read it from standard input.")],
    *,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> Done:
    """Set a variable. Standard input keeps a secret out of the list of processes."""
    text = read_text(value).rstrip("\n") if value == STANDARD_STREAM else value
    session.change(
        "variable.set",
        lambda conn: store.set_variable(conn, key, text, description),
        detail={"key": key},
    )
    return Done(f"Variable {key!r} is set.", {"key": key})


@command(app, "delete")
def delete_variable(session: Session, key: KeyArgument) -> Done:
    """Delete a variable."""
    session.change("variable.delete", lambda conn: store.delete_variable(conn, key), detail={"key": key})
    return Done(f"Variable {key!r} is deleted.", {"key": key})


@command(app, "import")
def import_variables(session: Session, file: FileArgument) -> Done:
    """Set variables from a JSON object: by key a value, or {"value": …, "description": …}, as Airflow writes it."""
    try:
        content = msgspec.json.decode(read_text(file), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        fail(f"{file}: this is no JSON object of variables: {exc}")
    parsed = {key: _value_and_description(value) for key, value in content.items()}

    def write(conn: Any) -> None:
        for key, (value, description) in sorted(parsed.items()):
            store.set_variable(conn, key, value, description)

    session.change("variable.import", write, detail={"keys": sorted(parsed)})
    return Done(f"{len(parsed)} variables are set.", {"keys": sorted(parsed)})


@command(app, "export")
def export_variables(session: Session, file: FileArgument) -> Done | None:
    """Write all variables, secret ones too, as a JSON object that `variables import` reads."""
    variables = session.read(store.list_variables)
    content = {v.key: {"value": v.value, "description": v.description} if v.description else v.value for v in variables}
    return write_private(file, content, f"{len(content)} variables are written to {file}.")


def _value_and_description(value: Any) -> tuple[str, str]:
    if isinstance(value, dict) and "value" in value and set(value) <= {"value", "description"}:
        return _as_text(value["value"]), str(value.get("description") or "")
    return _as_text(value), ""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
