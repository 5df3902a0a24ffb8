"""`/dags/{dag_id}/dagRuns`: triggers, marks, notes, clears and deletes runs.

A run that a scheduler owns is changed by that scheduler. The answer waits a while for that, and shows the run as it is
then.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from asynsched.keys import DagRunKey
from asynsched.queries.assets import only_producer
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging, Range, utc
from asynsched.queries.run_actions import (
    clear_tasks,
    delete_run,
    mark_run,
    names_of,
    new_tasks,
    note_run,
    preview_clear,
    trigger_run,
)
from asynsched.queries.run_edits import Clear, MarkedAs
from asynsched.queries.runs import RunFilter, check_run_exists, get_run, list_runs
from asynsched.queries.task_instances import task_instances_of
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.states import DagRunType
from asynsched.store.runs.notes import LONGEST_NOTE
from asynsched.store.runs.requests import ClearTasks
from asynsched.timetables import DataInterval
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, Names, RowId, is_meant
from asynsched.web.airflow_api.dag_runs import RUN, DAGRunCollectionResponse, DAGRunResponse, run_response
from asynsched.web.airflow_api.filters import unless_all
from asynsched.web.airflow_api.task_instances import instance_response
from asynsched.web.endpoint import Call, Invalid, as_response, check

Note = Annotated[str, Meta(max_length=LONGEST_NOTE)]
MOST_RUNS = 100
"""Runs that one request clears."""


class TriggerDAGRunPostBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to create; a null `logical_date`: it has none."""

    logical_date: datetime | None
    dag_run_id: str | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    run_after: datetime | None = None
    conf: dict[str, Any] | None = None
    note: Note | None = None
    partition_key: str | None = None


class MaterializeAssetBody(TriggerDAGRunPostBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that updates an asset."""

    logical_date: datetime | None = None


class DAGRunPatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a run; an empty note removes it."""

    state: MarkedAs | UnsetType | None = UNSET
    note: Note | UnsetType | None = UNSET


class DAGRunClearBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run is cleared."""

    dry_run: bool = True
    only_failed: bool = False
    only_new: bool = False
    run_on_latest_version: bool | None = None
    note: Note | None = None


class BulkDAGRunBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of several."""

    dag_run_id: str
    dag_id: str | None = None
    state: MarkedAs | None = None
    note: Note | None = None


class BulkDAGRunClearBody(DAGRunClearBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How several runs are cleared: named ones, those of a partition, or those between two partition dates."""

    dag_runs: Annotated[tuple[BulkDAGRunBody, ...], Meta(max_length=MOST_RUNS)] = ()
    partition_key: str | None = None
    partition_date_start: datetime | None = None
    partition_date_end: datetime | None = None

    @property
    def dates(self) -> Range:
        """The bounds of partition dates."""
        return Range(gte=self.partition_date_start, lte=self.partition_date_end)


class NewTaskResponse(Struct, frozen=True):
    """A task that a run does not have yet."""

    task_id: str
    task_display_name: str


class ClearTaskInstanceCollectionResponse(Struct, frozen=True):
    """What a clear concerns: task instances, or tasks that a run gets."""

    task_instances: tuple[Any, ...]
    total_entries: int


@AIRFLOW_API.endpoint("POST", "/dags/{dag_id}/dagRuns", permission=Permission.OPERATE, errors=(404, 409))
async def trigger_dag_run(call: Call, dag_id: str, body: TriggerDAGRunPostBody) -> DAGRunResponse:
    """Create a run of a DAG; a `run_after` in the future is its earliest start."""
    return await _trigger(call, dag_id, body, DagRunType.MANUAL)


async def _trigger(call: Call, dag_id: str, body: TriggerDAGRunPostBody, run_type: DagRunType) -> DAGRunResponse:
    """Create a run of a DAG. Raises Invalid, BadRequest, and the errors of `trigger_run`."""
    start, end = body.data_interval_start, body.data_interval_end
    if (start is None) != (end is None):
        raise Invalid(("body",), "Give both data_interval_start and data_interval_end, or neither.")
    has_interval = body.logical_date is not None and start is not None and end is not None
    wanted = Trigger(
        run_id=body.dag_run_id or None, logical_date=None if body.logical_date is None else utc(body.logical_date),
        has_logical_date=body.logical_date is not None, conf=body.conf or {},
        interval=DataInterval(utc(start), utc(end)) if has_interval and start and end else None,
        note=body.note or "", partition_key=body.partition_key, run_type=run_type,
        run_after=None if body.run_after is None else utc(body.run_after),
    )  # fmt: skip
    return run_response(await trigger_run(call.context, call.who.name, dag_id, wanted))


@AIRFLOW_API.endpoint("POST", "/assets/{asset_id}/materialize", permission=Permission.OPERATE, errors=(404, 409))
async def materialize_asset(call: Call, asset_id: RowId, body: MaterializeAssetBody | None) -> DAGRunResponse:
    """Create a run of the only DAG with a task that updates an asset."""
    dag_id = await call.context.ask(only_producer, asset_id, seen_dags=call.who.dag_ids)
    check(call.who, Permission.OPERATE, dag_id)
    return await _trigger(call, dag_id, body or MaterializeAssetBody(), DagRunType.ASSET_MATERIALIZATION)


@AIRFLOW_API.endpoint("PATCH", RUN, permission=Permission.OPERATE, errors=(404, 409))
async def patch_dag_run(
    call: Call, dag_id: str, dag_run_id: str, body: DAGRunPatchBody, update_mask: Names | None = None
) -> DAGRunResponse:
    """Mark or note a run. `queued` queues an ended run again, with its task instances as they are."""
    key, actor = DagRunKey(dag_id, dag_run_id), call.who.name
    await call.context.ask(check_run_exists, *key)
    if isinstance(body.state, str) and is_meant("state", update_mask):
        await mark_run(call.context, actor, key, body.state)  # first, as it may be refused
    if isinstance(body.note, str) and is_meant("note", update_mask):
        await note_run(call.context, actor, key, body.note)
    return run_response(await call.context.ask(get_run, *key))


@AIRFLOW_API.endpoint("DELETE", RUN, permission=Permission.OPERATE, status=204, errors=(404, 409))
async def delete_dag_run(call: Call, dag_id: str, dag_run_id: str) -> None:
    """Delete a run that is not running, with its rows and logs."""
    await delete_run(call.context, call.who.name, DagRunKey(dag_id, dag_run_id))


@AIRFLOW_API.endpoint(
    "POST",
    f"{RUN}/clear",
    permission=Permission.OPERATE,
    errors=(404, 409),
    other_answer=ClearTaskInstanceCollectionResponse,
)
async def clear_dag_run(call: Call, dag_id: str, dag_run_id: str, body: DAGRunClearBody) -> DAGRunResponse | Response:
    """Run the tasks of a run again, and show the run; with `dry_run`, which is the default, show only the tasks."""
    key = DagRunKey(dag_id, dag_run_id)
    if body.dry_run:
        return as_response(await _preview(call, [key], body))
    await _clear(call, key, body)
    return run_response(await call.context.ask(get_run, *key))


@AIRFLOW_API.endpoint(
    "POST", "/dags/{dag_id}/clearDagRuns", errors=(404, 409), other_answer=ClearTaskInstanceCollectionResponse
)
async def clear_dag_runs(call: Call, dag_id: str, body: BulkDAGRunClearBody) -> DAGRunCollectionResponse | Response:
    """Run the tasks of several runs again, and show the runs; with `dry_run`, the default, show only the tasks."""
    keys = await _runs_to_clear(call, dag_id, body)
    for key in keys:
        check(call.who, Permission.OPERATE, key.dag_id)
    if body.dry_run:
        return as_response(await _preview(call, keys, body))
    for key in keys:
        await _clear(call, key, body)
    runs = tuple([run_response(await call.context.ask(get_run, *key)) for key in keys])
    return DAGRunCollectionResponse(dag_runs=runs, total_entries=len(runs))


async def _runs_to_clear(call: Call, dag_id: str, body: BulkDAGRunClearBody) -> list[DagRunKey]:
    """Return the runs that a body names in one way. Raises Invalid, and BadRequest if there are too many."""
    if sum((bool(body.dag_runs), body.partition_key is not None, body.dates != Range())) != 1:
        raise Invalid(("body",), "Give one of dag_runs, partition_key, and partition_date_start with its end.")
    if body.dag_runs:
        return list(dict.fromkeys(_key(dag_id, run) for run in body.dag_runs))
    start, end = body.partition_date_start, body.partition_date_end
    if start and end and utc(start) > utc(end):
        raise Invalid(("body",), "partition_date_end is before partition_date_start.")
    keys = None if body.partition_key is None else (body.partition_key,)
    wanted = RunFilter(call.who.dag_ids, unless_all(dag_id), partition_keys=keys, partition_date=body.dates)
    page = await call.context.ask(list_runs, wanted, Paging(limit=MOST_RUNS))
    if page.after is not None:
        raise BadRequest(f"These are more than {MOST_RUNS} runs: choose fewer partitions.")
    return [run.key for run in page.items]


def _key(dag_id: str, run: BulkDAGRunBody) -> DagRunKey:
    named = run.dag_id or dag_id
    if named == "~":
        raise BadRequest(f"Name the DAG of the run {run.dag_run_id!r}: the path does not.")
    if dag_id not in ("~", named):
        raise BadRequest(f"The run {run.dag_run_id!r} is of the DAG {named!r}, and the path names {dag_id!r}.")
    return DagRunKey(named, run.dag_run_id)


async def _preview(call: Call, keys: Sequence[DagRunKey], body: DAGRunClearBody) -> ClearTaskInstanceCollectionResponse:
    """Return the first of what a clear of runs concerns, and how many there are."""
    shown: list[Any] = []
    total = 0
    for key in keys:
        request, most = await _request(call, key, body), MOST_ROWS - len(shown)
        if body.only_new:
            new = () if request is None else request.task_ids
            shown += [NewTaskResponse(name, name) for name in new[:most]]
            total += len(new)
        else:
            changed = await call.context.ask(preview_clear, key, request or ClearTasks(), now=call.context.clock.now())
            infos = await call.context.ask(task_instances_of, *key, names_of(changed[:most]))
            shown += map(instance_response, infos)
            total += len(changed)
    return ClearTaskInstanceCollectionResponse(tuple(shown), total)


async def _clear(call: Call, key: DagRunKey, body: DAGRunClearBody) -> None:
    request = await _request(call, key, body)
    if request is not None:
        await clear_tasks(call.context, call.who.name, key, Clear(request=request))
    if body.note is not None:
        await note_run(call.context, call.who.name, key, body.note)


async def _request(call: Call, key: DagRunKey, body: DAGRunClearBody) -> ClearTasks | None:
    """Return the request that a body stands for; None: there is nothing new to run. Raises Invalid, and NotFound."""
    if body.only_new and body.only_failed:
        raise Invalid(("body",), "Give only_new or only_failed, not both.")
    if not body.only_new:
        await call.context.ask(check_run_exists, *key)
        return ClearTasks(only_failed=body.only_failed, latest=bool(body.run_on_latest_version))
    new = await call.context.ask(new_tasks, key)
    return ClearTasks(new, latest=True) if new else None
