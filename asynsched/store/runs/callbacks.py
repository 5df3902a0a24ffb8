"""Queries of `callback_request`: callbacks to run, each at least once. `transitions.py` adds them."""

from collections.abc import Collection
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import fetch
from asynsched.store.schema import CallbackRequest, callback_request, scheduler

_IS_MINE = callback_request.c.scheduler_id == sa.bindparam("me")
_IS_FREE = sa.or_(
    callback_request.c.state == "queued",
    callback_request.c.scheduler_id.is_(None),
    callback_request.c.scheduler_id.not_in(sa.select(scheduler.c.id).where(scheduler.c.ended_at.is_(None))),
    _IS_MINE,
)
_NEXT = (
    sa.select(callback_request)
    .where(
        sa.text("callback_request.state IN ('queued', 'running')"),
        callback_request.c.id.not_in(sa.bindparam("excluding", expanding=True)),
        _IS_FREE,
    )
    .order_by(callback_request.c.id)
    .limit(sa.bindparam("limit"))
)
_RUNNING = sa.select(callback_request).where(sa.text("callback_request.state = 'running'"), _IS_MINE)
_OF_RUN = sa.select(callback_request).where(callback_request.c.dag_run_id == sa.bindparam("run"))
_TAKE = (
    sa.update(callback_request)
    .where(
        callback_request.c.id == sa.bindparam("key"),
        callback_request.c.state == sa.bindparam("seen"),
        callback_request.c.attempts == sa.bindparam("n"),
    )
    .values(
        state="running", token=sa.bindparam("new_token"), attempts=callback_request.c.attempts + 1,
        scheduler_id=sa.bindparam("me"),
    )
)  # fmt: skip
_FINISH = (
    sa.update(callback_request)
    .where(
        callback_request.c.id == sa.bindparam("key"),
        sa.func.coalesce(callback_request.c.token, "") == sa.bindparam("of_token"),
    )
    .values(state=sa.bindparam("new_state"), token=None)
)
_HAND_BACK = (
    sa.update(callback_request)
    .where(callback_request.c.id == sa.bindparam("key"), callback_request.c.token == sa.bindparam("of_token"))
    .values(state="queued", token=None, attempts=callback_request.c.attempts - 1)
)


def next_callbacks(
    conn: Connection, scheduler_id: str, limit: int, excluding: Collection[int] = ()
) -> list[CallbackRequest]:
    """Return the oldest callbacks that a scheduler may run: waiting ones, and those begun by a scheduler that is gone.

    Args:
        excluding: Callbacks that it already runs, or leaves to others.
    """
    return fetch(conn, CallbackRequest, _NEXT, {"me": scheduler_id, "limit": limit, "excluding": list(excluding)})


def running_callbacks(conn: Connection, scheduler_id: str) -> list[CallbackRequest]:
    """Return a scheduler's callbacks that were begun and whose end is not stored."""
    return fetch(conn, CallbackRequest, _RUNNING, {"me": scheduler_id})


def list_callbacks(conn: Connection, dag_run_id: int) -> list[CallbackRequest]:
    """Return the callbacks of a run and of its task instances, in the order in which they were requested."""
    return fetch(conn, CallbackRequest, _OF_RUN.order_by(callback_request.c.id), {"run": dag_run_id})


def take_callback(conn: Connection, request: CallbackRequest, token: str, scheduler_id: str) -> bool:
    """Note that a scheduler runs a callback, under this attempt token. False: another scheduler has taken it."""
    seen = {"key": request.id, "seen": request.state, "n": request.attempts}
    return conn.execute(_TAKE, {**seen, "new_token": token, "me": scheduler_id}).rowcount > 0


def finish_callback(conn: Connection, callback_id: int, token: str | None, state: Literal["success", "failed"]) -> None:
    """Store the end of a callback, if its current attempt has this token."""
    conn.execute(_FINISH, {"key": callback_id, "of_token": token or "", "new_state": state})


def hand_back_callback(conn: Connection, callback_id: int, token: str) -> None:
    """Queue a callback again as if it had not been begun, if its current attempt has this token."""
    conn.execute(_HAND_BACK, {"key": callback_id, "of_token": token})
