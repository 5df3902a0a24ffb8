"""Questions about errors and warnings of DAG files."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.queries.paging import ANY_TEXT, FIRST_PAGE, Page, Paging, Pattern, Sorting, beginning, select_page
from asynsched.store.rows import as_struct, count, fetch, fetch_one
from asynsched.store.schema import dag, import_error

LONGEST_TRACEBACK = 16 * 1024
"""Characters of a traceback that are shown."""
SORTING = Sorting(
    {
        "id": import_error.c.id,
        "file": import_error.c.file_path,
        "created_at": import_error.c.created_at,
        "traceback": beginning(sa.func.coalesce(import_error.c.traceback, import_error.c.message)),
    },
    key=import_error.c.id,
    usual=("id",),
)
_ERRORS: sa.Select[Any] = sa.select(
    import_error.c.id,
    import_error.c.file_path.label("file"),
    import_error.c.kind,
    import_error.c.message,
    sa.func.substr(import_error.c.traceback, 1, LONGEST_TRACEBACK).label("traceback"),
    import_error.c.line,
    import_error.c.dag_id,
    import_error.c.output,
    import_error.c.is_warning,
    import_error.c.created_at,
)
_OTHERS = dag.alias("others")


class ImportErrorInfo(Struct, frozen=True):
    """An error or a warning of a file.

    Attributes:
        file: Relative to the DAG folder.
        traceback: Its beginning, if it is long.
        dag_id: The DAG that it is about; None: the whole file.
        output: Of the file's code, if this is the first error of the file.
    """

    id: int
    file: str
    kind: str
    message: str
    traceback: str
    line: int | None
    dag_id: str | None
    output: str
    is_warning: bool
    created_at: datetime


class ImportErrorFilter(Struct, frozen=True, kw_only=True):
    """Which errors are wanted.

    Attributes:
        dag_ids: Only those of files all of whose known DAGs are among these; None: all.
        warnings: Only warnings, or only errors; None: both.
        file: Only of this file.
        path: A condition of the file's path.
    """

    dag_ids: frozenset[str] | None = None
    warnings: bool | None = False
    file: str | None = None
    path: Pattern = ANY_TEXT


ALL = ImportErrorFilter()
WITH_WARNINGS = ImportErrorFilter(warnings=None)


def list_import_errors(
    conn: Connection, wanted: ImportErrorFilter, paging: Paging = FIRST_PAGE
) -> Page[ImportErrorInfo]:
    """Return errors. Raises BadRequest."""
    rows, after = select_page(conn, _matching(wanted), SORTING, paging)
    return Page(tuple(as_struct(ImportErrorInfo, row) for row in rows), after)


def all_import_errors(conn: Connection, wanted: ImportErrorFilter = ALL) -> list[ImportErrorInfo]:
    """Return every such error, by file, in the order in which they were found: for a process of its own."""
    return fetch(conn, ImportErrorInfo, _matching(wanted).order_by(import_error.c.file_path, import_error.c.id))


def count_import_errors(conn: Connection, wanted: ImportErrorFilter) -> int:
    """Count such errors."""
    return count(conn, _matching(wanted).with_only_columns(import_error.c.id))


def get_import_error(conn: Connection, number: int, wanted: ImportErrorFilter) -> ImportErrorInfo:
    """Return an error by its number. Raises NotFound, also for one that is not wanted."""
    found = fetch_one(conn, ImportErrorInfo, _matching(wanted).where(import_error.c.id == number))
    if found is None:
        raise NotFound("import error", str(number))
    return found


def _matching(wanted: ImportErrorFilter) -> sa.Select[Any]:
    query, path = _ERRORS, import_error.c.file_path
    if wanted.warnings is not None:
        query = query.where(import_error.c.is_warning if wanted.warnings else ~import_error.c.is_warning)
    if wanted.dag_ids is not None:
        is_of_file = _OTHERS.c.file_path == path
        query = query.where(
            sa.exists().where(is_of_file).correlate(import_error),
            ~sa.exists().where(is_of_file, _OTHERS.c.dag_id.not_in(wanted.dag_ids)).correlate(import_error),
        )
    if wanted.file is not None:
        query = query.where(path == wanted.file)
    return query.where(*wanted.path.holds_for(path))
