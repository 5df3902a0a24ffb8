"""Queries of `change`, which numbers every change of a run or a task instance. Triggers write it, nothing else.

A reader goes from number to number. On PostgreSQL, a transaction with lower numbers may commit after one with higher
numbers, so a reader goes only as far as the numbers are settled: every transaction that has one of them has ended.
`migrations/triggers_0001.py` explains the locks that tell this.
"""

from datetime import datetime
from itertools import takewhile

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.store.migrations.triggers_0001 import LOCK_NAMESPACE, NEWEST_NUMBER
from asynsched.store.rows import count, fetch
from asynsched.store.schema import Change, change
from asynsched.store.statements import for_each_dialect


class StoredNumbers(Struct, frozen=True):
    """The numbers of changes at one moment.

    Attributes:
        oldest: The lowest number that is stored; None if no change is.
        settled: No number up to this is yet to be committed.
        newest: The highest number that was ever given, perhaps to a change that is not committed.
    """

    oldest: int | None
    settled: int
    newest: int


class ChangesRead(Struct, frozen=True):
    """Some changes in the order of their numbers, and the number up to which there are no others."""

    changes: list[Change]
    until: int
    is_last: bool


def _stored_numbers(dialect: str) -> str:
    oldest = "(SELECT min(number) FROM change) AS oldest"
    if dialect == "sqlite":
        newest = "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'change'), 0)"
        return f"SELECT {oldest}, {newest} AS newest, NULL AS settled"
    # The newest number is read before the locks, which the reference to it forces: a lock that is taken later belongs
    # to numbers above it. The lock of a transaction that has ended is gone only when its rows can be read.
    settled = (
        "(SELECT min(((CAST(l.classid AS bigint) & 65535) << 32) | CAST(l.objid AS bigint)) FROM pg_locks AS l"  # noqa: S608 - constants
        " WHERE s.last_value > 0 AND l.locktype = 'advisory' AND l.objsubid = 1"
        f" AND CAST(l.classid AS bigint) >> 16 = {LOCK_NAMESPACE}"
        " AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))"
    )
    return f"SELECT {oldest}, {NEWEST_NUMBER} AS newest, {settled} AS settled FROM change_number_seq AS s"  # noqa: S608 - as above


_NUMBERS = for_each_dialect(_stored_numbers)
_BETWEEN = (
    sa.select(change)
    .where(change.c.number > sa.bindparam("after"), change.c.number <= sa.bindparam("until"))
    .order_by(change.c.number)
    .limit(sa.bindparam("limit"))
)
_OLDEST = sa.select(change.c.number, change.c.at).order_by(change.c.number).limit(sa.bindparam("limit"))
_NEWEST = sa.select(sa.func.max(change.c.number))


def stored_numbers(conn: Connection) -> StoredNumbers:
    """Return which numbers there are."""
    row = conn.execute(_NUMBERS[conn.dialect.name]).one()
    settled = row.newest if row.settled is None else min(row.newest, row.settled)
    return StoredNumbers(row.oldest, settled, row.newest)


def read_changes(conn: Connection, after: int, *, limit: int) -> ChangesRead:
    """Return up to `limit` changes with settled numbers above `after`.

    On PostgreSQL, run it by `read_at_once`: the rows must be read in a later snapshot than the settled numbers.
    """
    settled = max(after, stored_numbers(conn).settled)
    found = fetch(conn, Change, _BETWEEN, {"after": after, "until": settled, "limit": limit})
    is_last = len(found) < limit
    return ChangesRead(found, settled if is_last else found[-1].number, is_last)


def newest_number(conn: Connection) -> int:
    """Return the highest number that is stored; 0 without one."""
    return conn.scalar(_NEWEST) or 0


def delete_old_changes(conn: Connection, *, before: datetime | None, most: int | None, limit: int) -> int:
    """Delete up to `limit` changes, the lowest numbers first. Returns how many.

    Args:
        before: Those that were stored before this instant are old; None: the time does not matter.
        most: About how many of the newest changes are kept; None: any number.
        limit: The largest number of deletions.
    """
    dispensable = newest_number(conn) - most if most is not None else 0
    rows = conn.execute(_OLDEST, {"limit": limit})
    old = takewhile(lambda row: row.number <= dispensable or (before is not None and row.at < before), rows)
    numbers = [row.number for row in old]
    if not numbers:
        return 0
    return conn.execute(sa.delete(change).where(change.c.number <= numbers[-1])).rowcount


def count_old_changes(conn: Connection, *, before: datetime | None, most: int | None) -> int:
    """Count the changes that `delete_old_changes` deletes in the end."""
    conditions: list[sa.ColumnElement[bool]] = []
    if before is not None:
        conditions.append(change.c.at < before)
    if most is not None:
        conditions.append(change.c.number <= newest_number(conn) - most)
    return count(conn, sa.select(change.c.number).where(sa.or_(*conditions))) if conditions else 0


def forget_changes(conn: Connection, run: DagRunKey, *, after: int) -> None:
    """Delete the changes of a run that this transaction has made since the number `after`: they are history."""
    is_of_run = (change.c.dag_id == run.dag_id, change.c.run_id == run.run_id)
    conn.execute(sa.delete(change).where(change.c.number > after, *is_of_run))
