"""The API to which the modules beside this one add their endpoints, and the form of their lists."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from starlette.exceptions import HTTPException

from asynsched.queries.paging import MOST_ROWS, Offset, Page, Paging
from asynsched.queries.runs import MOST_COUNTED
from asynsched.web.endpoint import JSON, Api, Call

T = TypeVar("T")
R = TypeVar("R")

AIRFLOW_API = Api("Airflow API", "2")
USUAL_LIMIT = 50
Limit = Annotated[int, Meta(ge=0)]
OrderBy = tuple[str, ...]
Names = tuple[str, ...]
Number = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""That of a version or a try."""
Numbers = tuple[Number, ...]
RowId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The number of a row in a path."""
MapIndex = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""That of an instance of a mapped task; -1 for other tasks."""


class PageQuery(Struct, frozen=True, kw_only=True):
    """Which page of a list is wanted."""

    limit: Limit = USUAL_LIMIT
    offset: Offset = 0


class CursorQuery(PageQuery, frozen=True, kw_only=True):
    """Which page is wanted: by counting, or by a cursor, which is empty for the first page."""

    cursor: str | None = None


class CursorCollection(Struct, frozen=True, kw_only=True):
    """What a page of a list that cursors lead through says about the list."""

    total_entries: int | None = None
    total_entries_limit: int | None = None
    next_cursor: str | None = None
    previous_cursor: str | None = None


def paging(wanted: PageQuery, order_by: OrderBy, names: dict[str, str] | None = None) -> Paging:
    """Return the page that Airflow's arguments ask for; a limit above the largest is the largest.

    Args:
        names: Airflow's names to sort by that are others here.
    """
    own = names or {}
    order = tuple(
        f"{'-' if name.startswith('-') else ''}{own.get(name.removeprefix('-'), name.removeprefix('-'))}"
        for name in order_by
    )
    cursor = wanted.cursor if isinstance(wanted, CursorQuery) else None
    return Paging(
        limit=min(wanted.limit, MOST_ROWS), offset=wanted.offset if cursor is None else 0, after=cursor or None,
        order_by=order, aliases=own,
    )  # fmt: skip


async def listed(
    call: Call,
    questions: tuple[Callable[..., Page[T]], Callable[..., int]],
    *wanted: object,
    page: Paging,
    shown: Callable[[T], R],
) -> tuple[tuple[R, ...], int]:
    """Return a page of a list in Airflow's form, and how many entries the whole list has. Raises BadRequest.

    Args:
        questions: Return a page of the list, and its number of entries.
        wanted: The filters, for both.
    """
    list_them, count_them = questions
    found = await call.context.ask(list_them, *wanted, page)
    return tuple(map(shown, found.items)), await call.context.ask(count_them, *wanted)


async def listed_by_cursor(
    call: Call,
    questions: tuple[Callable[..., Page[T]], Callable[..., int]],
    wanted: object,
    query: CursorQuery,
    page: Paging,
    shown: Callable[[T], R],
) -> tuple[tuple[R, ...], dict[str, Any]]:
    """Return a page of a long list, and the fields of its CursorCollection. Raises BadRequest.

    With a cursor, entries are counted up to a limit only.
    """
    list_them, count_them = questions
    found = await call.context.ask(list_them, wanted, page)
    at_most = None if query.cursor is None else MOST_COUNTED
    total = await call.context.ask(count_them, wanted, at_most)
    about = {"total_entries": total, "total_entries_limit": at_most}
    return tuple(map(shown, found.items)), about | ({} if at_most is None else {"next_cursor": found.after})


def is_meant(name: str, update_mask: Names | None) -> bool:
    """Whether a change concerns a field: without a mask, it concerns each field that the body has."""
    return not update_mask or name in update_mask


def wants_text(call: Call) -> bool:
    """Whether a request accepts plain text, and no JSON. Raises HTTPException if it accepts neither."""
    accepted = {one.partition(";")[0].strip() for one in call.request.headers.get("accept", "*/*").split(",")}
    if accepted & {"*/*", "application/*", JSON, ""}:
        return False
    if accepted & {"text/*", "text/plain"}:
        return True
    raise HTTPException(HTTPStatus.NOT_ACCEPTABLE, f"This is served as {JSON} and text/plain.")


def part_of(items: Sequence[T], wanted: PageQuery) -> Sequence[T]:
    """Return the page of a list in memory that Airflow's arguments ask for."""
    return items[wanted.offset : wanted.offset + min(wanted.limit, MOST_ROWS)]
