"""`/dags`: DAGs, their details, and whether they are paused; `/dagTags`, `/dagStats` and `/dagWarnings`."""

import inspect
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.errors import NotFound
from asynsched.queries.assets import ids_of_assets
from asynsched.queries.dag_versions import Structure, read_structure
from asynsched.queries.dags import (
    DagFilter,
    DagInfo,
    WarningInfo,
    count_active_runs_of,
    count_dags,
    count_runs_by_state,
    count_tags,
    count_warnings,
    find_file,
    get_dag,
    list_dags,
    list_tags,
    list_warnings,
    parse_again,
    pause_dag,
)
from asynsched.queries.paging import BadRequest
from asynsched.queries.run_actions import delete_dag
from asynsched.serialization.schema import UNSTABLE, SerializedDag
from asynsched.states import DagRunState
from asynsched.store.assets import leaf_digest
from asynsched.timetables import decode
from asynsched.timetables.asset_condition import AssetCondition
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, Names, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.dag_versions import BUNDLE, DagVersionResponse, version_response
from asynsched.web.airflow_api.filters import bounds, pattern
from asynsched.web.endpoint import Call, check

NAMES = {
    "dag_display_name": "display_name", "is_paused": "paused", "next_dagrun": "next_run_at",
    "next_dagrun_create_after": "next_run_at", "next_dagrun_run_after": "next_run_at",
    "last_run_start_date": "last_run_started_at", "start_date": "last_run_started_at", "state": "last_run_state",
}  # fmt: skip
WARNING_NAMES = {"warning_type": "kind", "timestamp": "created_at"}
WARNING_TYPES = {UNSTABLE: "runtime varying value"}
"""Airflow's types of the warnings that it has too."""
TIMETABLES = {
    "null": "simple.NullTimetable", "once": "simple.OnceTimetable", "continuous": "simple.ContinuousTimetable",
    "partitioned_at_runtime": "simple.PartitionedAtRuntime", "asset": "simple.AssetTriggeredTimetable",
    "asset_or_time": "assets.AssetOrTimeSchedule", "events": "events.EventsTimetable",
    "cron_trigger": "trigger.CronTriggerTimetable", "delta_trigger": "trigger.DeltaTriggerTimetable",
    "multiple_cron_trigger": "trigger.MultipleCronTriggerTimetable", "cron_partition": "trigger.CronPartitionTimetable",
    "cron_data_interval": "interval.CronDataIntervalTimetable",
    "delta_data_interval": "interval.DeltaDataIntervalTimetable",
}  # fmt: skip
"""Airflow's classes of timetables, in `airflow.timetables`, by the kinds that they are here."""


class DagTag(Struct, frozen=True):
    """A tag of a DAG."""

    name: str
    dag_id: str
    dag_display_name: str


class DAGResponse(Struct, frozen=True, kw_only=True):
    """A DAG."""

    dag_id: str
    dag_display_name: str
    is_paused: bool
    is_stale: bool
    last_parsed_time: datetime | None
    last_parse_duration: float | None
    last_expired: datetime | None = None
    bundle_name: str | None = BUNDLE
    bundle_version: str | None = None
    relative_fileloc: str | None
    fileloc: str
    description: str | None
    timetable_summary: str | None
    timetable_description: str | None
    timetable_partitioned: bool
    timetable_periodic: bool
    tags: tuple[DagTag, ...]
    max_active_tasks: int
    max_active_runs: int | None
    max_consecutive_failed_dag_runs: int
    has_task_concurrency_limits: bool
    has_import_errors: bool
    next_dagrun_logical_date: datetime | None
    next_dagrun_data_interval_start: datetime | None
    next_dagrun_data_interval_end: datetime | None
    next_dagrun_run_after: datetime | None
    allowed_run_types: tuple[str, ...] | None = None
    owners: tuple[str, ...]
    is_backfillable: bool
    file_token: str


class DAGCollectionResponse(Struct, frozen=True):
    """A page of DAGs."""

    dags: tuple[DAGResponse, ...]
    total_entries: int


class DAGDetailsResponse(DAGResponse, frozen=True, kw_only=True):
    """A DAG, with the details of its newest version."""

    catchup: bool
    dag_run_timeout: timedelta | None
    asset_expression: dict[str, Any] | None
    doc_md: str | None
    start_date: datetime | None
    end_date: datetime | None
    is_paused_upon_creation: bool | None
    params: dict[str, Any] | None
    render_template_as_native_obj: bool
    template_search_path: tuple[str, ...] | None = None
    timezone: str | None
    last_parsed: datetime | None
    default_args: dict[str, Any] | None = None
    rerun_with_latest_version: bool | None = None
    owner_links: dict[str, str] | None = None
    is_favorite: bool = False
    active_runs_count: int
    concurrency: int
    latest_dag_version: DagVersionResponse | None


class DAGPatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a DAG."""

    is_paused: bool


class DagQuery(Struct, frozen=True, kw_only=True):
    """The filters of DAGs that both lists and changes of DAGs have."""

    tags: Names = ()
    tags_match_mode: Literal["any", "all"] | None = None
    owners: Names = ()
    dag_id_pattern: str | None = None
    dag_id_prefix_pattern: str | None = None
    exclude_stale: bool = True
    paused: bool | None = None


class MoreOfDags(Struct, frozen=True, kw_only=True):
    """The other filters of lists of DAGs."""

    dag_display_name_pattern: str | None = None
    dag_display_name_prefix_pattern: str | None = None
    has_import_errors: bool | None = None
    last_dag_run_state: DagRunState | None = None
    bundle_name: str | None = None
    bundle_version: str | None = None
    has_asset_schedule: bool | None = None
    asset_dependency: str | None = None
    dag_run_start_date_gte: datetime | None = None
    dag_run_start_date_gt: datetime | None = None
    dag_run_start_date_lte: datetime | None = None
    dag_run_start_date_lt: datetime | None = None
    dag_run_end_date_gte: datetime | None = None
    dag_run_end_date_gt: datetime | None = None
    dag_run_end_date_lte: datetime | None = None
    dag_run_end_date_lt: datetime | None = None
    dag_run_state: tuple[DagRunState, ...] = ()
    is_favorite: bool | None = None
    timetable_type: Names = ()

    @property
    def excludes_all(self) -> bool:
        """Whether they exclude every DAG: none is a favourite, in another bundle, or in a version of one."""
        return bool(self.is_favorite) or self.bundle_version is not None or self.bundle_name not in (None, BUNDLE)


NO_MORE = MoreOfDags()


@AIRFLOW_API.endpoint("GET", "/dags")
async def get_dags(
    call: Call, query: DagQuery, more: MoreOfDags, page: PageQuery, order_by: OrderBy = ("dag_id",)
) -> DAGCollectionResponse:
    """List the DAGs."""
    if more.excludes_all:
        return DAGCollectionResponse((), 0)
    questions, asked, shown = (list_dags, count_dags), paging(page, order_by, NAMES), partial(dag_response, call)
    return DAGCollectionResponse(*await listed(call, questions, _filter(call, query, more), page=asked, shown=shown))


@AIRFLOW_API.endpoint("PATCH", "/dags", permission=Permission.VIEW, errors=(404,))
async def patch_dags(
    call: Call, body: DAGPatchBody, query: DagQuery, page: PageQuery, update_mask: Names | None = None
) -> DAGCollectionResponse:
    """Pause or unpause the DAGs of a page that the user may operate.

    As in Airflow, none is changed without a pattern of their names; `~` stands for all.
    """
    _check_mask(update_mask)
    if not (editable := call.who.dags_for(Permission.OPERATE)) and editable is not None:
        raise NotAllowed(f"{call.who.name} may not do this: it needs the right to operate a DAG.")
    if query.dag_id_pattern is None and query.dag_id_prefix_pattern is None:
        return DAGCollectionResponse((), 0)
    wanted = msgspec.structs.replace(_filter(call, query, NO_MORE), dag_ids=editable)
    total = await call.context.ask(count_dags, wanted)
    found = await call.context.ask(list_dags, wanted, paging(page, ("dag_id",)))
    changed = [await _pause(call, dag.dag_id, body) for dag in found.items]
    return DAGCollectionResponse(tuple(changed), total)


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}", errors=(404,))
async def get_one_dag(call: Call, dag_id: str) -> DAGResponse:
    """Show a DAG."""
    return dag_response(call, await call.context.ask(get_dag, dag_id, active=False))


@AIRFLOW_API.endpoint("PATCH", "/dags/{dag_id}", permission=Permission.OPERATE, errors=(404,))
async def patch_dag(call: Call, dag_id: str, body: DAGPatchBody, update_mask: Names | None = None) -> DAGResponse:
    """Pause or unpause a DAG."""
    _check_mask(update_mask)
    return await _pause(call, dag_id, body)


@AIRFLOW_API.endpoint("DELETE", "/dags/{dag_id}", permission=Permission.OPERATE, errors=(404, 409))
async def delete_one_dag(call: Call, dag_id: str) -> None:
    """Delete a DAG that has left its file, with its runs and their logs. A DAG that is in a file is refused."""
    await delete_dag(call.context, call.who.name, dag_id)


@AIRFLOW_API.endpoint("PUT", "/parseDagFile/{file_token}", status=201, errors=(404,))
async def reparse_dag_file(call: Call, file_token: str) -> None:
    """Parse a DAG file again, which the `file_token` of its DAGs names, even if it has not changed."""
    found = await call.context.ask(find_file, _file(file_token), seen_dags=call.who.dag_ids)
    for dag_id in found.dag_ids:
        check(call.who, Permission.OPERATE, dag_id)
    if not found.dag_ids:
        check(call.who, Permission.OPERATE, None)
    await call.context.act(call.who.name, parse_again, found.path)


def _file(token: str) -> str:
    try:
        return urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}").decode()
    except ValueError as exc:
        raise NotFound("file of the token", token[:100]) from exc


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/details", errors=(404,))
async def get_dag_details(call: Call, dag_id: str) -> DAGDetailsResponse:
    """Show a DAG with the details of its newest version."""
    dag = await call.context.ask(get_dag, dag_id, active=False)
    found = await read_structure(call.context, dag_id)
    n_active = await call.context.ask(count_active_runs_of, dag_id)
    description = await run_sync(_describe, found.dag)
    condition = found.dag.asset_condition
    ids = {} if condition is None else await call.context.ask(ids_of_assets, condition)
    return _details(dag_response(call, dag), found, n_active, description, ids)


def _details(
    plain: DAGResponse, found: Structure, n_active: int, description: str, asset_ids: Mapping[str, int]
) -> DAGDetailsResponse:
    dag = found.dag
    timeout, condition = dag.dagrun_timeout, dag.asset_condition
    shown = msgspec.structs.asdict(plain) | {"description": dag.description, "timetable_description": description}
    return DAGDetailsResponse(
        **shown, catchup=bool(dag.catchup), dag_run_timeout=None if timeout is None else timedelta(seconds=timeout),
        asset_expression=None if condition is None else _expression(condition, asset_ids),
        doc_md=None if dag.doc_md is None else inspect.cleandoc(dag.doc_md), start_date=dag.start_date,
        end_date=dag.end_date, is_paused_upon_creation=dag.is_paused_upon_creation, params=params_of(dag),
        render_template_as_native_obj=dag.render_template_as_native_obj, timezone=dag.timezone,
        last_parsed=plain.last_parsed_time, active_runs_count=n_active, concurrency=plain.max_active_tasks,
        latest_dag_version=version_response(found.version),
    )  # fmt: skip


def _expression(condition: AssetCondition, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return a condition on assets in Airflow's form. An asset that is not stored yet has no id."""
    if (asset := condition.asset) is not None:
        number = ids.get(leaf_digest(condition))
        return {"asset": {"uri": asset.uri, "name": asset.name, "group": asset.group, "id": number}}
    if (alias := condition.alias) is not None:
        return {"alias": {"name": alias.name, "group": alias.group}}
    if condition.is_leaf:
        reference: dict[str, Any] = msgspec.to_builtins(condition)
        return reference
    return {"any" if condition.all is None else "all": [_expression(part, ids) for part in condition.parts]}


def _describe(dag: SerializedDag) -> str:
    """Return a sentence about a DAG's schedule. A cron expression takes a while to be read: for a thread."""
    by_time = decode(dag.timetable)
    if dag.asset_condition is None:
        return by_time.description
    return "Triggered by assets" if not by_time.can_be_scheduled else f"Triggered by assets or {by_time.description}"


def params_of(dag: SerializedDag) -> dict[str, Any]:
    """Return the params of a DAG in Airflow's form."""
    return {
        name: {"value": param.value, "schema": param.schema, "description": param.description, "source": None}
        for name, param in dag.params.items()
    }


def _filter(call: Call, query: DagQuery, more: MoreOfDags) -> DagFilter:
    kinds = {name.partition(".")[2]: kind for kind, name in TIMETABLES.items()}
    kinds |= {f"airflow.timetables.{name}": kind for kind, name in TIMETABLES.items()}
    return DagFilter(
        call.who.dag_ids, pattern(query, "dag_id"), pattern(more, "dag_display_name"),
        paused=query.paused, active=True if query.exclude_stale else None, has_errors=more.has_import_errors,
        tags=query.tags, tags_match=query.tags_match_mode or "any", owners_like=query.owners,
        timetables=tuple(kinds.get(name, name) for name in more.timetable_type) or None,
        has_asset_schedule=more.has_asset_schedule, asset=more.asset_dependency,
        last_run_state=more.last_dag_run_state, run_started_at=bounds(more, "dag_run_start_date"),
        run_ended_at=bounds(more, "dag_run_end_date"), run_states=more.dag_run_state or None,
    )  # fmt: skip


def _check_mask(update_mask: Names | None) -> None:
    if update_mask not in (None, ("is_paused",)):
        raise BadRequest("Of a DAG only is_paused can be changed.")


async def _pause(call: Call, dag_id: str, body: DAGPatchBody) -> DAGResponse:
    now = call.context.clock.now()
    return dag_response(call, await call.context.act(call.who.name, pause_dag, dag_id, paused=body.is_paused, now=now))


def dag_response(call: Call, dag: DagInfo) -> DAGResponse:
    """Return a DAG in Airflow's form."""
    settings = call.context.settings
    return DAGResponse(
        dag_id=dag.dag_id, dag_display_name=dag.display_name, is_paused=dag.paused, is_stale=not dag.is_active,
        last_parsed_time=dag.parsed_at, last_parse_duration=dag.parse_seconds, relative_fileloc=dag.file,
        fileloc=str(settings.dags_path / dag.file), description=dag.description, timetable_summary=dag.schedule,
        timetable_description=None, timetable_partitioned=dag.is_partitioned, timetable_periodic=dag.is_periodic,
        tags=tuple(DagTag(tag, dag.dag_id, dag.display_name) for tag in sorted(dag.tags)),
        max_active_tasks=settings.max_active_tasks_per_dag if dag.max_active_tasks is None else dag.max_active_tasks,
        max_active_runs=dag.max_active_runs, max_consecutive_failed_dag_runs=dag.max_consecutive_failed_dag_runs,
        has_task_concurrency_limits=dag.has_task_limits, has_import_errors=dag.has_errors,
        next_dagrun_logical_date=dag.next_logical_date, next_dagrun_data_interval_start=dag.next_interval_start,
        next_dagrun_data_interval_end=dag.next_interval_end, next_dagrun_run_after=dag.next_run_at, owners=dag.owners,
        is_backfillable=dag.is_periodic, file_token=urlsafe_b64encode(dag.file.encode()).decode().rstrip("="),
    )  # fmt: skip


class DAGTagCollectionResponse(Struct, frozen=True):
    """A page of tags."""

    tags: tuple[str, ...]
    total_entries: int


class TagQuery(Struct, frozen=True):
    """The filters of tags."""

    tag_name_pattern: str | None = None
    tag_name_prefix_pattern: str | None = None


@AIRFLOW_API.endpoint("GET", "/dagTags")
async def get_dag_tags(
    call: Call, query: TagQuery, page: PageQuery, order_by: OrderBy = ("name",)
) -> DAGTagCollectionResponse:
    """List the tags of DAGs."""
    wanted, asked = (pattern(query, "tag_name"), call.who.dag_ids), paging(page, order_by)
    return DAGTagCollectionResponse(*await listed(call, (list_tags, count_tags), *wanted, page=asked, shown=str))


class DagStatsStateResponse(Struct, frozen=True):
    """How many runs are in a state."""

    state: DagRunState
    count: int


class DagStatsResponse(Struct, frozen=True):
    """How many runs a DAG has in each state."""

    dag_id: str
    dag_display_name: str
    stats: tuple[DagStatsStateResponse, ...]


class DagStatsCollectionResponse(Struct, frozen=True):
    """The numbers of runs of DAGs."""

    dags: tuple[DagStatsResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/dagStats")
async def get_dag_stats(call: Call, dag_ids: Names = ()) -> DagStatsCollectionResponse:
    """Count the runs of DAGs by their states."""
    wanted = frozenset(dag_ids) if dag_ids else call.who.dag_ids
    if wanted is not None and call.who.dag_ids is not None:
        wanted &= call.who.dag_ids
    found = await call.context.ask(count_runs_by_state, wanted)
    shown = [
        DagStatsResponse(
            one.dag_id, one.dag_display_name,
            tuple(DagStatsStateResponse(DagRunState(state), n) for state, n in one.n_runs.items()),
        )
        for one in found
    ]  # fmt: skip
    return DagStatsCollectionResponse(tuple(shown), len(shown))


class DAGWarningResponse(Struct, frozen=True):
    """A warning about a DAG."""

    dag_id: str
    warning_type: str
    message: str
    timestamp: datetime
    dag_display_name: str


class DAGWarningCollectionResponse(Struct, frozen=True):
    """A page of warnings."""

    dag_warnings: tuple[DAGWarningResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/dagWarnings")
async def list_dag_warnings(
    call: Call,
    page: PageQuery,
    dag_id: str | None = None,
    warning_type: Literal["asset conflict", "non-existent pool", "runtime varying value"] | None = None,
    order_by: OrderBy = ("dag_id",),
) -> DAGWarningCollectionResponse:
    """List the warnings about DAGs that Airflow has too; `asynsched dags errors --warnings` shows all."""
    dag_ids = call.who.dag_ids
    if dag_id is not None:
        check(call.who, Permission.VIEW, dag_id)
        dag_ids = frozenset({dag_id})
    kinds = tuple(kind for kind, name in WARNING_TYPES.items() if warning_type in (None, name))
    questions, asked = (list_warnings, count_warnings), paging(page, order_by, WARNING_NAMES)
    return DAGWarningCollectionResponse(*await listed(call, questions, dag_ids, kinds, page=asked, shown=_warning))


def _warning(info: WarningInfo) -> DAGWarningResponse:
    return DAGWarningResponse(
        info.dag_id, WARNING_TYPES[info.kind], info.message, info.created_at, info.dag_display_name
    )
