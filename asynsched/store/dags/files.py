"""Queries of the DAG folder's files: each file's last parse, its errors, and the scheduler that parses it.

Thanks to the stored state of files, a start without changed files parses nothing. Of several schedulers, the one that
has the claim parses a file. Claims are made, taken over and dropped in the order of their paths: two schedulers that
claim the same files may wait for one another, but never in a cycle.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.serialization.schema import FileError
from asynsched.store.rows import as_new, fetch, fetch_in, portions, storable
from asynsched.store.runs.row_locks import lock_out_others
from asynsched.store.schedulers import SERVING
from asynsched.store.schema import (
    DagFileRow,
    ImportErrorRow,
    ParseClaim,
    dag_file,
    import_error,
    parse_claim,
    scheduler,
)
from asynsched.store.statements import execute_rows, for_each_dialect, insert_of, insert_or_update

_FILES = sa.select(dag_file)


def known_files(conn: Connection) -> list[DagFileRow]:
    """Return every file that was parsed and is not gone, by path."""
    return fetch(conn, DagFileRow, _FILES.order_by(dag_file.c.path))


def get_file(conn: Connection, path: str) -> DagFileRow | None:
    """Return a file; None when it was never parsed, or is gone."""
    return get_files(conn, [path]).get(path)


def get_files(conn: Connection, paths: Sequence[str]) -> dict[str, DagFileRow]:
    """Return files by their paths, without those that were never parsed, or are gone."""
    return {row.path: row for row in fetch_in(conn, DagFileRow, _FILES, dag_file.c.path, paths)}


def put_files(conn: Connection, files: Sequence[DagFileRow]) -> None:
    """Store the state of files at their last parse."""
    if files:
        conn.execute(insert_or_update(conn, dag_file), [asdict(file) for file in files])


def delete_files(conn: Connection, paths: Sequence[str]) -> None:
    """Forget files."""
    for some in portions(paths):
        conn.execute(sa.delete(dag_file).where(dag_file.c.path.in_(some)))


_ERRORS = sa.select(*(column for column in import_error.c if column.name != "id")).order_by(
    import_error.c.file_path, import_error.c.id
)
_LONGEST_KIND = 32


def list_errors(conn: Connection) -> list[ImportErrorRow]:
    """Return the errors and warnings of all files, by file, in the order in which they were found."""
    return fetch(conn, ImportErrorRow, _ERRORS)


def list_errors_of(conn: Connection, file_paths: Sequence[str]) -> list[ImportErrorRow]:
    """Return the errors and warnings of some files."""
    return fetch_in(conn, ImportErrorRow, _ERRORS, import_error.c.file_path, file_paths)


def error_rows(
    file_path: str, errors: Sequence[FileError], *, warnings: Sequence[FileError], output: str, now: datetime
) -> list[ImportErrorRow]:
    """Return the stored errors and warnings of a file."""
    found = [(error, False) for error in errors] + [(warning, True) for warning in warnings]
    return [
        ImportErrorRow(
            file_path,
            storable(error.kind)[:_LONGEST_KIND],
            storable(error.message),
            storable(error.traceback),
            error.line,
            None if error.dag_id is None else storable(error.dag_id),
            "" if place else storable(output),
            is_warning,
            now,
        )
        for place, (error, is_warning) in enumerate(found)
    ]


def replace_errors(conn: Connection, paths: Sequence[str], rows: Sequence[ImportErrorRow]) -> None:
    """Replace the stored errors of these files."""
    for some in portions(paths):
        conn.execute(sa.delete(import_error).where(import_error.c.file_path.in_(some)))
    if rows:
        conn.execute(import_error.insert(), [as_new(row) for row in rows])


_CLAIM = for_each_dialect(
    lambda dialect: insert_of("parse_claim", ParseClaim, dialect, conflict="DO NOTHING RETURNING path")
)
_ARE_MINE = sa.and_(
    parse_claim.c.path.in_(sa.bindparam("paths", expanding=True)), parse_claim.c.scheduler_id == sa.bindparam("me")
)
# By code points, as Python sorts them, in every collation of the database.
_MINE_IN_ORDER = (
    sa.select(parse_claim.c.path).where(_ARE_MINE).order_by(sa.collate(parse_claim.c.path, "C")).with_for_update()
)
_DROP_CLAIMS = {
    "sqlite": sa.delete(parse_claim).where(_ARE_MINE).returning(parse_claim.c.path),
    "postgresql": sa.delete(parse_claim).where(parse_claim.c.path.in_(_MINE_IN_ORDER)).returning(parse_claim.c.path),
}
_STORE_LOCK = 0x6173796E70617273  # "asynpars"


def claim_unclaimed(conn: Connection, paths: Collection[str], scheduler_id: str, now: datetime) -> set[str]:
    """Claim unclaimed files, until `drop_claims`, by one statement, and return those that are this scheduler's now.

    `get_files`, called only after that, has the other schedulers' results.
    """
    rows = [ParseClaim(path, scheduler_id, now) for path in sorted(paths)]
    return {row.path for row in execute_rows(conn, _CLAIM[conn.dialect.name], rows)}


def claim_from_the_gone(
    conn: Connection, paths: Collection[str], scheduler_id: str, now: datetime, silent: Collection[str] = ()
) -> set[str]:
    """Claim files that are claimed by this scheduler, or by one that no longer serves or was silent for long.

    Returns the files that are this scheduler's now, without those whose claims were dropped just now.
    """
    serving = SERVING.where(scheduler.c.id.not_in(sorted(silent)))
    may_take = sa.or_(parse_claim.c.scheduler_id == scheduler_id, parse_claim.c.scheduler_id.not_in(serving))
    is_it = parse_claim.c.path == sa.bindparam("of_path")
    take = sa.update(parse_claim).where(is_it, may_take).values(scheduler_id=scheduler_id, claimed_at=now)
    return {path for path in sorted(paths) if conn.execute(take, {"of_path": path}).rowcount}


def drop_claims(conn: Connection, paths: Sequence[str], scheduler_id: str) -> frozenset[str]:
    """Give up claims, in the transaction that stores this scheduler's results, and return those that it still had.

    Others have taken the rest: this scheduler's results for those must not be stored.
    """
    delete = _DROP_CLAIMS[conn.dialect.name]
    return frozenset(
        path for some in portions(sorted(paths)) for path in conn.scalars(delete, {"me": scheduler_id, "paths": some})
    )


def store_alone(conn: Connection) -> None:
    """Keep other schedulers from storing outcomes until the transaction ends.

    Two files may define the same DAG: the scheduler that stores the second one must see the first.
    """
    lock_out_others(conn, _STORE_LOCK)
