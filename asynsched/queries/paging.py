"""Lists in pages: filtered, sorted by known names, bounded.

A page is found by the values of its predecessor's last row (`after`), so it costs the same wherever it is, and rows
that come or go between two pages are neither missed nor repeated. Airflow's clients count instead (`offset`).
"""

import base64
import binascii
import operator
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import Meta, Struct
from sqlalchemy import Connection, Row

from asynsched.errors import AsynschedError
from asynsched.timetables.zones import in_zone

T = TypeVar("T")

MOST_ROWS = 1000
"""Rows of the largest page."""
USUAL_ROWS = 100
MOST_TERMS = 10
"""Names to sort by."""
MOST_VALUES = 5000
"""Values of a filter: a statement of SQLite and of PostgreSQL has about 32,000 of all of its filters."""
LONGEST_PATTERN = 1000
"""Characters of a text to look for."""
Limit = Annotated[int, Meta(ge=1, le=MOST_ROWS, description="Rows of a page at most.")]
Offset = Annotated[int, Meta(ge=0, le=10**9, description="Rows to pass over.")]


class BadRequest(AsynschedError):
    """A filter, a sort name or the place of a page is wrong. The message says what is possible."""


class Page(Struct, Generic[T], frozen=True):
    """A part of a list.

    Attributes:
        items: The rows, in order.
        after: Where the next page begins, for the argument of that name; None: this is the last page.
    """

    items: tuple[T, ...]
    after: str | None = None


class Paging(Struct, frozen=True):
    """Which page is wanted.

    Attributes:
        limit: 0 asks for no rows, as Airflow's clients do who want the number of rows.
        order_by: Names to sort by, the first counts most; a minus sign before a name reverses it.
        after: The `after` of the page before this one.
        aliases: Names to sort by that messages show instead of ours; `order_by` has ours.
    """

    limit: Limit = USUAL_ROWS
    offset: Offset = 0
    after: str | None = None
    order_by: Sequence[str] = ()
    aliases: Mapping[str, str] = {}


FIRST_PAGE = Paging()


class Range(Struct, frozen=True):
    """Bounds of an instant or a number; None: no bound."""

    gte: datetime | float | None = None
    gt: datetime | float | None = None
    lte: datetime | float | None = None
    lt: datetime | float | None = None

    def holds_for(self, column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        """Return the conditions that put a column within these bounds."""
        bounds = ((self.gte, operator.ge), (self.gt, operator.gt), (self.lte, operator.le), (self.lt, operator.lt))
        return [compare(column, _aware(bound)) for bound, compare in bounds if bound is not None]


class RangeOrComing(Range, frozen=True, kw_only=True):
    """Bounds of an instant that may be still to come, where a row without one counts as Airflow counts it.

    Such a row is beyond every lower bound, and has the present moment, `now`, for an upper one.
    """

    now: datetime

    def holds_for(self, column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        conditions = [sa.or_(column.is_(None), one) for one in Range(gte=self.gte, gt=self.gt).holds_for(column)]
        now = sa.literal(self.now, column.type)
        for upper in (Range(lte=self.lte), Range(lt=self.lt)):
            later = sa.and_(column.is_(None), *upper.holds_for(now))
            conditions += [sa.or_(one, later) for one in upper.holds_for(column)]
        return conditions


def utc(instant: datetime) -> datetime:
    """Return an instant in UTC; an instant without an offset is taken as UTC."""
    return in_zone(instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC), UTC)


def _aware(value: Any) -> Any:
    return utc(value) if isinstance(value, datetime) else value


class Pattern(Struct, frozen=True):
    """A condition of a text: a part of it or its beginning, as `matches` and `begins` say; None: no condition."""

    contains: str | None = None
    prefix: str | None = None

    def holds_for(self, column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        """Return the conditions that make a column such a text."""
        conditions = []
        if self.contains is not None:
            conditions.append(matches(column, self.contains))
        if self.prefix is not None:
            conditions.append(begins(column, self.prefix))
        return conditions


ANY_TEXT = Pattern()


def one_of(column: sa.ColumnElement[Any], values: Sequence[Any] | frozenset[Any] | None) -> list[Any]:
    """Return the condition that a column has one of these values (None: no value); without values, no condition.

    Raises BadRequest if a list has too many for one statement; a set is of the rights of a user.
    """
    if values is None:
        return []
    if len(values) > MOST_VALUES and not isinstance(values, frozenset):
        raise BadRequest(f"A filter has {MOST_VALUES} values at most.")
    some = column.in_([value for value in values if value is not None])
    return [sa.or_(some, column.is_(None)) if None in values else some]


LONGEST_SORTED = 1000
"""Characters of a long text that sort it: the place of a page has them."""


def beginning(text: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Return the part of a long text that sorts it."""
    return sa.func.substr(text, 1, LONGEST_SORTED, type_=sa.Text())


class Sorting(NamedTuple):
    """How a list may be sorted.

    Attributes:
        names: The names to sort by, and their columns.
        key: A column that no two rows share; it decides between equal rows.
        usual: The order if none is asked for, as in `Paging.order_by`.
        before_key: Names that decide before the key, which then is no two rows' within equal values of these.
    """

    names: Mapping[str, sa.ColumnElement[Any]]
    key: sa.ColumnElement[Any]
    usual: tuple[str, ...]
    before_key: tuple[str, ...] = ()


class _Term(NamedTuple):
    column: sa.ColumnElement[Any]
    is_reversed: bool


def select_page(
    conn: Connection, query: "sa.Select[Any]", sorting: Sorting, paging: Paging
) -> "tuple[list[Row[Any]], str | None]":
    """Return the rows of a page, and where the next one begins; None after the last.

    Raises:
        BadRequest: A name to sort by is unknown, or `after` is none of this list.
    """
    terms, n_columns = _terms(sorting, paging), len(query.selected_columns)
    if not paging.limit:
        return [], None
    keys = [term.column.label(f"sort_{number}") for number, term in enumerate(terms)]
    query = query.add_columns(*keys).order_by(*_order(terms)).limit(paging.limit + 1)
    if paging.after is not None:
        query = query.where(_is_after(terms, _read_place(paging.after, terms)))
    elif paging.offset:
        query = query.offset(paging.offset)
    found = conn.execute(query).freeze()
    rows = list(found().columns(*range(n_columns)))
    if len(rows) <= paging.limit:
        return rows, None
    places = found().columns(*range(n_columns, n_columns + len(keys))).all()
    return rows[: paging.limit], _place(places[paging.limit - 1])


def matches(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition of Airflow's patterns: part of a text, in either case; `|` between alternatives.

    `%` and `_` stand for any text and any character; `~` is any text, or none.
    """
    return sa.or_(*(sa.true() if part == "~" else column.ilike(f"%{part}%") for part in _alternatives(pattern)))


def begins(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition of Airflow's prefix patterns: the beginning of a text; `|` and `~` as in other patterns."""
    # Not LIKE: on SQLite that ignores case, and `_` matches any letter.
    return sa.or_(
        *(sa.true() if part == "~" else sa.func.substr(column, 1, len(part)) == part for part in _alternatives(pattern))
    )


def contains(column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text."""
    return column.contains(checked_text(text), autoescape=True)


def checked_text(text: str) -> str:
    """Return a text to look for. Raises BadRequest if it is too long."""
    if len(text) > LONGEST_PATTERN:
        raise BadRequest(f"A text to look for has {LONGEST_PATTERN} characters at most.")
    return text


def _alternatives(pattern: str) -> list[str]:
    pattern = checked_text(pattern)
    return [part.strip() for part in pattern.split("|") if part.strip()] or [pattern]


def _terms(sorting: Sorting, paging: Paging) -> list[_Term]:
    terms, order_by = [], paging.order_by
    if len(order_by) > MOST_TERMS:
        raise BadRequest(f"A list is sorted by {MOST_TERMS} names at most.")
    asked = order_by or sorting.usual
    for name in (*asked, *(name for name in sorting.before_key if not {name, f"-{name}"} & {*asked})):
        column = sorting.names.get(name.removeprefix("-"))
        if column is None:
            known = ", ".join(sorted({*paging.aliases, *(sorting.names.keys() - paging.aliases.values())}))
            raise BadRequest(f"This list cannot be sorted by {name.removeprefix('-')!r}. It can be sorted by {known}.")
        terms.append(_Term(column, name.startswith("-")))
    return [*terms, _Term(sorting.key, terms[0].is_reversed)]


def _order(terms: Sequence[_Term]) -> list[sa.ColumnElement[Any]]:
    """Return the order of rows; those without a value come last in either direction, on every database."""
    order: list[sa.ColumnElement[Any]] = []
    for term in terms:
        if _may_be_null(term.column):
            order.append(term.column.is_(None))
        order.append(term.column.desc() if term.is_reversed else term.column.asc())
    return order


def _is_after(terms: Sequence[_Term], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Return the condition of rows after that of these values."""
    later = []
    same: list[sa.ColumnElement[bool]] = []
    for term, value in zip(terms, values, strict=True):
        column = term.column
        if value is not None:
            beyond = column < value if term.is_reversed else column > value
            later.append(sa.and_(*same, sa.or_(beyond, column.is_(None)) if _may_be_null(column) else beyond))
        same.append(column.is_(None) if value is None else column == value)
    return sa.or_(sa.false(), *later)


def _may_be_null(column: sa.ColumnElement[Any]) -> bool:
    return bool(getattr(column, "nullable", True))


def _place(values: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(list(values))).decode().rstrip("=")


def _read_place(text: str, terms: Sequence[_Term]) -> list[Any]:
    try:
        values = msgspec.json.decode(base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}"), type=list[Any])
        kinds = (term.column.type.python_type for term in terms)
        # Fails if there are more or fewer: it is of a list in another order.
        return [
            None if value is None else _aware(msgspec.convert(value, kind))
            for value, kind in zip(values, kinds, strict=True)
        ]
    except (ValueError, binascii.Error, RecursionError) as exc:
        raise BadRequest(f"after={text[:100]!r} is not the place of a page of this list: {exc}") from exc
