"""Queries of `callback_request` and `listener_call`: callbacks to run, each at least once.

`transitions.py` adds the callbacks of runs, `assets.py` the calls of listeners that belong to no run.
"""

from collections.abc import Collection
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import fetch
from asynsched.store.schedulers import SERVING
from asynsched.store.schema import CallbackRequest, ListenerCall, callback_request, listener_call
from asynsched.store.tickets import forget_tickets

Callback = CallbackRequest | ListenerCall
_MINE_RUNNING = sa.text("callback_request.state = 'running' AND callback_request.scheduler_id = :me")


def _next(table: sa.Table) -> "sa.Select[Any]":
    return (
        sa.select(table)
        .where(
            sa.text(f"{table.name}.state IN ('queued', 'running')"),
            table.c.id.not_in(sa.bindparam("excluding", expanding=True)),
            sa.or_(
                table.c.state == "queued",
                table.c.scheduler_id.is_(None),
                table.c.scheduler_id.not_in(SERVING),
                table.c.scheduler_id == sa.bindparam("me"),
            ),
        )
        .order_by(table.c.id)
        .limit(sa.bindparam("limit"))
    )


_NEXT, _NEXT_CALLS = _next(callback_request), _next(listener_call)


def next_callbacks(
    conn: Connection, scheduler_id: str, limit: int, excluding: Collection[int] = (), calls: Collection[int] = ()
) -> list[Callback]:
    """Return the oldest callbacks that a scheduler may run: waiting ones, and those begun by a scheduler that is gone.

    Those of runs come first. Without those `excluding` and the `calls` of listeners, by row id, which it already runs,
    or leaves to others.
    """
    known = {"me": scheduler_id, "limit": limit, "excluding": list(excluding)}
    of_runs = fetch(conn, CallbackRequest, _NEXT, known)
    others = known | {"limit": limit - len(of_runs), "excluding": list(calls)}
    return [*of_runs, *fetch(conn, ListenerCall, _NEXT_CALLS, others)]


def running_callbacks(conn: Connection, scheduler_id: str) -> list[Callback]:
    """Return a scheduler's callbacks that were begun and whose end is not stored."""
    of_runs = fetch(conn, CallbackRequest, sa.select(callback_request).where(_MINE_RUNNING), {"me": scheduler_id})
    is_mine = (listener_call.c.state == "running", listener_call.c.scheduler_id == scheduler_id)
    return [*of_runs, *fetch(conn, ListenerCall, sa.select(listener_call).where(*is_mine))]


def take_over_callback(conn: Connection, request: Callback, scheduler_id: str) -> bool:
    """Note that a scheduler goes on with an attempt of one that is gone. False: another scheduler has taken it."""
    table = _table_of(request)
    is_same = (*_is_attempt(request, request.token), table.c.scheduler_id == request.scheduler_id)
    return conn.execute(sa.update(table).where(*is_same).values(scheduler_id=scheduler_id)).rowcount > 0


def take_callback(conn: Connection, request: Callback, token: str, scheduler_id: str) -> bool:
    """Note that a scheduler runs a callback, under this attempt token. False: another scheduler has taken it.

    An earlier attempt on another machine is no longer awaited: its worker ends it with the next renewal.
    """
    table = _table_of(request)
    is_same = (table.c.state == request.state, table.c.attempts == request.attempts)
    take = sa.update(table).where(table.c.id == request.id, *is_same)
    new = {"token": token, "attempts": request.attempts + 1, "scheduler_id": scheduler_id}
    if not conn.execute(take.values(state="running", **new)).rowcount:
        return False
    if request.token is not None:
        forget_tickets(conn, [request.token])
    return True


def finish_callback(
    conn: Connection, request: Callback, token: str | None, state: Literal["success", "failed"]
) -> None:
    """Store the end of a callback, if its current attempt has this token. Nothing refers to a call of listeners.

    A worker that goes on with the attempt, because it was given up, ends it with the next renewal.
    """
    table = _table_of(request)
    if table is listener_call:
        conn.execute(sa.delete(table).where(*_is_attempt(request, token)))
    else:
        conn.execute(sa.update(table).where(*_is_attempt(request, token)).values(state=state, token=None))
        forget_tickets(conn, [token] if token else [])


def hand_back_callback(conn: Connection, request: Callback, token: str) -> None:
    """Queue a callback again as if it had not been begun, if its current attempt has this token."""
    table = _table_of(request)
    hand_back = sa.update(table).where(*_is_attempt(request, token)).values(state="queued", token=None)
    conn.execute(hand_back.values(attempts=table.c.attempts - 1))


def _is_attempt(request: Callback, token: str | None) -> tuple["sa.ColumnElement[bool]", ...]:
    table = _table_of(request)
    return table.c.id == request.id, sa.func.coalesce(table.c.token, "") == (token or "")


def _table_of(request: Callback) -> sa.Table:
    return callback_request if isinstance(request, CallbackRequest) else listener_call
