"""`/answers`: the questions that tasks ask people, and the form of an answer."""

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.keys import TaskInstanceKey
from asynsched.queries.hitl import (
    MOST_ROWS,
    QuestionFilter,
    answer,
    chosen_options,
    count_questions,
    list_questions,
    read_before,
)
from asynsched.queries.paging import Paging
from asynsched.queries.task_instances import has_task
from asynsched.serialization.schema import SerializedParam
from asynsched.states import TaskInstanceState
from asynsched.store.schema import HITLRow
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import (
    NOTHING_TYPED,
    PAGE,
    MapIndex,
    Typed,
    form_of,
    preferences_of,
    redirect,
    refused,
    show,
)
from asynsched.web.pages.trigger import Field, field_of, read_fields, read_together


@PAGE.endpoint("GET", "/answers")
async def answers(call: Call) -> Response:
    """Show the open questions, the oldest first."""
    return await _show(call)


async def _show(call: Call, answered: TaskInstanceKey | None = None, typed: Typed = NOTHING_TYPED) -> Response:
    """Show the questions, one of them with the answer to it that was refused."""
    wanted = open_to(call.who.dag_ids)
    page = await call.context.ask(list_questions, wanted, Paging(limit=MOST_ROWS, order_by=("created_at",)))
    zone = preferences_of(call.request).zone
    rows = []
    for one in page.items:
        instance = one.instance
        if answered == instance.key:
            _, fields = await run_sync(read_together, _params(one.asked), typed.fields, zone)
            rows.append((one.asked, instance, fields, typed))
        else:
            rows.append((one.asked, instance, _fields(one.asked, zone), NOTHING_TYPED))
    n = len(rows) if page.after is None else await call.context.ask(count_questions, wanted)
    elsewhere = NOTHING_TYPED if any(row[-1] is typed for row in rows) else typed
    return await show(call, "answers.html", rows=rows, n=n, elsewhere=elsewhere, status=typed.status)


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/required_actions")
async def of_task(call: Call, dag_id: str, run_id: str, task_id: str) -> Response:
    """Lead from the address that `generate_link_to_ui` makes, as Airflow's page has it, to the open questions."""
    await call.context.ask(has_task, TaskInstanceKey(dag_id, run_id, task_id))  # raises NotFound
    return redirect(call, "answers")


def open_to(dag_ids: frozenset[str] | None) -> QuestionFilter:
    """Return the filter of the questions that tasks of these DAGs wait with; None: of all."""
    return QuestionFilter(dag_ids=dag_ids, is_answered=False, states=(TaskInstanceState.AWAITING_INPUT,))


def _fields(asked: HITLRow, zone: ZoneInfo) -> list[Field]:
    return [field_of(name, _param(param), param.get("value"), zone) for name, param in asked.params.items()]


def _params(asked: HITLRow) -> dict[str, SerializedParam]:
    return {name: _param(param) for name, param in asked.params.items()}


def _param(param: Mapping[str, Any]) -> SerializedParam:
    return SerializedParam(
        value=param.get("value"), schema=dict(param.get("schema") or {}), description=param.get("description")
    )


@PAGE.endpoint("POST", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/answer", permission=Permission.OPERATE)
async def give(call: Call, dag_id: str, run_id: str, task_id: str, map_index: MapIndex = -1) -> Response:
    """Answer the question of a task, which then goes on."""
    sent, zone = await form_of(call), preferences_of(call.request).zone

    def read(asked: HITLRow) -> tuple[list[str], dict[str, Any]]:
        return read_answer(asked, sent.get("option", []), sent, zone)

    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    known = await read_before(call.context, key, read)
    try:
        await call.context.act(call.who.name, answer, key, known, user=call.who.name, now=call.context.clock.now())
    except AsynschedError as exc:
        return await _show(call, key, refused(sent, exc))
    return redirect(call, "answers", said=f"{task_id} of {run_id} has its answer: {', '.join(sent.get('option', []))}.")


def read_answer(
    asked: HITLRow, options: Sequence[str], sent: dict[str, list[str]], zone: ZoneInfo
) -> tuple[list[str], dict[str, Any]]:
    """Return the chosen options, and a value for each param. Raises AsynschedError if they do not fit the question."""
    chosen = chosen_options(asked, options or (asked.options if len(asked.options) == 1 else ()))
    values, fields = read_fields(_params(asked), sent, zone)
    for field in fields:
        if field.problem:
            raise AsynschedError(f"{field.title}: {field.problem}.")
    return chosen, values
