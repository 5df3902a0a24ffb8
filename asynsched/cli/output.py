"""What a command answers, and how its values are written for people.

Texts of users (names, messages, logs) cannot move the cursor or break a table: in tables their control characters are
shown as escapes, in JSON they are escaped anyway.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
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


FORMS = tuple(form.value for form in Output)


class Listing(NamedTuple):
    """Many of a kind.

    Attributes:
        columns: Fields that a wide table and JSON have.
        rows: One mapping each.
        nothing: What is said on standard error where a table would be empty.
        details: More fields, for JSON only.
        usual: Those of the columns that a table has which is not wide; empty for all.
        spare: Columns that a terminal without room for all does without, the least useful first.
        texts: Fields of many lines, shown in full below a table.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    nothing: str = "Nothing found."
    details: Sequence[str] = ()
    usual: Sequence[str] = ()
    spare: Sequence[str] = ()
    texts: Sequence[str] = ()


class Record(NamedTuple):
    """One thing, with its fields.

    Attributes:
        fields: All of it.
        sections: Fields that are lists of rows, shown as tables of their own, below; with the spare columns of each.
    """

    fields: Row
    sections: Mapping[str, Sequence[str]] = MappingProxyType({})


class Done(NamedTuple):
    """Something was done: a sentence for people, fields for programs."""

    sentence: str
    fields: Row


class Text(NamedTuple):
    """Lines for people, fields for programs."""

    lines: Sequence[str]
    fields: Row


Answer = Listing | Record | Done | Text


def note(text: str) -> None:
    """Say something beside the answer, on standard error. Where that cannot be written, what is to be done goes on."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without characters that steer a terminal, hide or reorder text: these become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def are(n: int, what: str) -> str:
    """Return how many of something are, for people: `1 run is`, `3 runs are`."""
    return f"{n} {what} is" if n == 1 else f"{n} {what}s are"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def cell(value: Any, *, local: bool = False) -> str:
    """Return a value as one line of a table; an instant as JSON has it, or to the second, in this machine's time."""
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
    """Write an answer to standard output; tables are `wide`, or as far as a terminal has room for them."""
    if output is Output.JSON:
        sys.stdout.write(as_json(answer))
    elif isinstance(answer, Done):
        sys.stdout.write(f"{printable(answer.sentence)}\n")
    elif isinstance(answer, Text):
        sys.stdout.write("".join(f"{printable(line)}\n" for line in answer.lines))
    else:
        from asynsched.cli.tables import show_tables  # JSON does without what draws them

        show_tables(answer, wide=wide)


def as_json(answer: Answer) -> str:
    """Return the JSON of an answer: a list of objects for a listing, one object otherwise. Instants are ISO 8601."""
    if isinstance(answer, Listing):
        value: Any = [{name: row.get(name) for name in (*answer.columns, *answer.details)} for row in answer.rows]
    else:
        value = dict(answer.fields)
    encoded = msgspec.json.encode(value, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def command_line(*words: str, options: Sequence[str] = ()) -> str:
    """Return a command of asynsched as a shell takes it."""
    return printable(shlex.join(("asynsched", *words, *options)))


def of_same_place(home: str | None, database: str | None) -> tuple[str, ...]:
    """Return the options by which another command works on what --home and --database named; without passwords."""
    options: list[str] = []
    if home is not None:
        options += ["--home", home]
    if database is not None:
        options += ["--database", without_secrets(database)]
    return tuple(options)
