"""`/pools`."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection

from asynsched.queries.context import Act
from asynsched.queries.paging import Pattern
from asynsched.queries.pools import PoolInfo, change_pool, count_pools, create_pool, delete_pool, get_pool, list_pools
from asynsched.store.runs.pools import LONGEST_NAME, UNLIMITED
from asynsched.store.schema import pool
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, Names, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.bulk import BulkBody, BulkResponse
from asynsched.web.airflow_api.named import Kind, change_many, change_one, create_one, delete_one
from asynsched.web.endpoint import Call

PoolName = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Slots = Annotated[int, Meta(ge=UNLIMITED)]
SORT_NAMES = {"id": "name", "pool": "name", "name": "name"}


class PoolResponse(Struct, frozen=True, kw_only=True):
    """A pool; -1 `slots` or `open_slots`: no limit."""

    name: str
    slots: int
    description: str | None
    include_deferred: bool
    occupied_slots: int
    running_slots: int
    queued_slots: int
    scheduled_slots: int
    open_slots: int
    deferred_slots: int
    team_name: str | None = None


class PoolCollectionResponse(Struct, frozen=True):
    """A page of pools."""

    pools: tuple[PoolResponse, ...]
    total_entries: int


class PoolBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool to create."""

    name: PoolName
    slots: Slots
    description: str | UnsetType | None = UNSET
    include_deferred: bool | UnsetType = UNSET
    team_name: str | UnsetType | None = UNSET


class PoolPatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a pool."""

    pool: str | UnsetType | None = UNSET
    slots: Slots | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    include_deferred: bool | UnsetType | None = UNSET
    team_name: str | UnsetType | None = UNSET


def _create(conn: Connection, body: PoolBody) -> Act[PoolInfo]:
    return create_pool(
        conn, body.name, body.slots, description=body.description or "", include_deferred=bool(body.include_deferred)
    )


def _change(conn: Connection, name: str, fields: dict[str, Any]) -> Act[PoolInfo]:
    return change_pool(conn, name, **fields)


KIND: Kind[PoolBody, PoolInfo] = Kind(
    "pool", pool.c.name, key=lambda body: (body.pool or None) if isinstance(body, PoolPatchBody) else body.name,
    create=_create, change=_change, delete=delete_pool, immutable=frozenset({"name", "pool", "team_name"}),
)  # fmt: skip


@AIRFLOW_API.endpoint("GET", "/pools")
async def get_pools(
    call: Call,
    page: PageQuery,
    order_by: OrderBy = ("name",),
    pool_name_pattern: str | None = None,
    pool_name_prefix_pattern: str | None = None,
) -> PoolCollectionResponse:
    """List the pools."""
    name = Pattern(pool_name_pattern, pool_name_prefix_pattern)
    questions, asked = (list_pools, count_pools), paging(page, order_by, SORT_NAMES)
    return PoolCollectionResponse(*await listed(call, questions, name, page=asked, shown=pool_response))


@AIRFLOW_API.endpoint("GET", "/pools/{pool_name:path}", errors=(404,))
async def get_one_pool(call: Call, pool_name: str) -> PoolResponse:
    """Show a pool."""
    return pool_response(await call.context.ask(get_pool, pool_name))


@AIRFLOW_API.endpoint("POST", "/pools", permission=Permission.OPERATE, status=201, errors=(409,))
async def post_pool(call: Call, body: PoolBody) -> PoolResponse:
    """Create a pool."""
    return pool_response(await create_one(call, KIND, body))


@AIRFLOW_API.endpoint("PATCH", "/pools/{pool_name:path}", permission=Permission.OPERATE, errors=(404,))
async def patch_pool(call: Call, pool_name: str, body: PoolPatchBody, update_mask: Names | None = None) -> PoolResponse:
    """Change a pool."""
    return pool_response(await change_one(call, KIND, pool_name, body, update_mask))


@AIRFLOW_API.endpoint("DELETE", "/pools/{pool_name:path}", permission=Permission.OPERATE, status=204, errors=(404,))
async def remove_pool(call: Call, pool_name: str) -> None:
    """Delete a pool. Tasks that name it wait until a pool of that name exists again."""
    await delete_one(call, KIND, pool_name)


@AIRFLOW_API.endpoint("PATCH", "/pools", permission=Permission.OPERATE)
async def bulk_pools(call: Call, body: BulkBody[PoolBody]) -> BulkResponse:
    """Create, change and delete pools."""
    return await change_many(call, KIND, body)


def pool_response(info: PoolInfo) -> PoolResponse:
    """Return a pool in Airflow's form."""
    return PoolResponse(
        name=info.name, slots=info.slots, description=info.description or None, include_deferred=info.include_deferred,
        occupied_slots=info.occupied_slots, running_slots=info.running_slots, queued_slots=info.queued_slots,
        scheduled_slots=info.scheduled_slots, deferred_slots=info.deferred_slots,
        open_slots=UNLIMITED if info.open_slots is None else info.open_slots,
    )  # fmt: skip
