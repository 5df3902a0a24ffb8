"""Queries of `run_request`: what somebody wants done with a running run, until its scheduler has done it."""

from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.states import DagRunState
from asynsched.store.rows import to_json
from asynsched.store.schema import dag_run, run_request

MarkedTaskState = Literal["success", "failed", "skipped"]
MarkedRunState = Literal["success", "failed"]


class ClearTasks(Struct, frozen=True, tag="clear", omit_defaults=True):
    """Let tasks run again.

    Attributes:
        task_ids: Which; none are all of the run.
        upstream: Also those upstream of them.
        downstream: Also those downstream of them.
        only_failed: Of all these, only those that have failed.
        only_running: Of all these, only those that run.
        map_index: Of the tasks that are named, only this instance; None: all.
        latest: Move the run to the newest version of its DAG first.
    """

    task_ids: tuple[str, ...] = ()
    upstream: bool = False
    downstream: bool = False
    only_failed: bool = False
    only_running: bool = False
    map_index: int | None = None
    latest: bool = False


class MarkTasks(Struct, frozen=True, tag="mark", omit_defaults=True):
    """Put tasks into a state in which they count as ended. The fields are those of ClearTasks."""

    task_ids: tuple[str, ...]
    state: MarkedTaskState
    upstream: bool = False
    downstream: bool = False
    map_index: int | None = None


class ForceTask(Struct, frozen=True, tag="run", omit_defaults=True):
    """Let one task instance start, and do not look at some of what holds it.

    Attributes:
        ignored: Dependencies that do not count, by their names.
        ignore_state: Run it again though it has ended; restart it though it runs.
        ignore_retry_period: Do not wait until its retry, or its next poke, is due.
    """

    task_id: str
    map_index: int = -1
    ignored: tuple[str, ...] = ()
    ignore_state: bool = False
    ignore_retry_period: bool = False


class MarkRun(Struct, frozen=True, tag="mark_run"):
    """Put a run into a state in which it has ended, and its tasks with it."""

    state: MarkedRunState


class CancelRun(Struct, frozen=True, tag="cancel"):
    """End a run: kill what runs, skip what waits."""


RunRequest = ClearTasks | MarkTasks | ForceTask | MarkRun | CancelRun


class OpenRequest(Struct, frozen=True):
    """A request that is to be done."""

    id: int
    dag_run_id: int
    run: DagRunKey
    request: RunRequest
    actor: str


class WaitingRequest(Struct, frozen=True):
    """What is asked for and not done: what, by whom, and since when."""

    request: RunRequest
    actor: str
    created_at: datetime


_decoder: msgspec.json.Decoder[RunRequest] = msgspec.json.Decoder(RunRequest)
_OPEN = (
    sa.select(run_request, dag_run.c.dag_id, dag_run.c.run_id)
    # A sum has no index: so the requests are read first, and never every run there is.
    .join(dag_run, dag_run.c.id == run_request.c.dag_run_id + 0)
    .where(sa.or_(dag_run.c.state != DagRunState.RUNNING, dag_run.c.lease_epoch == sa.bindparam("epoch")))
    .order_by(run_request.c.id)
)
_OF_RUN = sa.select(run_request).where(run_request.c.dag_run_id == sa.bindparam("key")).order_by(run_request.c.id)
_IS_OPEN = sa.select(sa.literal(1)).where(run_request.c.id == sa.bindparam("key"))
_DELETE = sa.delete(run_request).where(run_request.c.id == sa.bindparam("key"))


def add_request(conn: Connection, dag_run_id: int, request: RunRequest, *, actor: str, now: datetime) -> int:
    """Store a request for the scheduler that owns the run, and return its id."""
    values = {"dag_run_id": dag_run_id, "request": to_json(request), "actor": actor, "created_at": now}
    request_id: int = conn.execute(run_request.insert().returning(run_request.c.id), values).scalar_one()
    return request_id


def open_requests(conn: Connection, epoch: int) -> list[OpenRequest]:
    """Return the requests that concern runs of this lease epoch, or runs that nobody runs, oldest first.

    What only a newer version understands is left to it.
    """
    found = []
    for row in conn.execute(_OPEN, {"epoch": epoch}):
        with suppress(msgspec.ValidationError):
            request = _decoder.decode(row.request)
            found.append(OpenRequest(row.id, row.dag_run_id, DagRunKey(row.dag_id, row.run_id), request, row.actor))
    return found


def waiting_requests(conn: Connection, dag_run_id: int) -> list[WaitingRequest]:
    """Return what is asked for of a run and not done, oldest first."""
    return [
        WaitingRequest(_decoder.decode(row.request), row.actor, row.created_at)
        for row in conn.execute(_OF_RUN, {"key": dag_run_id})
    ]


def is_open(conn: Connection, request_id: int) -> bool:
    """Return whether a request is still to be done."""
    return conn.execute(_IS_OPEN, {"key": request_id}).first() is not None


def close_request(conn: Connection, request_id: int) -> bool:
    """Delete a request that is done. False: somebody else has done it."""
    return conn.execute(_DELETE, {"key": request_id}).rowcount > 0
