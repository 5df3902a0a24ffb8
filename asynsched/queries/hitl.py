"""Questions of tasks to people, and the action that answers one."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.authoring.exceptions import ParamValidationError
from asynsched.authoring.params import NOTSET, Param
from asynsched.bell import Hint
from asynsched.errors import AsynschedError, NotFound
from asynsched.keys import TaskInstanceKey
from asynsched.queries.context import Act, QueryContext
from asynsched.queries.paging import (
    FIRST_PAGE,
    BadRequest,
    Page,
    Paging,
    Range,
    Sorting,
    begins,
    matches,
    one_of,
    select_page,
)
from asynsched.queries.task_instances import TaskInstanceInfo, get_task_instance, task_instances_of
from asynsched.scheduling.requests.run_requests import submit_answer
from asynsched.states import TaskInstanceState
from asynsched.store.expressions import json_item
from asynsched.store.rows import count
from asynsched.store.schema import HITLRow, dag_run, hitl_detail, task_instance

Read = Callable[[HITLRow], tuple[list[str], dict[str, Any]]]
"""Returns the chosen options and the values of the params, given the question; raises AsynschedError."""
MOST_ROWS = 100
"""Rows of the largest page: each has the whole text of its question."""
_COLUMNS = (*hitl_detail.c, dag_run.c.dag_id, dag_run.c.run_id)
_IS_SAME = sa.and_(*(task_instance.c[name] == hitl_detail.c[name] for name in ("dag_run_id", "task_id", "map_index")))
_QUESTIONS: sa.Select[Any] = (
    sa.select(*_COLUMNS)
    .join_from(hitl_detail, task_instance, _IS_SAME)
    .join(dag_run, dag_run.c.id == hitl_detail.c.dag_run_id)
)
_UNANSWERED = (
    sa.select(sa.select(task_instance.c.id).where(_IS_SAME).correlate(hitl_detail).scalar_subquery())
    .select_from(hitl_detail)
    .where(hitl_detail.c.responded_at.is_(None))
    .correlate(None)
)
"""The row ids of the task instances whose questions have no answer. Joined, SQLite would look through all instances."""
RESPONDENT = {f"responded_by_{name}": json_item(hitl_detail.c.responded_by, name) for name in ("id", "name")}
SORTING = Sorting(
    {
        "id": task_instance.c.id, "subject": hitl_detail.c.subject, "created_at": hitl_detail.c.created_at,
        "responded_at": hitl_detail.c.responded_at, "dag_id": dag_run.c.dag_id, "run_id": dag_run.c.run_id,
        "run_after": dag_run.c.run_after, "rendered_map_index": task_instance.c.rendered_map_index,
        "state": task_instance.c.state, "task_id": hitl_detail.c.task_id, **RESPONDENT,
    },
    key=task_instance.c.id,
    usual=("id",),
)  # fmt: skip


class QuestionInfo(Struct, frozen=True):
    """A question, its answer once there is one, and the task instance that asks it."""

    asked: HITLRow
    instance: TaskInstanceInfo


class QuestionFilter(Struct, frozen=True, kw_only=True):
    """Which questions are wanted.

    Attributes:
        equal: Values of `dag_id`, `run_id`, `task_id` and `map_index`.
        containing: Patterns of `dag_id`, `task_id`, `subject` and `body`.
        beginning: Beginnings of `dag_id` and `task_id`.
        dag_ids: Only those of these DAGs; None: of all.
        states: Of the task instances; empty: all.
        is_answered: Only those with an answer, or only others.
        responded_by_ids: Of the people who have answered; empty: all, and none.
    """

    equal: Mapping[str, str | int] = {}
    containing: Mapping[str, str] = {}
    beginning: Mapping[str, str] = {}
    dag_ids: frozenset[str] | None = None
    states: tuple[str | None, ...] = ()
    is_answered: bool | None = None
    responded_by_ids: tuple[str, ...] = ()
    responded_by_names: tuple[str, ...] = ()
    created_at: Range = Range()


def list_questions(conn: Connection, wanted: QuestionFilter, paging: Paging = FIRST_PAGE) -> Page[QuestionInfo]:
    """Return questions. Raises BadRequest."""
    rows, after = select_page(conn, _matching(wanted), SORTING, paging)
    of_runs: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in rows:
        of_runs.setdefault((row.dag_id, row.run_id), []).append((row.task_id, row.map_index))
    found = {info.key: info for run, names in of_runs.items() for info in task_instances_of(conn, *run, names)}
    infos = [
        QuestionInfo(_asked(row), found[key])
        for row in rows
        if (key := TaskInstanceKey(row.dag_id, row.run_id, row.task_id, row.map_index)) in found
    ]
    return Page(tuple(infos), after)


class WaitingQuestion(Struct, frozen=True, kw_only=True):
    """A question that a task instance waits with.

    Attributes:
        assigned_users: The `id` and `name` of each person who may answer; empty: everybody may.
        default_at: When the time is over: then the task goes on with `defaults`, or fails if there are none.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    subject: str
    options: list[str]
    multiple: bool
    params: dict[str, Any]
    assigned_users: list[dict[str, str]]
    since: datetime
    defaults: list[str] | None
    default_at: datetime | None
    body: str | None


def list_waiting(conn: Connection, wanted: QuestionFilter, paging: Paging = FIRST_PAGE) -> Page[WaitingQuestion]:
    """Return the questions without an answer that task instances wait with. Raises BadRequest."""
    page = list_questions(conn, replace(wanted, states=(TaskInstanceState.AWAITING_INPUT,), is_answered=False), paging)
    return Page(tuple(_waiting(found) for found in page.items), page.after)


def _waiting(found: QuestionInfo) -> WaitingQuestion:
    asked, instance = found.asked, found.instance
    return WaitingQuestion(
        dag_id=instance.dag_id, run_id=instance.run_id, task_id=asked.task_id, map_index=asked.map_index,
        subject=asked.subject, options=asked.options, multiple=asked.multiple, params=asked.params,
        assigned_users=asked.assigned_users, since=asked.created_at, defaults=asked.defaults,
        default_at=instance.next_try_at, body=asked.body,
    )  # fmt: skip


def count_questions(conn: Connection, wanted: QuestionFilter) -> int:
    """Count such questions."""
    return count(conn, _matching(wanted).with_only_columns(task_instance.c.id))


def get_question(conn: Connection, key: TaskInstanceKey) -> QuestionInfo:
    """Return the question of a task instance. Raises NotFound if there is none, or no such task instance."""
    row = conn.execute(_matching(QuestionFilter(equal=key._asdict()))).first()
    instance = get_task_instance(conn, key)
    if row is None:
        raise NotFound("question of the task instance", key.task_id, where=f"the run {key.run_id!r}")
    return QuestionInfo(_asked(row), instance)


def answer(conn: Connection, key: TaskInstanceKey, read: Read, *, user: str, now: datetime) -> Act[HITLRow]:
    """Answer the question of a task, which then goes on. Raises the errors of `submit_answer`."""
    respondent = {"id": user, "name": user}
    asked = submit_answer(conn, key.run, key.task_id, key.map_index, read, actor=user, user=respondent, now=now)
    return Act(asked, "task.answer", Hint("edit", *key.run), key.task_id, {"map_index": key.map_index, "user": user})


def chosen_options(asked: HITLRow, options: Sequence[str]) -> list[str]:
    """Return the options of an answer, each once. Raises BadRequest if they do not fit the question."""
    chosen = list(dict.fromkeys(options))
    if not chosen or not set(chosen) <= set(asked.options):
        raise BadRequest(f"Choose among the options: {', '.join(asked.options)}.")
    if len(chosen) > 1 and not asked.multiple:
        raise BadRequest(f"Choose one option: the task takes a single one of {', '.join(asked.options)}.")
    return chosen


def reading(options: Sequence[str], params_input: Mapping[str, Any]) -> Read:
    """Return the function that checks an answer by its question, for the action `answer`. It raises BadRequest."""

    def read(asked: HITLRow) -> tuple[list[str], dict[str, Any]]:
        chosen = chosen_options(asked, options)
        if unknown := sorted(set(params_input) - set(asked.params)):
            raise BadRequest(f"The task does not ask for {', '.join(unknown)}.")
        return chosen, {name: _value(name, param, params_input) for name, param in asked.params.items()}

    return read


async def read_before(context: QueryContext, key: TaskInstanceKey, read: Read) -> Read:
    """Return a function for `answer` that has read the answer already, in a thread: no transaction waits for that.

    It reads again if the question is another one by then. What `read` raises, the function raises.
    """
    from anyio.to_thread import run_sync  # commands, which have no loop, import this module too

    try:
        before = (await context.ask(get_question, key)).asked
    except NotFound:
        return read  # `answer` says what is missing
    found = await run_sync(_result_or_error, read, before)

    def known(asked: HITLRow) -> tuple[list[str], dict[str, Any]]:
        if (asked.options, asked.multiple, asked.params) != (before.options, before.multiple, before.params):
            return read(asked)
        if isinstance(found, AsynschedError):
            raise found
        return found

    return known


def _result_or_error(read: Read, asked: HITLRow) -> tuple[list[str], dict[str, Any]] | AsynschedError:
    from asynsched.authoring.json_schemas import limited_time  # loads jsonschema

    try:
        with limited_time():
            return read(asked)
    except AsynschedError as exc:
        return exc


def _value(name: str, param: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    default = param.get("value")
    checked = Param(NOTSET if default is None else default, schema=param.get("schema") or {})
    if name not in given and default is None:
        return None
    try:
        return checked.resolve(given[name]) if name in given else checked.resolve()
    except ParamValidationError as exc:
        raise BadRequest(f"The param {name!r}: {exc}") from exc


def _asked(row: "sa.Row[Any]") -> HITLRow:
    return HITLRow(**{name: getattr(row, name) for name in HITLRow.__struct_fields__})


def _matching(wanted: QuestionFilter) -> sa.Select[Any]:
    columns = {column.name: column for column in _COLUMNS}
    query = _QUESTIONS.where(*wanted.created_at.holds_for(hitl_detail.c.created_at))
    query = query.where(*(columns[name] == value for name, value in wanted.equal.items()))
    query = query.where(*(matches(columns[name], value) for name, value in wanted.containing.items()))
    query = query.where(*(begins(columns[name], value) for name, value in wanted.beginning.items()))
    if wanted.dag_ids is not None:
        query = query.where(dag_run.c.dag_id.in_(wanted.dag_ids))
    query = query.where(*one_of(task_instance.c.state, wanted.states or None))
    for name, values in (("id", wanted.responded_by_ids), ("name", wanted.responded_by_names)):
        query = query.where(*one_of(RESPONDENT[f"responded_by_{name}"], values or None))
    if wanted.is_answered is not None:
        has_answer = hitl_detail.c.responded_at.is_not(None)
        query = query.where(has_answer if wanted.is_answered else task_instance.c.id.in_(_UNANSWERED))
    return query
