"""Queries of `callback_request`: callbacks to be run, each at least once. `transitions.py` writes them."""

from collections.abc import Collection
from datetime import datetime
from typing import Literal

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.callback_tables import callback_request
from asynsched.store.rows import as_struct


class CallbackRequest(Struct, frozen=True):
    """A callback of a task instance, or of the run when `task_id` is empty. `attempts`: how often it was begun."""

    id: int
    dag_run_id: int
    task_id: str
    map_index: int
    try_number: int
    event: str
    reason: str
    state: str
    token: str | None
    attempts: int
    created_at: datetime
    caused_by: str


_NEXT = (
    sa.select(callback_request)
    .where(
        sa.text("callback_request.state IN ('queued', 'running')"),
        callback_request.c.id.not_in(sa.bindparam("excluding", expanding=True)),
    )
    .order_by(callback_request.c.id)
    .limit(sa.bindparam("limit"))
)
_RUNNING = sa.select(callback_request).where(sa.text("callback_request.state = 'running'"))
_OF_RUN = sa.select(callback_request).where(callback_request.c.dag_run_id == sa.bindparam("run"))
_TAKE = (
    sa.update(callback_request)
    .where(callback_request.c.id == sa.bindparam("key"))
    .values(state="running", token=sa.bindparam("new_token"), attempts=callback_request.c.attempts + 1)
)
_FINISH = (
    sa.update(callback_request)
    .where(callback_request.c.id == sa.bindparam("key"))
    .values(state=sa.bindparam("new_state"), token=None)
)


def next_callbacks(conn: Connection, limit: int, excluding: Collection[int] = ()) -> list[CallbackRequest]:
    """Return the oldest callbacks that have not ended, less those that the caller runs already.

    One that is `running` and not the caller's was begun by somebody who is gone.
    """
    rows = conn.execute(_NEXT, {"limit": limit, "excluding": list(excluding)})
    return [as_struct(CallbackRequest, row) for row in rows]


def running_callbacks(conn: Connection) -> list[CallbackRequest]:
    """Return the callbacks that were begun, and whose end is not stored."""
    return [as_struct(CallbackRequest, row) for row in conn.execute(_RUNNING)]


def list_callbacks(conn: Connection, dag_run_id: int) -> list[CallbackRequest]:
    """Return the callbacks of a run and of its task instances, in the order in which they were requested."""
    rows = conn.execute(_OF_RUN.order_by(callback_request.c.id), {"run": dag_run_id})
    return [as_struct(CallbackRequest, row) for row in rows]


def take_callback(conn: Connection, callback_id: int, token: str) -> None:
    """Note that a callback is being run, under this attempt token."""
    conn.execute(_TAKE, {"key": callback_id, "new_token": token})


def finish_callback(conn: Connection, callback_id: int, state: Literal["success", "failed"]) -> None:
    """Note how a callback has ended."""
    conn.execute(_FINISH, {"key": callback_id, "new_state": state})
