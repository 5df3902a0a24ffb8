"""The logs of runs that may still grow: those of tries and callbacks that have not ended."""

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.states import FINISHED_TASK_STATES, TaskInstanceState
from asynsched.store.rows import fetch
from asynsched.store.schema import callback_request, dag_run, task_instance

_T = TaskInstanceState
_ENDED = (*FINISHED_TASK_STATES, _T.UP_FOR_RETRY)
_NUMBERED = (_T.QUEUED, _T.RUNNING, _T.RESTARTING)
"""States whose stored number is that of the try; in others that are open, the next try has the next number."""


class LoggedRun(Struct, frozen=True):
    """A run, and the scheduler that has it."""

    id: int
    run_id: str
    scheduler_id: str | None


class OpenTry(Struct, frozen=True):
    """A task instance whose tries may still write to their logs, from this number on."""

    dag_run_id: int
    task_id: str
    map_index: int
    number: int


class OpenCallback(Struct, frozen=True):
    """A callback that has not ended."""

    dag_run_id: int
    task_id: str
    map_index: int
    event: str
    try_number: int


class OpenLogs(Struct, frozen=True):
    """Runs, with what may still write to their logs."""

    runs: list[LoggedRun]
    tries: list[OpenTry]
    callbacks: list[OpenCallback]


def open_logs(conn: Connection, dag_id: str, run_ids: Sequence[str] | None) -> OpenLogs:
    """Return a DAG's runs with one of these run_ids; None: all of them."""
    of_dag = [dag_run.c.dag_id == dag_id, *([] if run_ids is None else [dag_run.c.run_id.in_(list(run_ids))])]
    runs = fetch(conn, LoggedRun, sa.select(dag_run.c.id, dag_run.c.run_id, dag_run.c.scheduler_id).where(*of_dag))
    tasks, calls = task_instance.c, callback_request.c
    number = tasks.try_number + sa.case((tasks.state.in_(_NUMBERED), 0), else_=1)
    tries = (
        sa.select(tasks.dag_run_id, tasks.task_id, tasks.map_index, number.label("number"))
        .join(dag_run, dag_run.c.id == tasks.dag_run_id)
        .where(*of_dag, dag_run.c.state.in_(("queued", "running")))
        .where(sa.or_(tasks.state.is_(None), tasks.state.not_in(_ENDED)))
    )
    callbacks = (
        sa.select(calls.dag_run_id, calls.task_id, calls.map_index, calls.event, calls.try_number)
        .join(dag_run, dag_run.c.id == calls.dag_run_id)
        .where(*of_dag, calls.state.in_(("queued", "running")))
    )
    return OpenLogs(runs, fetch(conn, OpenTry, tries), fetch(conn, OpenCallback, callbacks))
