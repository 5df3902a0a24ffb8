"""Queries of `callback_request`: callbacks to run, each at least once. `transitions.py` adds them."""

from collections.abc import Collection
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import fetch
from asynsched.store.schema import CallbackRequest, callback_request, scheduler

_MINE_RUNNING = sa.text("callback_request.state = 'running' AND callback_request.scheduler_id = :me")
_NEXT = (
    sa.select(callback_request)
    .where(
        sa.text("callback_request.state IN ('queued', 'running')"),
        callback_request.c.id.not_in(sa.bindparam("excluding", expanding=True)),
        sa.or_(
            callback_request.c.state == "queued",
            callback_request.c.scheduler_id.is_(None),
            callback_request.c.scheduler_id.not_in(sa.select(scheduler.c.id).where(scheduler.c.ended_at.is_(None))),
            callback_request.c.scheduler_id == sa.bindparam("me"),
        ),
    )
    .order_by(callback_request.c.id)
    .limit(sa.bindparam("limit"))
)


def next_callbacks(
    conn: Connection, scheduler_id: str, limit: int, excluding: Collection[int] = ()
) -> list[CallbackRequest]:
    """Return the oldest callbacks that a scheduler may run: waiting ones, and those begun by a scheduler that is gone.

    Without those `excluding`, which it already runs, or leaves to others.
    """
    return fetch(conn, CallbackRequest, _NEXT, {"me": scheduler_id, "limit": limit, "excluding": list(excluding)})


def running_callbacks(conn: Connection, scheduler_id: str) -> list[CallbackRequest]:
    """Return a scheduler's callbacks that were begun and whose end is not stored."""
    return fetch(conn, CallbackRequest, sa.select(callback_request).where(_MINE_RUNNING), {"me": scheduler_id})


def list_callbacks(conn: Connection, dag_run_id: int) -> list[CallbackRequest]:
    """Return the callbacks of a run and of its task instances, in the order in which they were requested."""
    query = sa.select(callback_request).where(callback_request.c.dag_run_id == dag_run_id)
    return fetch(conn, CallbackRequest, query.order_by(callback_request.c.id))


def take_callback(conn: Connection, request: CallbackRequest, token: str, scheduler_id: str) -> bool:
    """Note that a scheduler runs a callback, under this attempt token. False: another scheduler has taken it."""
    is_same = (callback_request.c.state == request.state, callback_request.c.attempts == request.attempts)
    take = sa.update(callback_request).where(callback_request.c.id == request.id, *is_same)
    new = {"token": token, "attempts": request.attempts + 1, "scheduler_id": scheduler_id}
    return conn.execute(take.values(state="running", **new)).rowcount > 0


def finish_callback(conn: Connection, callback_id: int, token: str | None, state: Literal["success", "failed"]) -> None:
    """Store the end of a callback, if its current attempt has this token."""
    conn.execute(_of_attempt(callback_id, token).values(state=state, token=None))


def hand_back_callback(conn: Connection, callback_id: int, token: str) -> None:
    """Queue a callback again as if it had not been begun, if its current attempt has this token."""
    hand_back = _of_attempt(callback_id, token).values(state="queued", token=None)
    conn.execute(hand_back.values(attempts=callback_request.c.attempts - 1))


def _of_attempt(callback_id: int, token: str | None) -> sa.Update:
    has_token = sa.func.coalesce(callback_request.c.token, "") == (token or "")
    return sa.update(callback_request).where(callback_request.c.id == callback_id, has_token)
