"""The answers of commands, and how their values are written.

Texts of users (names, messages, logs) cannot move the cursor or break a table: tables show their control characters as
escapes, as JSON does anyway.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from asynsched.store.engines.urls import without_secrets

Row = Mapping[str, Any]


class Output(StrEnum):
    """Forms of an answer."""

    TABLE = "table"
    JSON = "json"
    DOT = "dot"
    MARKDOWN = "markdown"


FORMS = (Output.TABLE.value, Output.JSON.value)
"""The forms that every command has."""


class Listing(NamedTuple):
    """Several things of one kind.

    Attributes:
        columns: The fields in a wide table.
        rows: Structs, or their fields by name. JSON has each whole, as the REST API has it, and what is derived.
        nothing: Printed on standard error instead of an empty table.
        derived: Columns that are no fields, and how each is made from a row.
        usual: The columns of a table that is not wide; empty for all.
        spare: Columns that a narrow terminal leaves out, the least useful first.
        texts: Fields of many lines, shown in full below a table.
        cut: Columns whose long texts a terminal that is too narrow for the table shows in part.
    """

    columns: Sequence[str]
    rows: Sequence[Any]
    nothing: str = "Nothing found."
    derived: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})
    usual: Sequence[str] = ()
    spare: Sequence[str] = ()
    texts: Sequence[str] = ()
    cut: Sequence[str] = ()

    def cells(self) -> list[Row]:
        """Return the values of each row by their columns."""
        return [
            {**as_row(row), **{name: derive(row) for name, derive in self.derived.items()}} for row in self.rows
        ]  # fmt: skip


class Record(NamedTuple):
    """One thing, with its fields.

    Attributes:
        sections: The fields that are lists of rows, shown as tables below, each with its spare columns.
        table: Shown in tables instead of `fields`; None: `fields` are shown.
    """

    fields: Row
    sections: Mapping[str, Sequence[str]] = MappingProxyType({})
    table: Row | None = None


class Done(NamedTuple):
    """Something that was done: a sentence for people, fields for programs."""

    sentence: str
    fields: Row


class Text(NamedTuple):
    """Lines for people, fields for programs."""

    lines: Sequence[str]
    fields: Row


Answer = Listing | Record | Done | Text


def note(text: str) -> None:
    """Write a line to standard error, beside the answer. The command goes on if that fails."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def printable(text: str, *, keep: str = "") -> str:
    """Return a text in which characters that control a terminal, or hide or reorder text, are escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def as_row(row: object) -> Row:
    """Return the fields of a struct by their names; a mapping as it is."""
    if isinstance(row, msgspec.Struct):
        return msgspec.structs.asdict(row)
    return row if isinstance(row, Mapping) else {}


def fields_of(row: object, names: Iterable[str]) -> dict[str, Any]:
    """Return these attributes of a row by their names."""
    return {name: getattr(row, name) for name in names}


def count(n: int, what: str) -> str:
    """Return a number with its noun: `1 run`, `3 runs`."""
    return f"1 {what}" if n == 1 else f"{n} {what}s"


def are(n: int, what: str) -> str:
    """Return a number with its noun and verb: `1 run is`, `3 runs are`."""
    return f"{count(n, what)} {'is' if n == 1 else 'are'}"


def have(n: int, what: str) -> str:
    """Return a number with its noun and verb: `1 run has`, `3 runs have`."""
    return f"{count(n, what)} {'has' if n == 1 else 'have'}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def cell(value: Any, *, local: bool = False) -> str:
    """Return a value as one line of a table; an instant as in JSON, or in local time to the second."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return _local(value) if local else value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    if isinstance(value, (list, tuple, dict)):
        return printable(msgspec.json.encode(value, enc_hook=str).decode())
    return printable(str(value))


def _local(instant: datetime) -> str:
    with suppress(OverflowError):  # the first day of the calendar, or the last
        instant = instant.astimezone()
    return instant.strftime("%Y-%m-%d %H:%M:%S")


def show(answer: Answer, output: Output, *, wide: bool = False) -> None:
    """Write an answer to standard output, with tables that are `wide` or fit the terminal."""
    if output is Output.JSON:
        sys.stdout.write(as_json(answer))
    elif isinstance(answer, Done):
        sys.stdout.write(f"{printable(answer.sentence)}\n")
    elif isinstance(answer, Text):
        sys.stdout.write("".join(f"{printable(line)}\n" for line in answer.lines))
    else:
        from asynsched.cli.tables import show_tables  # loads rich, which JSON does not need

        show_tables(answer, wide=wide)


def as_json(answer: Answer) -> str:
    """Return an answer as JSON: a listing as a list of objects or names, any other answer as one object.

    Instants are ISO 8601.
    """
    if isinstance(answer, Listing):
        have_fields = not any(isinstance(row, str) for row in answer.rows)
        value: Any = answer.cells() if answer.derived and have_fields else list(answer.rows)
    else:
        value = dict(answer.fields)
    encoded = msgspec.json.encode(value, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def command_line(*words: str, options: Sequence[str] = ()) -> str:
    """Return a command of asynsched, quoted for a shell."""
    import shlex  # few commands name another one

    return printable(shlex.join(("asynsched", *words, *options)))


def of_same_place(home: str | None, database: str | None) -> tuple[str, ...]:
    """Return the options with which another command works on the same home and database; without passwords."""
    places = (("--home", home), ("--database", None if database is None else without_secrets(database)))
    return tuple(word for option, value in places if value is not None for word in (option, value))
