"""`/dags/{dag_id}/dagVersions` and `/dagSources`."""

from datetime import datetime
from uuid import UUID

from msgspec import Struct
from starlette.responses import PlainTextResponse, Response

from asynsched.queries.dag_versions import (
    VersionFilter,
    VersionInfo,
    count_versions,
    get_source,
    get_version,
    list_versions,
    redacted,
)
from asynsched.queries.dags import get_dag
from asynsched.web.airflow_api.api import AIRFLOW_API, Number, OrderBy, PageQuery, listed, paging, wants_text
from asynsched.web.endpoint import Call

BUNDLE = "dags-folder"
"""The name of the only bundle: the DAG folder. It is Airflow's name for its own default."""
SORT_NAMES = {"version_number": "number", "bundle_name": "id", "bundle_version": "id"}
"""All versions are of one bundle, which has no versions."""
CUT = "\n# The source is longer: the rest is not shown.\n"


class DagVersionResponse(Struct, frozen=True, kw_only=True):
    """A version of a DAG."""

    id: UUID
    version_number: int
    dag_id: str
    bundle_name: str | None = BUNDLE
    bundle_version: str | None = None
    created_at: datetime
    dag_display_name: str
    bundle_url: str | None = None


class DAGVersionCollectionResponse(Struct, frozen=True):
    """A page of versions."""

    dag_versions: tuple[DagVersionResponse, ...]
    total_entries: int


class DAGSourceResponse(Struct, frozen=True):
    """The text of a version's DAG file."""

    content: str | None
    dag_id: str
    version_number: int | None
    dag_display_name: str


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/dagVersions", errors=(404,))
async def get_dag_versions(
    call: Call,
    dag_id: str,
    page: PageQuery,
    version_number: Number | None = None,
    bundle_name: str | None = None,
    bundle_version: str | None = None,
    order_by: OrderBy = ("id",),
) -> DAGVersionCollectionResponse:
    """List the versions of a DAG, or of all DAGs (`~`)."""
    dag_ids = call.who.dag_ids
    if dag_id != "~":
        await call.context.ask(get_dag, dag_id, active=False)
        dag_ids = frozenset({dag_id})
    if bundle_version is not None or bundle_name not in (None, BUNDLE):
        return DAGVersionCollectionResponse((), 0)
    wanted = VersionFilter(dag_ids, None if version_number is None else (version_number,))
    questions, asked = (list_versions, count_versions), paging(page, order_by, SORT_NAMES)
    return DAGVersionCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=version_response))


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/dagVersions/{version_number}", errors=(404,))
async def get_dag_version(call: Call, dag_id: str, version_number: Number) -> DagVersionResponse:
    """Show a version of a DAG."""
    return version_response(await call.context.ask(get_version, dag_id, version_number))


@AIRFLOW_API.endpoint("GET", "/dagSources/{dag_id}", errors=(404, 406))
async def get_dag_source(call: Call, dag_id: str, version_number: Number | None = None) -> DAGSourceResponse | Response:
    """Show the source of a version of a DAG, by default of the newest; as text if the request accepts that."""
    as_text = wants_text(call)
    found = redacted(await call.context.ask(get_source, dag_id, version_number), call.who.dag_ids)
    text = f"{found.text}{CUT if found.is_cut else ''}"
    if as_text:
        return PlainTextResponse(text)
    return DAGSourceResponse(text, dag_id, found.number, found.dag_display_name)


def version_response(version: VersionInfo) -> DagVersionResponse:
    """Return a version in Airflow's form."""
    return DagVersionResponse(
        id=uuid_of(version.id), version_number=version.number, dag_id=version.dag_id, created_at=version.created_at,
        dag_display_name=version.dag_display_name,
    )  # fmt: skip


def uuid_of(row_id: int) -> UUID:
    """Return a UUID for the row of a database: Airflow's ids of versions and task instances are UUIDs."""
    return UUID(int=row_id)
