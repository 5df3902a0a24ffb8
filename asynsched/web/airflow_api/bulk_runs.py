"""Many runs or task instances changed or deleted in one request: PATCH of their lists.

Each is a change of its own. One that fails is reported among the errors, and the others are done.
"""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from asynsched.errors import AsynschedError, NotFound
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.paging import BadRequest
from asynsched.queries.run_actions import delete_run, mark_run, note_run
from asynsched.queries.runs import check_run_exists
from asynsched.queries.task_instances import get_task_instance, has_task
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, Names, is_meant
from asynsched.web.airflow_api.bulk import (
    BulkActionResponse,
    BulkBody,
    BulkCreateAction,
    BulkDeleteAction,
    BulkResponse,
    BulkUpdateAction,
    answering,
)
from asynsched.web.airflow_api.run_changes import BulkDAGRunBody
from asynsched.web.airflow_api.task_changes import PatchTaskInstanceBody, patch_instances
from asynsched.web.airflow_api.task_instances import BASE
from asynsched.web.endpoint import Call, check

NOT_CREATED = "Runs are created one by one, by the endpoint that triggers a DAG."
NOT_DELETED = "asynsched deletes whole runs: a run keeps the instances of its tasks."


class BulkTaskInstanceBody(PatchTaskInstanceBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the instances of a task."""

    task_id: str
    map_index: MapIndex | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None


class Step(NamedTuple):
    """The change of one thing.

    Attributes:
        name: Of the thing, in the answer.
        dag_id: Whose right is needed.
        look: Raises NotFound if the thing does not exist.
        do: Changes it.
    """

    name: str
    dag_id: str
    look: Callable[[], Awaitable[object]]
    do: Callable[[], Awaitable[object]]


@AIRFLOW_API.endpoint("PATCH", "/dags/{dag_id}/dagRuns")
async def bulk_dag_runs(call: Call, dag_id: str, body: BulkBody[BulkDAGRunBody]) -> BulkResponse:
    """Mark, note or delete several runs."""

    def step(entity: Any, mask: Names | None, *, deletes: bool) -> Step:
        named = BulkDAGRunBody(dag_run_id=entity) if isinstance(entity, str) else entity
        key = DagRunKey(named.dag_id or dag_id, named.dag_run_id)
        if "~" in key:
            raise BadRequest(f"Name the DAG of the run {key.run_id!r}: the path does not.")
        look = _asking(call, check_run_exists, *key)
        do = _calling(delete_run, call.context, call.who.name, key) if deletes else _marking(call, key, named, mask)
        return Step(f"{key.dag_id}.{key.run_id}", key.dag_id, look, do)

    return await _bulk(call, body, step, {"create": NOT_CREATED})


@AIRFLOW_API.endpoint("PATCH", BASE)
async def bulk_task_instances(
    call: Call, dag_id: str, dag_run_id: str, body: BulkBody[BulkTaskInstanceBody]
) -> BulkResponse:
    """Mark or note several task instances."""

    def step(entity: Any, mask: Names | None, *, deletes: bool) -> Step:  # noqa: ARG001 - these are refused
        named: BulkTaskInstanceBody = entity
        key = DagRunKey(named.dag_id or dag_id, named.dag_run_id or dag_run_id)
        if "~" in key:
            raise BadRequest(f"Name the DAG and the run of the task {named.task_id!r}: the path does not.")
        index = -1 if named.map_index is None else named.map_index
        of_all = named.map_index is None
        look = _asking(call, has_task if of_all else get_task_instance, TaskInstanceKey(*key, named.task_id, index))
        do = _calling(patch_instances, call, key, (named.task_id,), named.map_index, named, mask)
        name = f"{key.dag_id}.{key.run_id}.{named.task_id}{'' if of_all else f'[{index}]'}"
        return Step(name, key.dag_id, look, do)

    return await _bulk(call, body, step, {"create": NOT_CREATED, "delete": NOT_DELETED})


def _asking(call: Call, question: Callable[..., Any], *args: Any) -> Callable[[], Awaitable[object]]:
    return lambda: call.context.ask(question, *args)


def _calling(function: Callable[..., Awaitable[object]], *args: Any) -> Callable[[], Awaitable[object]]:
    return lambda: function(*args)


def _marking(call: Call, key: DagRunKey, named: BulkDAGRunBody, mask: Names | None) -> Callable[[], Awaitable[object]]:
    async def mark() -> None:
        if named.state is not None and is_meant("state", mask):
            await mark_run(call.context, call.who.name, key, named.state)
        if named.note is not None and is_meant("note", mask):
            await note_run(call.context, call.who.name, key, named.note)

    return mark


async def _bulk(call: Call, body: BulkBody[Any], step: Callable[..., Step], refused: dict[str, str]) -> BulkResponse:
    """Do the actions of a request in their order. `refused`: the kinds of actions that are not done, and why."""
    actions, response = answering(body)
    for action, answer in actions:
        word = str(type(action).__struct_config__.tag)
        if isinstance(action, BulkCreateAction) or word in refused:
            answer.refuse(refused[word], HTTPStatus.METHOD_NOT_ALLOWED)
            continue
        mask = action.update_mask if isinstance(action, BulkUpdateAction) else None
        deletes = isinstance(action, BulkDeleteAction)
        steps: list[Step] = []
        for entity in action.entities:
            try:
                one = step(entity, mask, deletes=deletes)
                check(call.who, Permission.OPERATE, one.dag_id)  # before anything is said about it
            except BadRequest as exc:
                answer.refuse(str(exc), HTTPStatus.BAD_REQUEST)
            except NotAllowed as exc:
                answer.refuse(str(exc), HTTPStatus.FORBIDDEN)
            else:
                steps.append(one)
        await _do(await _found(steps, action.action_on_non_existence == "fail", answer), answer)
    return response


async def _found(steps: Sequence[Step], fails: bool, answer: BulkActionResponse) -> list[Step]:
    """Return the steps of things that exist; if one does not and that `fails`, none, which is added to the answer."""
    found, missing = [], []
    for one in steps:
        try:
            await one.look()
        except NotFound:
            missing.append(one.name)
        else:
            found.append(one)
    if missing and fails:
        answer.refuse(f"These do not exist: {', '.join(missing)}.", HTTPStatus.NOT_FOUND)
        return []
    return found


async def _do(steps: Sequence[Step], answer: BulkActionResponse) -> None:
    for one in steps:
        try:
            await one.do()
        except AsynschedError as exc:
            answer.refuse(str(exc), HTTPStatus.CONFLICT)
        else:
            answer.success.append(one.name)
