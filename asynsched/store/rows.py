"""What all query modules share: rows made into structs, texts that every database can keep, names that are near.

An answer that may be large comes in parts: as many rows as one message should hold, by their number and their bytes. A
query asks for the lengths of values first, so that it reads none that is left for the next part.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Row

from asynsched.errors import StoreError

MANY_ROWS = 1000
MANY_BYTES = 1024 * 1024
"""What the values of a part have at most, unless the first one alone has more."""


def length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return an expression for the bytes of a column, which needs not read them."""
    return sa.func.length(column, type_=sa.Integer)


def if_small(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an expression for a column where MANY_ROWS of such values are no more than MANY_BYTES, else NULL."""
    return sa.case((length(column) <= MANY_BYTES // MANY_ROWS, column))


def n_fitting(sizes: Iterable[int]) -> int:
    """Return how many values of these sizes fit into one part, from the first on; that one always does."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= MANY_BYTES, accumulate(sizes))))


S = TypeVar("S", bound=Struct)
T = TypeVar("T")
LARGEST_INTEGER = 2**31 - 1
"""Largest value of an Integer column."""

MOST_PARAMETERS = 1000
"""How many values a statement is given at most."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def as_struct(struct: type[S], row: Row[Any], **decoded: Any) -> S:
    """Return a row as a struct with the same names; `decoded` replaces values, e.g. those of JSON columns."""
    return struct(**{**row._mapping, **decoded})  # noqa: SLF001 - public in spite of its name


def from_json(value: bytes) -> Any:
    """Return what a JSON column holds."""
    return msgspec.json.decode(value)


def to_json(value: Any) -> bytes:
    """Return what a JSON column keeps: the same bytes for equal values."""
    return msgspec.json.encode(value, order="deterministic")


def storable(text: str) -> str:
    """Return a text of user code's with the characters replaced that no database keeps: NUL and lone surrogates."""
    return _UNSTORABLE.sub("\ufffd", text)


def check_name(kind: str, name: str, longest: int) -> None:
    """Raise StoreError, naming the kind, unless a name has 1 to `longest` characters, all of them storable."""
    if not 0 < len(name) <= longest:
        raise StoreError(f"A {kind} has 1 to {longest} characters, not {len(name)}.")
    if _UNSTORABLE.search(name):
        raise StoreError(f"A {kind} cannot hold a NUL character or half of a surrogate pair: {name!r}")


def portions(values: Sequence[T]) -> Iterator[list[T]]:
    """Yield the values in lists short enough to be parameters of one statement."""
    for start in range(0, len(values), MOST_PARAMETERS):
        yield list(values[start : start + MOST_PARAMETERS])


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three of the known names that `name` may have been meant as, the likeliest first."""
    return tuple(difflib.get_close_matches(name[:200], known, n=3))
