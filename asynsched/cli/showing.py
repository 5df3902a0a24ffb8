"""Shows an answer on standard output, which carries it and nothing else: for people, or as JSON for programs."""

import sys
from typing import Any

import msgspec

from asynsched.cli.rendering import Answer, Done, Listing, Output, Text, printable


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
