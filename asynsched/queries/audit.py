"""Questions about the audit: who did what from outside."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.queries.paging import FIRST_PAGE, Page, Paging, Sorting, beginning, begins, matches, select_page
from asynsched.store.expressions import as_text, json_item
from asynsched.store.rows import as_struct, count, fetch_one, length
from asynsched.store.schema import AuditRow, audit

LARGEST_DETAIL = 16 * 1024
"""Bytes of the largest detail that is shown."""
SORTING = Sorting(
    {name: audit.c[name] for name in ("id", "at", "actor", "action", "dag_id", "run_id", "task_id")}
    | {"detail": beginning(as_text(audit.c.detail))},
    key=audit.c.id,
    usual=("id",),
)
_AUDIT: sa.Select[Any] = sa.select(
    *(column for column in audit.c if column.name != "detail"),
    sa.case((length(audit.c.detail) <= LARGEST_DETAIL, audit.c.detail)).label("detail"),
)


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Which actions are wanted.

    Attributes:
        dag_ids: Only those on these DAGs; None: all, also those on no DAG.
        equal: Values of `dag_id`, `run_id`, `task_id`, `actor` and `action`.
        containing: Patterns of the same.
        beginning: Beginnings of the same.
        map_index: Of the task instance, in the detail.
        actions: Only these actions.
        other_actions: None of these actions.
        after: Exclusive.
        before: Exclusive.
    """

    dag_ids: frozenset[str] | None = None
    equal: Mapping[str, str] = {}
    containing: Mapping[str, str] = {}
    beginning: Mapping[str, str] = {}
    map_index: int | None = None
    actions: tuple[str, ...] = ()
    other_actions: tuple[str, ...] = ()
    after: datetime | None = None
    before: datetime | None = None


def list_audit(conn: Connection, wanted: AuditFilter, paging: Paging = FIRST_PAGE) -> Page[AuditRow]:
    """Return actions. Raises BadRequest."""
    rows, after = select_page(conn, _matching(wanted), SORTING, paging)
    return Page(tuple(as_struct(AuditRow, row, detail=row.detail or {}) for row in rows), after)


def count_audit(conn: Connection, wanted: AuditFilter) -> int:
    """Count such actions."""
    return count(conn, _matching(wanted).with_only_columns(audit.c.id))


def get_audit(conn: Connection, number: int) -> AuditRow:
    """Return an action by its number. Raises NotFound."""
    found = fetch_one(conn, AuditRow, sa.select(audit).where(audit.c.id == number))
    if found is None:
        raise NotFound("event log", str(number))
    return found


def _matching(wanted: AuditFilter) -> sa.Select[Any]:
    query = _AUDIT
    if wanted.dag_ids is not None:
        query = query.where(audit.c.dag_id.in_(wanted.dag_ids))
    for name, value in wanted.equal.items():
        query = query.where(audit.c[name] == value)
    for name, value in wanted.containing.items():
        query = query.where(matches(audit.c[name], value))
    for name, value in wanted.beginning.items():
        query = query.where(begins(audit.c[name], value))
    if wanted.map_index is not None:
        query = query.where(json_item(audit.c.detail, "map_index") == str(wanted.map_index))
    if wanted.actions:
        query = query.where(audit.c.action.in_(wanted.actions))
    if wanted.other_actions:
        query = query.where(audit.c.action.not_in(wanted.other_actions))
    if wanted.after is not None:
        query = query.where(audit.c.at > wanted.after)
    if wanted.before is not None:
        query = query.where(audit.c.at < wanted.before)
    return query
