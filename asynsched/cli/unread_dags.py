"""Why a DAG may be unknown: a file that could not be parsed, takes long to parse, or is gone."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from asynsched.bell import ask_health
from asynsched.cli.output import some_of
from asynsched.store.dags.dags import get_dag
from asynsched.store.dags.files import get_file, list_errors

if TYPE_CHECKING:
    from asynsched.health import LongParse


def why_unknown(conn: Connection, dag_id: str, *, tells_errors: bool) -> str:
    """Return in sentences why a DAG is not active; empty if nothing is known about it.

    Args:
        tells_errors: Whether to include the errors of files, if no other command could show them.
    """
    told = []
    before = get_dag(conn, dag_id)
    if before is not None:
        gone = "is gone" if get_file(conn, before.file_path) is None else "has it no longer"
        told.append(f"It was in {before.file_path}, which {gone}.")
    if trouble := unparsed_files(conn, tells_errors=tells_errors):
        told.append(trouble)
    return " ".join(told)


def files_with_errors(conn: Connection) -> list[str]:
    """Return the files that could not be parsed, or only in part."""
    return list(dict.fromkeys(error.file_path for error in list_errors(conn) if not error.is_warning))


def unparsed_files(conn: Connection, *, tells_errors: bool = False) -> str:
    """Return a sentence about the files that could not be parsed, or only in part; empty if there are none."""
    files = files_with_errors(conn)
    if not files:
        return ""
    what = "1 DAG file has" if len(files) == 1 else f"{len(files)} DAG files have"
    if tells_errors:
        return f"{what} errors: {some_of([error.message for error in list_errors(conn) if not error.is_warning])}."
    return f"{what} errors, {some_of(files)}: see `asynsched dags errors`."


def long_parses(home: Path) -> "tuple[LongParse, ...]":
    """Return the parses that take long now; none if no scheduler answers, or one of another version does."""
    answer = ask_health(home)
    if answer is None:
        return ()
    from asynsched.health import Health  # loads anyio, which reading commands do not need

    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(answer, type=Health).parses
    return ()
