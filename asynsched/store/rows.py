"""Rows made into structs, texts that every database can keep, names that are near a wrong one.

A large answer comes in parts: as many rows as one message should hold, by their number and their bytes. A query asks
for the lengths of values first, so it reads no value that belongs to the next part.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice, takewhile
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, Row

from asynsched.errors import NotFound, StoreError

S = TypeVar("S", bound=Struct)
T = TypeVar("T")
LARGEST_INTEGER = 2**31 - 1
"""Largest value of an Integer column."""
MOST_PARAMETERS = 1000
"""How many values one statement takes at most."""
MANY_ROWS = 1000
MANY_BYTES = 1024 * 1024
"""Most bytes of the values of a part, unless its first value alone is larger."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def as_struct(struct: type[S], row: Row[Any], **decoded: Any) -> S:
    """Return a row as a struct with the same names; `decoded` replaces values, e.g. those of JSON columns."""
    return struct(**{**row._mapping, **decoded})  # noqa: SLF001 - public in spite of its name


def in_common(struct: type[Struct], other: Struct) -> dict[str, Any]:
    """Return the values of another struct under the names that are fields of `struct` too."""
    return {name: getattr(other, name) for name in struct.__struct_fields__ if hasattr(other, name)}


def fetch(conn: Connection, struct: type[S], query: sa.Executable, values: Mapping[str, Any] | None = None) -> list[S]:
    """Return the rows of a query as structs with the names of its columns."""
    return [as_struct(struct, row) for row in conn.execute(query, values)]


def fetch_one(
    conn: Connection, struct: type[S], query: sa.Executable, values: Mapping[str, Any] | None = None
) -> S | None:
    """Return the first row of a query as a struct; None without a row."""
    row = conn.execute(query, values).first()
    return None if row is None else as_struct(struct, row)


def count(conn: Connection, query: "sa.Select[Any] | sa.CompoundSelect[Any]") -> int:
    """Return the number of a query's rows."""
    return conn.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one()


def as_new(row: Struct) -> dict[str, Any]:
    """Return the values of a new row, to which the database gives its `id`."""
    values = asdict(row)
    del values["id"]
    return values


def insert(conn: Connection, table: sa.Table, values: Mapping[str, Any]) -> int:
    """Insert a row, and return its id."""
    return int(conn.execute(table.insert().returning(table.c.id), values).scalar_one())


def from_json(value: bytes) -> Any:
    """Decode the value of a JSON column."""
    return msgspec.json.decode(value)


def to_json(value: Any) -> bytes:
    """Encode a value for a JSON column: the same bytes for equal values."""
    return msgspec.json.encode(value, order="deterministic")


def storable(text: str) -> str:
    """Return a text of user code with the characters replaced that no database keeps: NUL and lone surrogates."""
    return _UNSTORABLE.sub("\ufffd", text)


LONGEST_DESCRIPTION = 5000
"""Characters: lists show descriptions whole."""


def check_name(kind: str, name: str, longest: int) -> None:
    """Raise StoreError, naming the kind, unless a name has 1 to `longest` characters, all of them storable."""
    if not 0 < len(name) <= longest:
        raise StoreError(f"A {kind} has 1 to {longest} characters, not {len(name)}.")
    if _UNSTORABLE.search(name):
        raise StoreError(f"A {kind} cannot hold a NUL character or half of a surrogate pair: {name!r}")


def check_description(kind: str, name: str, description: str) -> None:
    """Raise StoreError, naming the kind and the thing, for a description that is too long or not storable."""
    if len(description) > LONGEST_DESCRIPTION:
        raise StoreError(
            f"The description of the {kind} {name!r} has {len(description)} characters; at most {LONGEST_DESCRIPTION}"
            " are allowed."
        )
    if _UNSTORABLE.search(description):
        raise StoreError(
            f"The description of the {kind} {name!r} cannot hold a NUL character or half a surrogate pair."
        )


def portions(values: Sequence[T], most: int = MOST_PARAMETERS) -> Iterator[list[T]]:
    """Yield the values in lists of at most this length: by default, short enough to be parameters of one statement."""
    for start in range(0, len(values), most):
        yield list(values[start : start + most])


def select_in(
    conn: Connection, query: "sa.Select[Any]", column: "sa.ColumnElement[Any]", values: Sequence[Any]
) -> Iterator["Row[Any]"]:
    """Yield the rows of a query in which the column has one of these values, a portion at a time."""
    statement = _within(query, column)
    for some in portions(values):
        yield from conn.execute(statement, {"values": some})


@lru_cache(maxsize=64)
def _within(query: "sa.Select[Any]", column: "sa.ColumnElement[Any]") -> "sa.Select[Any]":
    """Return the statement of such rows: the same one for the same query, so that SQLAlchemy knows it again at once."""
    return query.where(column.in_(sa.bindparam("values", expanding=True)))


def fetch_in(
    conn: Connection, struct: type[S], query: "sa.Select[Any]", column: "sa.ColumnElement[Any]", values: Sequence[Any]
) -> list[S]:
    """Return such rows as structs."""
    return [as_struct(struct, row) for row in select_in(conn, query, column, values)]


def get_named(conn: Connection, kind: str, column: "sa.Column[Any]", name: str) -> "Row[Any]":
    """Return the row of a name, which `column` holds. Raises NotFound, with the kind and the nearest names."""
    row = conn.execute(_of_name(column), {"name": name}).first()
    if row is None:
        raise NotFound(kind, name, near_names(name, conn.scalars(sa.select(column))))
    return row


@lru_cache(maxsize=64)
def _of_name(column: "sa.Column[Any]") -> "sa.Select[Any]":
    return sa.select(column.table).where(column == sa.bindparam("name"))


def delete_named(conn: Connection, kind: str, column: "sa.Column[Any]", name: str) -> None:
    """Delete the row of a name. Raises NotFound as `get_named` does."""
    get_named(conn, kind, column, name)
    conn.execute(sa.delete(column.table).where(column == name))


def existing_names(conn: Connection, column: "sa.Column[Any]", names: Sequence[str]) -> set[str]:
    """Return those of some names that `column` holds."""
    return {row.name for row in select_in(conn, sa.select(column.label("name")), column, names)}


MOST_COMPARED = 2000
"""Names to which one is compared: with PostgreSQL, this happens on the event loop."""


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three known names that `name` may have been meant as, the likeliest first."""
    return tuple(difflib.get_close_matches(name[:200], islice(known, MOST_COMPARED), n=3))


def length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return an expression for the bytes of a column; the database computes it without reading the value."""
    return sa.func.length(column, type_=sa.Integer)


def if_small(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an expression for a column's value if MANY_ROWS values of its size fit into MANY_BYTES, else NULL."""
    return sa.case((length(column) <= MANY_BYTES // MANY_ROWS, column))


def n_fitting(sizes: Iterable[int]) -> int:
    """Return the number of leading values, by their sizes, that fit into one part; at least 1."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= MANY_BYTES, accumulate(sizes))))
