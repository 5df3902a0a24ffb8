"""`/dags/{dag_id}/dagRuns`: runs, of one DAG or of all (`~`), and waiting for their ends."""

from collections.abc import AsyncIterator
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from asynsched.errors import NotFound
from asynsched.keys import DagRunKey
from asynsched.queries.dag_versions import read_structure
from asynsched.queries.dags import get_dag
from asynsched.queries.paging import BadRequest, Offset, Range
from asynsched.queries.run_actions import wait_for_run
from asynsched.queries.runs import RunFilter, RunInfo, check_run_exists, count_runs, get_run, list_runs
from asynsched.queries.xcoms import read_results
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType
from asynsched.timetables.zones import as_zone
from asynsched.web.airflow_api.api import (
    AIRFLOW_API,
    CursorCollection,
    CursorQuery,
    Limit,
    Names,
    Numbers,
    OrderBy,
    listed_by_cursor,
    paging,
)
from asynsched.web.airflow_api.assets import AssetEventCollectionResponse, events_of_run
from asynsched.web.airflow_api.dag_versions import DagVersionResponse, version_response
from asynsched.web.airflow_api.filters import Changes, Dates, bounds, pattern, states, unless_all
from asynsched.web.endpoint import Call

RUN = "/dags/{dag_id}/dagRuns/{dag_run_id}"
NAMES = {"dag_run_id": "run_id", "start_date": "started_at", "end_date": "ended_at", "duration": "duration_seconds"}
ORIGINS = {
    "scheduled": "timetable", "backfill": "backfill", "asset_triggered": "asset", "operator_triggered": "operator",
}  # fmt: skip
"""Who creates runs of a type, in Airflow's words; manual runs do not say."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 1.0, 3600.0
"""Seconds between two lines about a run that does not change."""


class DAGRunResponse(Struct, frozen=True, kw_only=True):
    """A run."""

    dag_run_id: str
    dag_id: str
    logical_date: datetime | None
    queued_at: datetime | None
    start_date: datetime | None
    end_date: datetime | None
    duration: float | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    last_scheduling_decision: datetime | None = None
    run_type: str
    state: DagRunState
    triggered_by: str | None
    triggering_user_name: str | None = None
    conf: dict[str, Any] | None
    note: str | None
    dag_versions: tuple[DagVersionResponse, ...]
    bundle_version: str | None = None
    dag_display_name: str
    partition_key: str | None
    partition_date: datetime | None


class DAGRunCollectionResponse(CursorCollection, frozen=True, kw_only=True):
    """A page of runs."""

    dag_runs: tuple[DAGRunResponse, ...]


class RunQuery(Struct, frozen=True, kw_only=True):
    """The other filters of runs."""

    conf_contains: str = ""
    run_type: tuple[DagRunType, ...] = ()
    state: Names = ()
    dag_version: Numbers = ()
    bundle_version: str | None = None
    run_id_pattern: str | None = None
    run_id_prefix_pattern: str | None = None
    triggering_user_name_pattern: str | None = None
    triggering_user_name_prefix_pattern: str | None = None
    dag_id_pattern: str | None = None
    dag_id_prefix_pattern: str | None = None
    partition_key_pattern: str | None = None
    partition_key_prefix_pattern: str | None = None
    partition_date_gte: date | None = None
    partition_date_lte: date | None = None
    consuming_asset_pattern: str | None = None

    @property
    def excludes_all(self) -> bool:
        """Whether they exclude every run: no run has a version of a bundle, or the name of a user."""
        return any((self.bundle_version, self.triggering_user_name_pattern, self.triggering_user_name_prefix_pattern))


class DAGRunsBatchBody(Dates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters and the page of a list of runs."""

    order_by: str | None = None
    page_offset: Offset = 0
    page_limit: Limit = 100
    dag_ids: Names | None = None
    states: tuple[DagRunState | None, ...] | None = None
    conf_contains: str | None = None


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/dagRuns", errors=(404,))
async def get_dag_runs(
    call: Call,
    dag_id: str,
    dates: Dates,
    changes: Changes,
    query: RunQuery,
    page: CursorQuery,
    order_by: OrderBy = ("id",),
) -> DAGRunCollectionResponse:
    """List the runs of a DAG, or of all DAGs (`~`)."""
    if dag_id != "~":
        await call.context.ask(get_dag, dag_id, active=False)
    if query.excludes_all:
        return DAGRunCollectionResponse(dag_runs=(), total_entries=0)
    wanted = RunFilter(
        call.who.dag_ids, unless_all(dag_id), states=states(query.state, DagRunState), run_types=query.run_type or None,
        version_numbers=query.dag_version or None, dag_id=pattern(query, "dag_id"), run_id=pattern(query, "run_id"),
        partition_key=pattern(query, "partition_key"), partition_date=await _partition_days(call, dag_id, query),
        updated_at=bounds(changes, "updated_at"), conf_contains=query.conf_contains or None,
        asset=query.consuming_asset_pattern, **dates.of_runs, **dates.of_times(call.context.clock.now()),
    )  # fmt: skip
    return await _listed(call, wanted, page, order_by)


async def _partition_days(call: Call, dag_id: str, query: RunQuery) -> Range:
    """Return the bounds of partition dates: whole days in the timezone of the DAG's schedule, for all DAGs in UTC."""
    first, last = query.partition_date_gte, query.partition_date_lte
    if first is None and last is None:
        return Range()
    schedule = {} if dag_id == "~" else (await read_structure(call.context, dag_id)).dag.timetable
    zone = as_zone(schedule.get("timezone") or "UTC")
    return Range(
        gte=None if first is None else datetime.combine(first, time.min, zone),
        lte=None if last is None else datetime.combine(last, time.max, zone),
    )


@AIRFLOW_API.endpoint("POST", "/dags/{dag_id}/dagRuns/list", errors=(404,))
async def get_list_dag_runs_batch(
    call: Call,
    dag_id: Literal["~"],  # noqa: ARG001 - the path has it
    body: DAGRunsBatchBody,
) -> DAGRunCollectionResponse:
    """List runs of several DAGs."""
    wanted = RunFilter(
        call.who.dag_ids, body.dag_ids or None, states=body.states or None, conf_contains=body.conf_contains or None,
        **body.of_runs, **body.of_times(),
    )  # fmt: skip
    page = CursorQuery(limit=body.page_limit, offset=body.page_offset)
    return await _listed(call, wanted, page, (body.order_by,) if body.order_by else ("id",))


async def _listed(call: Call, wanted: RunFilter, page: CursorQuery, order_by: OrderBy) -> DAGRunCollectionResponse:
    questions = (list_runs, count_runs)
    shown, about = await listed_by_cursor(call, questions, wanted, page, paging(page, order_by, NAMES), run_response)
    return DAGRunCollectionResponse(dag_runs=shown, **about)


@AIRFLOW_API.endpoint("GET", RUN, errors=(404,))
async def get_dag_run(call: Call, dag_id: str, dag_run_id: str) -> DAGRunResponse:
    """Show a run."""
    return run_response(await call.context.ask(get_run, dag_id, dag_run_id))


@AIRFLOW_API.endpoint("GET", f"{RUN}/upstreamAssetEvents", errors=(404,))
async def get_upstream_asset_events(call: Call, dag_id: str, dag_run_id: str) -> AssetEventCollectionResponse:
    """List the asset events that triggered a run."""
    await call.context.ask(check_run_exists, dag_id, dag_run_id)
    return await events_of_run(call, DagRunKey(dag_id, dag_run_id))


@AIRFLOW_API.endpoint("GET", f"{RUN}/wait", errors=(404,))
async def wait_dag_run_until_finished(
    call: Call, dag_id: str, dag_run_id: str, interval: Annotated[float, Meta(gt=0)], result: Names | None = None
) -> Response:
    """Tell the state of a run in lines of JSON until it has ended, with the results of some tasks in the last one.

    Without `result`, these are the tasks whose return values the DAG names as its results. There is a line for each
    change, and one for each `interval` without a change.
    """
    key = DagRunKey(dag_id, dag_run_id)
    await call.context.ask(check_run_exists, *key)  # while there is still a status to answer with
    pause = timedelta(seconds=min(max(interval, SHORTEST_INTERVAL), LONGEST_INTERVAL))
    # Without a content type, as Airflow answers: its client refuses the lines' own.
    return StreamingResponse(_lines(call, key, pause, result))


async def _lines(call: Call, key: DagRunKey, pause: timedelta, task_ids: Names | None) -> AsyncIterator[bytes]:
    state = ""
    async for state in wait_for_run(call.context, key, interval=pause):
        if state not in FINISHED_RUN_STATES:
            yield _line({"state": state})
    if state not in FINISHED_RUN_STATES:
        return  # the scheduler stops, and with it this server
    told: dict[str, Any] = {"state": state}
    try:
        if results := await read_results(call.context, key, task_ids):
            told["results"] = results
    except (BadRequest, NotFound) as exc:
        told["error"] = str(exc)  # the status of the answer is sent already
    yield _line(told)


def _line(told: dict[str, Any]) -> bytes:
    return msgspec.json.encode(told) + b"\n"


def run_response(run: RunInfo) -> DAGRunResponse:
    """Return a run in Airflow's form."""
    return DAGRunResponse(
        dag_run_id=run.run_id, dag_id=run.dag_id, logical_date=run.logical_date, queued_at=run.queued_at,
        start_date=run.started_at, end_date=run.ended_at, duration=run.duration_seconds,
        data_interval_start=run.data_interval_start, data_interval_end=run.data_interval_end, run_after=run.run_after,
        run_type=run.run_type, state=DagRunState(run.state), triggered_by=ORIGINS.get(run.run_type), conf=run.conf,
        note=run.note, dag_versions=() if run.version is None else (version_response(run.version),),
        dag_display_name=run.dag_display_name, partition_key=run.partition_key, partition_date=run.partition_date,
    )  # fmt: skip
