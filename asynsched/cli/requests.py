"""Carries out a user's request about a run: asks for confirmation, submits it, and waits for the scheduler."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import click

from asynsched.bell import Hint
from asynsched.cli.command import confirm
from asynsched.cli.lookup import find_run
from asynsched.cli.output import Done, Listing
from asynsched.cli.session import Session, actor
from asynsched.keys import DagRunKey
from asynsched.store.runs.requests import RunRequest, is_open
from asynsched.store.schema import TaskInstanceRow

LONGEST_WAIT = timedelta(seconds=15)
"""How long a command waits for the scheduler: a task that is killed has some time to end."""
COLUMNS = ("task_id", "map_index", "state", "try_number")

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the task instances that this would change.")
upstream_option = click.option("-u", "--upstream", is_flag=True, help="Also the tasks upstream.")
downstream_option = click.option("-d", "--downstream", is_flag=True, help="Also the tasks downstream.")
one_index_option = click.option(
    "--map-index", type=click.IntRange(min=0), help="Of the named tasks, only this instance of a mapped one."
)


class Wording(NamedTuple):
    """The names of a request: in the audit, in the question before it, and in the answer after it.

    In the texts `{run}` stands for the run_id, and `{n}` for the number of task instances.
    """

    action: str
    question: str
    done: str


def carry_out(
    session: Session,
    dag_id: str,
    run_id: str,
    request: RunRequest,
    wording: Wording,
    *,
    detail: dict[str, Any] | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> Done | Listing:
    """Do something with a run or, if a scheduler owns the run, wait until that has done it.

    Args:
        run_id: The run as the user names it. Without a confirmation, the beginning of an id is not enough.
        detail: For the audit.
        dry_run: Only return the task instances that the request would change.
        yes: Do not ask.
    """
    from asynsched.scheduling.requests.run_requests import preview_request, submit_request

    run = session.read(find_run, dag_id, run_id, is_whole=yes and not dry_run)
    key = DagRunKey(run.dag_id, run.run_id)
    if dry_run or not yes:
        rows = session.read(preview_request, key, request, now=session.now())
        if dry_run:
            return Listing(COLUMNS, [_fields(row) for row in rows], nothing="That would change no task instance.")
        about = (f"  {_name(row)} ({row.state or 'no state'})" for row in rows)
        confirm(wording.question.format(run=key.run_id, n=_count(rows)), about)
    taken = session.change(
        wording.action,
        lambda conn: submit_request(conn, key, request, actor=actor(), now=session.now()),
        hints=lambda _: [Hint("edit", dag_id=key.dag_id, run_id=key.run_id)],
        detail=detail,
    )
    fields = {"dag_id": key.dag_id, "run_id": key.run_id, "tasks": [_fields(row) for row in taken.instances]}
    if taken.request_id is not None and (obstacle := _wait(session, key, taken.request_id)):
        return Done(f"The request is stored, and not done yet: {obstacle}", fields | {"done": False})
    return Done(wording.done.format(run=key.run_id, n=_count(taken.instances)), fields | {"done": True})


def _wait(session: Session, key: DagRunKey, request_id: int) -> str:
    """Wait until the scheduler has done a request. Returns why it has not; empty if it has."""
    deadline = session.now() + (LONGEST_WAIT if session.has_scheduler() else timedelta())
    with session.watching(key) as changes:
        while session.read(is_open, request_id):
            if (seconds := (deadline - session.now()).total_seconds()) > 0:
                changes.wait(seconds)
            elif session.has_scheduler():
                return f"the scheduler has not done it within {LONGEST_WAIT.seconds} s, and will."
            else:
                return "no scheduler is serving at the moment; the next one does it."
    return ""


def _fields(row: TaskInstanceRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _name(row: TaskInstanceRow) -> str:
    return row.task_id if row.map_index < 0 else f"{row.task_id}[{row.map_index}]"


def _count(rows: Sequence[TaskInstanceRow]) -> str:
    return "1 task instance" if len(rows) == 1 else f"{len(rows)} task instances"
