"""`/backfills`."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from asynsched.errors import DagError
from asynsched.queries.backfills import (
    BackfillFilter,
    cancel_backfill,
    count_backfills,
    get_backfill,
    list_backfills,
    make_backfill,
    pause_backfill,
    plan_backfill,
)
from asynsched.queries.paging import utc
from asynsched.scheduling.creation.backfills import BackfillPlan
from asynsched.store.rows import LARGEST_INTEGER
from asynsched.store.runs.backfills import BackfillProgress, Reprocess
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, OrderBy, PageQuery, RowId, listed, paging
from asynsched.web.endpoint import Call, Invalid, check


class BackfillResponse(Struct, frozen=True, kw_only=True):
    """A backfill. `completed_at`: when it was cancelled, or its last run ended."""

    id: int
    dag_id: str
    from_date: datetime
    to_date: datetime
    dag_run_conf: dict[str, Any] | None
    is_paused: bool
    reprocess_behavior: str
    max_active_runs: int
    created_at: datetime
    completed_at: datetime | None
    updated_at: datetime
    dag_display_name: str


class BackfillCollectionResponse(Struct, frozen=True):
    """A page of backfills."""

    backfills: tuple[BackfillResponse, ...]
    total_entries: int


class BackfillPostBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backfill to create. Its runs have the newest version of the DAG, unless `run_on_latest_version` is false."""

    dag_id: str
    from_date: datetime
    to_date: datetime
    run_backwards: bool = False
    dag_run_conf: dict[str, Any] | None = None
    reprocess_behavior: Reprocess = "none"
    max_active_runs: Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)] = 10
    run_on_latest_version: bool | None = None

    @property
    def plan(self) -> BackfillPlan:
        """The request that this is."""
        return BackfillPlan(
            self.dag_id, utc(self.from_date), utc(self.to_date), reprocess=self.reprocess_behavior,
            is_reverse=self.run_backwards, max_active_runs=self.max_active_runs, conf=self.dag_run_conf or {},
            keeps_version=self.run_on_latest_version is False,
        )  # fmt: skip


class DryRunBackfillResponse(Struct, frozen=True):
    """A date that a backfill would run."""

    logical_date: datetime | None
    partition_key: str | None = None
    partition_date: datetime | None = None


class DryRunBackfillCollectionResponse(Struct, frozen=True):
    """The dates that a backfill would run."""

    backfills: tuple[DryRunBackfillResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/backfills")
async def get_backfills(
    call: Call, dag_id: str, page: PageQuery, order_by: OrderBy = ("id",)
) -> BackfillCollectionResponse:
    """List the backfills of a DAG."""
    check(call.who, Permission.VIEW, dag_id)
    wanted = BackfillFilter(dag_id, call.who.dag_ids)
    questions, asked = (list_backfills, count_backfills), paging(page, order_by)
    return BackfillCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_response))


@AIRFLOW_API.endpoint("GET", "/backfills/{backfill_id}", errors=(404,))
async def get_one_backfill(call: Call, backfill_id: RowId) -> BackfillResponse:
    """Show a backfill."""
    return _response(await _allowed(call, backfill_id, Permission.VIEW))


@AIRFLOW_API.endpoint("POST", "/backfills", errors=(404, 409))
async def post_backfill(call: Call, body: BackfillPostBody) -> BackfillResponse:
    """Create a backfill."""
    check(call.who, Permission.OPERATE, body.dag_id)
    try:
        return _response(await make_backfill(call.context, call.who.name, body.plan))
    except DagError as exc:
        raise Invalid(("body",), str(exc)) from exc


@AIRFLOW_API.endpoint("POST", "/backfills/dry_run", errors=(404, 409))
async def try_backfill(call: Call, body: BackfillPostBody) -> DryRunBackfillCollectionResponse:
    """Show the dates that a backfill would run."""
    check(call.who, Permission.OPERATE, body.dag_id)
    try:
        planned = await plan_backfill(call.context, body.plan)
    except DagError as exc:
        raise Invalid(("body",), str(exc)) from exc
    infos = [date.info for date in planned if date.exception_reason is None]
    shown = tuple(DryRunBackfillResponse(one.logical_date, one.partition_key, one.partition_date) for one in infos)
    return DryRunBackfillCollectionResponse(shown, len(shown))


@AIRFLOW_API.endpoint("PUT", "/backfills/{backfill_id}/pause", errors=(404, 409))
async def pause_one_backfill(call: Call, backfill_id: RowId) -> BackfillResponse:
    """Start no further run of a backfill."""
    return await _pause(call, backfill_id, paused=True)


@AIRFLOW_API.endpoint("PUT", "/backfills/{backfill_id}/unpause", errors=(404, 409))
async def unpause_one_backfill(call: Call, backfill_id: RowId) -> BackfillResponse:
    """Go on with a paused backfill."""
    return await _pause(call, backfill_id, paused=False)


@AIRFLOW_API.endpoint("PUT", "/backfills/{backfill_id}/cancel", errors=(404, 409))
async def cancel_one_backfill(call: Call, backfill_id: RowId) -> BackfillResponse:
    """Fail the queued runs of a backfill; the running ones go on."""
    await _allowed(call, backfill_id, Permission.OPERATE)
    name, now = call.who.name, call.context.clock.now()
    return _response(await call.context.act(name, cancel_backfill, backfill_id, actor=name, now=now))


async def _pause(call: Call, backfill_id: int, *, paused: bool) -> BackfillResponse:
    await _allowed(call, backfill_id, Permission.OPERATE)
    return _response(await call.context.act(call.who.name, pause_backfill, backfill_id, paused=paused))


async def _allowed(call: Call, backfill_id: int, permission: Permission) -> BackfillProgress:
    """Return a backfill of whose DAG this is allowed. Raises NotFound, and NotAllowed."""
    found = await call.context.ask(get_backfill, backfill_id)
    check(call.who, permission, found.dag_id)
    return found


def _response(row: BackfillProgress) -> BackfillResponse:
    return BackfillResponse(
        id=row.id, dag_id=row.dag_id, from_date=row.from_date, to_date=row.to_date, dag_run_conf=row.conf or None,
        is_paused=row.is_paused, reprocess_behavior=row.reprocess, max_active_runs=row.max_active_runs,
        created_at=row.created_at, completed_at=row.completed_at, updated_at=row.completed_at or row.created_at,
        dag_display_name=row.dag_id,
    )  # fmt: skip
