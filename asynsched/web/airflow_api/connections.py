"""`/connections`. Passwords, and fields of `extra` whose names sound secret, never leave: a mask stands for them."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from asynsched.queries.paging import Pattern
from asynsched.queries.secrets import (
    ConnectionInfo,
    change_connection,
    count_connections,
    create_connection,
    delete_connection,
    get_connection,
    list_connections,
)
from asynsched.store.schema import connection
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, Names, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.bulk import BulkBody, BulkResponse
from asynsched.web.airflow_api.named import Kind, change_many, change_one, create_one, delete_one
from asynsched.web.endpoint import Call

ConnectionId = Annotated[str, Meta(max_length=200, pattern=r"^[\w.-]+$")]
SORT_NAMES = {"id": "conn_id", "conn_id": "conn_id", "connection_id": "conn_id", "team_name": "conn_id"}


class ConnectionResponse(Struct, frozen=True, kw_only=True):
    """A connection without its secrets."""

    connection_id: str
    conn_type: str
    description: str | None
    host: str | None
    login: str | None
    schema: str | None
    port: int | None
    password: str | None
    extra: str | None
    team_name: str | None = None


class ConnectionCollectionResponse(Struct, frozen=True):
    """A page of connections; a connection with long values has only its type and description here."""

    connections: tuple[ConnectionResponse, ...]
    total_entries: int


class ConnectionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connection to create, or its changes. `extra`: a JSON object as text."""

    connection_id: ConnectionId
    conn_type: str
    description: str | UnsetType | None = UNSET
    host: str | UnsetType | None = UNSET
    login: str | UnsetType | None = UNSET
    schema: str | UnsetType | None = UNSET
    port: int | UnsetType | None = UNSET
    password: str | UnsetType | None = UNSET
    extra: str | UnsetType | None = UNSET
    team_name: str | UnsetType | None = UNSET


class ConnectionTestResponse(Struct, frozen=True):
    """Whether a connection works."""

    status: bool
    message: str


def _parts(body: ConnectionBody) -> dict[str, str | int | None]:
    return {name: value for name in PARTS if (value := getattr(body, name)) is not UNSET}


PARTS = [name for name in ConnectionBody.__struct_fields__ if name not in ("connection_id", "team_name")]
KIND: Kind[ConnectionBody, ConnectionInfo] = Kind(
    "connection", connection.c.conn_id, key=lambda body: body.connection_id,
    create=lambda conn, body: create_connection(conn, body.connection_id, _parts(body)), change=change_connection,
    delete=delete_connection, immutable=frozenset({"connection_id", "team_name"}),
)  # fmt: skip


@AIRFLOW_API.endpoint("GET", "/connections", permission=Permission.OPERATE)
async def get_connections(
    call: Call,
    page: PageQuery,
    order_by: OrderBy = ("connection_id",),
    connection_id_pattern: str | None = None,
    connection_id_prefix_pattern: str | None = None,
) -> ConnectionCollectionResponse:
    """List the connections."""
    conn_id = Pattern(connection_id_pattern, connection_id_prefix_pattern)
    questions, asked = (list_connections, count_connections), paging(page, order_by, SORT_NAMES)
    return ConnectionCollectionResponse(*await listed(call, questions, conn_id, page=asked, shown=connection_response))


@AIRFLOW_API.endpoint("GET", "/connections/{connection_id}", permission=Permission.OPERATE, errors=(404,))
async def get_one_connection(call: Call, connection_id: str) -> ConnectionResponse:
    """Show a connection."""
    return connection_response(await call.context.ask(get_connection, connection_id))


@AIRFLOW_API.endpoint("POST", "/connections", permission=Permission.ADMINISTER, status=201, errors=(409,))
async def post_connection(call: Call, body: ConnectionBody) -> ConnectionResponse:
    """Create a connection."""
    return connection_response(await create_one(call, KIND, body))


@AIRFLOW_API.endpoint("PATCH", "/connections/{connection_id}", permission=Permission.ADMINISTER, errors=(404,))
async def patch_connection(
    call: Call, connection_id: str, body: ConnectionBody, update_mask: Names | None = None
) -> ConnectionResponse:
    """Change a connection. The mask instead of a secret keeps it."""
    return connection_response(await change_one(call, KIND, connection_id, body, update_mask))


@AIRFLOW_API.endpoint(
    "DELETE", "/connections/{connection_id}", permission=Permission.ADMINISTER, status=204, errors=(404,)
)
async def remove_connection(call: Call, connection_id: str) -> None:
    """Delete a connection."""
    await delete_one(call, KIND, connection_id)


@AIRFLOW_API.endpoint("PATCH", "/connections", permission=Permission.ADMINISTER)
async def bulk_connections(call: Call, body: BulkBody[ConnectionBody]) -> BulkResponse:
    """Create, change and delete connections."""
    return await change_many(call, KIND, body)


@AIRFLOW_API.endpoint("POST", "/connections/test", permission=Permission.ADMINISTER, errors=(403,))
async def check_connection(body: ConnectionBody) -> ConnectionTestResponse:
    """Refuse to test a connection, as Airflow does unless it is configured to."""
    raise NotAllowed(
        f"The connection {body.connection_id!r} is not tested: the code of its hook never runs in the web server. A"
        " task can test it with BaseHook.get_hook(…).test_connection()."
    )


def connection_response(info: ConnectionInfo) -> ConnectionResponse:
    """Return a connection in Airflow's form."""
    return ConnectionResponse(
        connection_id=info.conn_id, conn_type=info.conn_type, description=info.description or None, host=info.host,
        login=info.login, schema=info.schema, port=info.port, password=info.password, extra=info.extra,
    )  # fmt: skip
