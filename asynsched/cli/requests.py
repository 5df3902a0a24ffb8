"""What the commands share that clear, mark or cancel: a question first, one line for each task, and the wait."""

import time
from collections.abc import Sequence
from typing import Any

import click

from asynsched.bell import Hint
from asynsched.cli.command import confirm
from asynsched.cli.output import Done, Listing
from asynsched.cli.session import Session, actor
from asynsched.keys import DagRunKey
from asynsched.scheduling.requests.run_requests import Submitted, preview_request, submit_request
from asynsched.store.runs.requests import RunRequest, is_open
from asynsched.store.schema import TaskInstanceRow

WAIT_SECONDS = 0.05
"""Time between two looks at whether the scheduler has done what it was asked for."""
LONGEST_WAIT = 15.0
"""How long that is looked at: a task that is killed has some time to end."""
COLUMNS = ("task_id", "map_index", "state", "try_number")

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show which task instances that would concern.")
upstream_option = click.option("-u", "--upstream", is_flag=True, help="Also the tasks upstream.")
downstream_option = click.option("-d", "--downstream", is_flag=True, help="Also the tasks downstream.")
one_index_option = click.option(
    "--map-index", type=click.IntRange(min=0), help="Of the named tasks, only this instance of a mapped one."
)


def concerned(session: Session, key: DagRunKey, request: RunRequest) -> Listing:
    """Return the task instances that a request would concern, as they are now."""
    rows = session.read(preview_request, key, request, now=session.now())
    return Listing(COLUMNS, [_fields(row) for row in rows], nothing="That would change no task instance.")


def ask(session: Session, key: DagRunKey, request: RunRequest, question: str) -> None:
    """Show which task instances a request concerns, and ask the user whether to go on, as `confirm` does."""
    rows = session.read(preview_request, key, request, now=session.now())
    confirm(question.format(n=_count(rows)), (f"  {_name(row)} ({row.state or 'no state'})" for row in rows))


def submit(
    session: Session, key: DagRunKey, request: RunRequest, *, action: str, done: str, detail: dict[str, Any]
) -> Done:
    """Do something with a run, or have its scheduler do it and wait for that.

    Args:
        action: For the audit.
        done: What was done, for the user; `{n}` is put in place of how many task instances.
        detail: For the audit.
    """
    taken: Submitted = session.change(
        action,
        lambda conn: submit_request(conn, key, request, actor=actor(), now=session.now()),
        hints=lambda _: [Hint("edit", dag_id=key.dag_id, run_id=key.run_id)],
        detail=detail,
    )
    fields = {"dag_id": key.dag_id, "run_id": key.run_id, "tasks": [_fields(row) for row in taken.instances]}
    if taken.request_id is not None and not _wait(session, taken.request_id):
        return Done(f"It is noted, and not done yet: {_why_not_yet(session)}", fields | {"done": False})
    return Done(done.format(n=_count(taken.instances)), fields | {"done": True})


def _wait(session: Session, request_id: int) -> bool:
    """Wait until the scheduler has done a request, and return whether it has."""
    if not session.has_scheduler():
        return not session.read(is_open, request_id)
    for _ in range(int(LONGEST_WAIT / WAIT_SECONDS)):
        if not session.read(is_open, request_id):
            return True
        time.sleep(WAIT_SECONDS)
    return False


def _why_not_yet(session: Session) -> str:
    if session.has_scheduler():
        return f"the scheduler has not come to it within {LONGEST_WAIT:g} s, and goes on."
    return "no scheduler is serving at the moment; the next one does it."


def _fields(row: TaskInstanceRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _name(row: TaskInstanceRow) -> str:
    return row.task_id if row.map_index < 0 else f"{row.task_id}[{row.map_index}]"


def _count(rows: Sequence[TaskInstanceRow]) -> str:
    return "1 task instance" if len(rows) == 1 else f"{len(rows)} task instances"
