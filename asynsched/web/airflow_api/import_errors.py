"""`/importErrors`: errors of DAG files, without warnings."""

from datetime import datetime

from msgspec import Struct

from asynsched.queries.import_errors import (
    ImportErrorFilter,
    ImportErrorInfo,
    count_import_errors,
    get_import_error,
    list_import_errors,
)
from asynsched.queries.paging import Pattern
from asynsched.web.airflow_api.api import AIRFLOW_API, OrderBy, PageQuery, RowId, listed, paging
from asynsched.web.airflow_api.dag_versions import BUNDLE
from asynsched.web.endpoint import Call

SORT_NAMES = {
    "import_error_id": "id", "timestamp": "created_at", "filename": "file", "stacktrace": "traceback",
    "bundle_name": "id",
}  # fmt: skip


class ImportErrorResponse(Struct, frozen=True, kw_only=True):
    """An error of a file. The beginning of a long trace is shown."""

    import_error_id: int
    timestamp: datetime
    filename: str
    bundle_name: str | None
    stack_trace: str


class ImportErrorCollectionResponse(Struct, frozen=True):
    """A page of errors."""

    import_errors: tuple[ImportErrorResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/importErrors")
async def get_import_errors(
    call: Call,
    page: PageQuery,
    order_by: OrderBy = ("import_error_id",),
    filename_pattern: str | None = None,
    filename_prefix_pattern: str | None = None,
    filename: str | None = None,
    bundle_name: str | None = None,
) -> ImportErrorCollectionResponse:
    """List the errors of DAG files."""
    if bundle_name not in (None, BUNDLE):
        return ImportErrorCollectionResponse((), 0)
    path = Pattern(filename_pattern, filename_prefix_pattern)
    wanted = ImportErrorFilter(dag_ids=call.who.dag_ids, file=filename, path=path)
    questions, asked = (list_import_errors, count_import_errors), paging(page, order_by, SORT_NAMES)
    return ImportErrorCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_response))


@AIRFLOW_API.endpoint("GET", "/importErrors/{import_error_id}", errors=(404,))
async def get_one_import_error(call: Call, import_error_id: RowId) -> ImportErrorResponse:
    """Show an error of a DAG file."""
    wanted = ImportErrorFilter(dag_ids=call.who.dag_ids)
    return _response(await call.context.ask(get_import_error, import_error_id, wanted))


def _response(info: ImportErrorInfo) -> ImportErrorResponse:
    return ImportErrorResponse(
        import_error_id=info.id, timestamp=info.created_at, filename=info.file, bundle_name=BUNDLE,
        stack_trace=info.traceback or info.message,
    )  # fmt: skip
