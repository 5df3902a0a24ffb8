"""Queries of `hitl_detail`: the questions that tasks ask people, and the answers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.authoring.transport import to_transport
from asynsched.store.rows import fetch_one
from asynsched.store.runs.requests import AnswerTask
from asynsched.store.schema import HITLRow, hitl_detail
from asynsched.store.statements import insert_or_update


class Question(Struct, frozen=True, kw_only=True):
    """A question as a task asks it; see HITLRow."""

    subject: str
    body: str | None
    options: list[str]
    defaults: list[str] | None
    multiple: bool
    params: dict[str, Any]
    assigned_users: list[dict[str, str]]


def put_question(conn: Connection, scope: tuple[int, str, int], token: str, asked: Question, now: datetime) -> None:
    """Store a question of a process, in place of an earlier one of the same task instance and of its answer."""
    run, task_id, map_index = scope
    row = HITLRow(dag_run_id=run, task_id=task_id, map_index=map_index, token=token, created_at=now, **asdict(asked))
    conn.execute(insert_or_update(conn, hitl_detail), asdict(row))


def get_question(conn: Connection, scope: tuple[int, str, int], *, lock: bool = False) -> HITLRow | None:
    """Return the question of a task instance; None if it has asked none.

    `lock`: Until this transaction ends, nobody else answers it.
    """
    query = sa.select(hitl_detail).where(*_of(scope))
    return fetch_one(conn, HITLRow, query.with_for_update(key_share=True) if lock else query)


def put_answer(
    conn: Connection,
    asked: HITLRow,
    *,
    chosen_options: Sequence[str],
    params_input: Mapping[str, Any],
    user: Mapping[str, str] | None,
    now: datetime,
) -> AnswerTask:
    """Store the answer to a question, and return the request that resumes its task."""
    answer = {
        "responded_at": now, "responded_by": None if user is None else dict(user),
        "chosen_options": list(chosen_options), "params_input": dict(params_input),
    }  # fmt: skip
    scope = (asked.dag_run_id, asked.task_id, asked.map_index)
    conn.execute(sa.update(hitl_detail).where(*_of(scope)).values(**answer))
    event = event_of(now, chosen_options, params_input, user=user, timedout=False)
    return AnswerTask(asked.task_id, asked.map_index, asked.created_at, event)


def event_of(
    at: datetime,
    chosen_options: Sequence[str],
    params_input: Mapping[str, Any],
    *,
    user: Mapping[str, str] | None,
    timedout: bool,
) -> dict[str, Any]:
    """Return the event with which a task goes on after an answer, as `to_transport` writes it."""
    return {
        "chosen_options": list(chosen_options), "params_input": dict(params_input), "responded_at": to_transport(at),
        "responded_by_user": None if user is None else dict(user), "timedout": timedout,
    }  # fmt: skip


def fields_of_question(asked: HITLRow) -> dict[str, Any]:
    """Return the fields of a question for code of its task, as JSON: all but the token, which names a process."""
    fields: dict[str, Any] = msgspec.to_builtins(asked)
    del fields["token"]
    return fields


def _of(scope: tuple[int, str, int]) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(
        hitl_detail.c[name] == value for name, value in zip(("dag_run_id", "task_id", "map_index"), scope, strict=True)
    )
