"""Queries of `run_request`: changes of a running run that a user asks for, until its scheduler has made them."""

from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.states import DagRunState
from asynsched.store.rows import insert, to_json
from asynsched.store.schema import dag_run, run_request

MarkedTaskState = Literal["success", "failed", "skipped"]
MarkedRunState = Literal["success", "failed"]


class ClearTasks(Struct, frozen=True, tag="clear", omit_defaults=True):
    """Run tasks again: the named ones, or all of the run, with their upstream or downstream tasks.

    `only_failed` and `only_running` choose among these, `map_index` among the instances of the named tasks. `latest`
    moves the run to the newest version of its DAG first.
    """

    task_ids: tuple[str, ...] = ()
    upstream: bool = False
    downstream: bool = False
    only_failed: bool = False
    only_running: bool = False
    map_index: int | None = None
    latest: bool = False


class MarkTasks(Struct, frozen=True, tag="mark", omit_defaults=True):
    """Set the state of tasks, which then count as ended. The fields are those of ClearTasks."""

    task_ids: tuple[str, ...]
    state: MarkedTaskState
    upstream: bool = False
    downstream: bool = False
    map_index: int | None = None


class ForceTask(Struct, frozen=True, tag="run", omit_defaults=True):
    """Start one task instance, and ignore some of its dependencies.

    Attributes:
        ignored: Names of the dependencies to ignore.
        ignore_state: Run it again if it has ended; restart it if it is running.
        ignore_retry_period: Start it before its retry, or its next poke, is due.
    """

    task_id: str
    map_index: int = -1
    ignored: tuple[str, ...] = ()
    ignore_state: bool = False
    ignore_retry_period: bool = False


class MarkRun(Struct, frozen=True, tag="mark_run"):
    """End a run in a state, and its tasks with it."""

    state: MarkedRunState


class CancelRun(Struct, frozen=True, tag="cancel"):
    """End a run: kill its running tasks, end those that wait between two processes, and skip the others."""


class AnswerTask(Struct, frozen=True, tag="answer"):
    """Resume a task instance with a person's answer.

    Attributes:
        asked_at: When the task asked the question: an answer to an earlier question resumes nothing.
        event: What the task gets, as `to_transport` writes it.
    """

    task_id: str
    map_index: int
    asked_at: datetime
    event: dict[str, Any]


RunRequest = ClearTasks | MarkTasks | ForceTask | MarkRun | CancelRun | AnswerTask


class OpenRequest(Struct, frozen=True):
    """A request that was not carried out yet."""

    id: int
    dag_run_id: int
    run: DagRunKey
    request: RunRequest
    actor: str


class WaitingRequest(Struct, frozen=True):
    """A request as its run shows it, with its author and its age."""

    request: RunRequest
    actor: str
    created_at: datetime


_decoder: msgspec.json.Decoder[RunRequest] = msgspec.json.Decoder(RunRequest)
_OPEN = (
    sa.select(run_request, dag_run.c.dag_id, dag_run.c.run_id)
    # A sum has no index, so the requests are read first, and never all runs.
    .join(dag_run, dag_run.c.id == run_request.c.dag_run_id + 0)
    .where(sa.or_(dag_run.c.state != DagRunState.RUNNING, dag_run.c.lease_epoch == sa.bindparam("epoch")))
    .order_by(run_request.c.id)
)


def add_request(conn: Connection, dag_run_id: int, request: RunRequest, *, actor: str, now: datetime) -> int:
    """Store a request for the scheduler that owns the run, and return its id."""
    values = {"dag_run_id": dag_run_id, "request": to_json(request), "actor": actor, "created_at": now}
    return insert(conn, run_request, values)


def open_requests(conn: Connection, epoch: int) -> list[OpenRequest]:
    """Return the requests for runs of this lease epoch, or for runs that no scheduler runs, oldest first.

    Requests that only a newer version understands are left to it.
    """
    found = []
    for row in conn.execute(_OPEN, {"epoch": epoch}):
        with suppress(msgspec.ValidationError):
            request = _decoder.decode(row.request)
            found.append(OpenRequest(row.id, row.dag_run_id, DagRunKey(row.dag_id, row.run_id), request, row.actor))
    return found


def waiting_requests(conn: Connection, dag_run_id: int) -> list[WaitingRequest]:
    """Return the open requests for a run, oldest first."""
    rows = conn.execute(sa.select(run_request).where(run_request.c.dag_run_id == dag_run_id).order_by(run_request.c.id))
    return [WaitingRequest(_decoder.decode(row.request), row.actor, row.created_at) for row in rows]


def is_open(conn: Connection, request_id: int) -> bool:
    """Whether a request is still open."""
    return conn.scalar(sa.select(run_request.c.id).where(run_request.c.id == request_id)) is not None


def close_request(conn: Connection, request_id: int) -> bool:
    """Delete a request that was carried out. False: another scheduler has deleted it."""
    return conn.execute(sa.delete(run_request).where(run_request.c.id == request_id)).rowcount > 0
