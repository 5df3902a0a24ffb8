"""`/dags/…/hitlDetails`: the questions of tasks to people, and their answers."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from asynsched.keys import TaskInstanceKey
from asynsched.queries.hitl import (
    QuestionFilter,
    QuestionInfo,
    answer,
    count_questions,
    get_question,
    list_questions,
    read_before,
    reading,
)
from asynsched.states import TaskInstanceState
from asynsched.store.schema import HITLRow
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, Names, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.dag_runs import RUN
from asynsched.web.airflow_api.filters import bounds, states
from asynsched.web.airflow_api.task_instances import BASE, TaskInstanceResponse, instance_response
from asynsched.web.endpoint import Call

QUESTION = f"{BASE}/{{task_id}}/{{map_index}}/hitlDetails"
NAMES = {
    "ti_id": "id", "task_instance_state": "state", "task_display_name": "task_id", "task_instance_operator": "task_id",
    "responded_by_user_id": "responded_by_id", "responded_by_user_name": "responded_by_name",
}  # fmt: skip


class HITLUser(Struct, frozen=True):
    """A person."""

    id: str
    name: str


class HITLDetail(Struct, frozen=True, kw_only=True):
    """A question, and its answer once there is one."""

    options: tuple[str, ...]
    subject: str
    body: str | None
    defaults: tuple[str, ...] | None
    multiple: bool
    params: dict[str, Any]
    assigned_users: tuple[HITLUser, ...]
    created_at: datetime
    responded_by_user: HITLUser | None
    responded_at: datetime | None
    chosen_options: tuple[str, ...] | None
    params_input: dict[str, Any]
    response_received: bool
    task_instance: TaskInstanceResponse


class HITLDetailCollection(Struct, frozen=True):
    """A page of questions."""

    hitl_details: tuple[HITLDetail, ...]
    total_entries: int


class HITLDetailResponse(Struct, frozen=True, kw_only=True):
    """An answer."""

    responded_by: HITLUser
    responded_at: datetime
    chosen_options: tuple[str, ...]
    params_input: dict[str, Any]


class UpdateHITLDetailPayload(Struct, frozen=True):
    """An answer to give: the chosen options, and values of the params that are not the defaults."""

    chosen_options: Annotated[tuple[str, ...], Meta(min_length=1)]
    params_input: dict[str, Any] = {}


class HITLQuery(Struct, frozen=True, kw_only=True):
    """Which questions are wanted."""

    dag_id_pattern: str | None = None
    dag_id_prefix_pattern: str | None = None
    task_id: str | None = None
    task_id_pattern: str | None = None
    task_id_prefix_pattern: str | None = None
    map_index: MapIndex | None = None
    state: Names = ()
    response_received: bool | None = None
    responded_by_user_id: Names = ()
    responded_by_user_name: Names = ()
    subject_search: str | None = None
    body_search: str | None = None
    created_at_gte: datetime | None = None
    created_at_gt: datetime | None = None
    created_at_lte: datetime | None = None
    created_at_lt: datetime | None = None

    def filter(self, dag_id: str, run_id: str, dag_ids: frozenset[str] | None) -> QuestionFilter:
        """Return the filter of these values, of a path in which `~` stands for all, and of the DAGs that are seen."""
        of_path = {name: value for name, value in (("dag_id", dag_id), ("run_id", run_id)) if value != "~"}
        return QuestionFilter(
            dag_ids=dag_ids, states=states(self.state, TaskInstanceState) or (), is_answered=self.response_received,
            responded_by_ids=self.responded_by_user_id, responded_by_names=self.responded_by_user_name,
            equal={**of_path, **_given(task_id=self.task_id, map_index=self.map_index)},
            containing=_given(
                dag_id=self.dag_id_pattern, task_id=self.task_id_pattern, subject=self.subject_search,
                body=self.body_search,
            ),
            beginning=_given(dag_id=self.dag_id_prefix_pattern, task_id=self.task_id_prefix_pattern),
            created_at=bounds(self, "created_at"),
        )  # fmt: skip


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@AIRFLOW_API.endpoint("GET", f"{RUN}/hitlDetails")
async def get_hitl_details(
    call: Call, dag_id: str, dag_run_id: str, query: HITLQuery, page: PageQuery, order_by: OrderBy = ("ti_id",)
) -> HITLDetailCollection:
    """List the questions of the tasks of a run, or of all (`~`)."""
    wanted = query.filter(dag_id, dag_run_id, call.who.dag_ids)
    questions, asked = (list_questions, count_questions), paging(page, order_by, NAMES)
    return HITLDetailCollection(*await listed(call, questions, wanted, page=asked, shown=_detail))


@AIRFLOW_API.endpoint("GET", QUESTION, errors=(404,))
async def get_hitl_detail(call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex) -> HITLDetail:
    """Show the question of a task instance; the map index of a task that is not mapped is -1."""
    return _detail(await call.context.ask(get_question, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index)))


@AIRFLOW_API.endpoint("PATCH", QUESTION, permission=Permission.OPERATE, errors=(403, 404, 409))
async def update_hitl_detail(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex, body: UpdateHITLDetailPayload
) -> HITLDetailResponse:
    """Answer the question of a task instance, which then goes on."""
    key, name = TaskInstanceKey(dag_id, dag_run_id, task_id, map_index), call.who.name
    _check_assigned((await call.context.ask(get_question, key)).asked, name)
    read = await read_before(call.context, key, reading(body.chosen_options, body.params_input))
    await call.context.act(name, answer, key, read, user=name, now=call.context.clock.now())
    given = (await call.context.ask(get_question, key)).asked
    return HITLDetailResponse(
        responded_by=HITLUser(**(given.responded_by or {"id": name, "name": name})),
        responded_at=given.responded_at or call.context.clock.now(),
        chosen_options=tuple(given.chosen_options or ()), params_input=given.params_input,
    )  # fmt: skip


def _check_assigned(asked: HITLRow, name: str) -> None:
    known = {word for user in asked.assigned_users for word in user.values()}
    if known and name not in known:
        raise NotAllowed(f"{name} may not answer this question. These may: {', '.join(sorted(known))}.")


def _detail(info: QuestionInfo) -> HITLDetail:
    asked = info.asked
    return HITLDetail(
        options=tuple(asked.options), subject=asked.subject, body=asked.body,
        defaults=None if asked.defaults is None else tuple(asked.defaults), multiple=asked.multiple,
        params=asked.params, assigned_users=tuple(HITLUser(**user) for user in asked.assigned_users),
        created_at=asked.created_at,
        responded_by_user=None if asked.responded_by is None else HITLUser(**asked.responded_by),
        responded_at=asked.responded_at,
        chosen_options=None if asked.chosen_options is None else tuple(asked.chosen_options),
        params_input=asked.params_input, response_received=asked.responded_at is not None,
        task_instance=instance_response(info.instance),
    )  # fmt: skip
