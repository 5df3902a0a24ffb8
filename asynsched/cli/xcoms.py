"""`asynsched tasks xcom`, `set-xcom` and `delete-xcom`: the XComs of task instances."""

import sys

import click
import msgspec

from asynsched.cli.command import command, index_option, task_arguments
from asynsched.cli.output import Done, Listing, as_row, note
from asynsched.cli.secrets import STANDARD_STREAM
from asynsched.cli.session import Session
from asynsched.keys import TaskInstanceKey
from asynsched.queries.runs import run_named
from asynsched.queries.task_instances import task_named
from asynsched.queries.xcoms import LARGEST_VALUE, delete_xcom, put_xcom, readable_xcoms

COLUMNS = ("key", "value", "created_at")


@command("xcom", tables=True)
@task_arguments
@index_option
def tasks_xcom(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> Listing:
    """List the XComs of a task instance."""
    task = session.read(task_named, session.read(run_named, dag_id, run_id), task_id, map_index)
    found = session.read(readable_xcoms, task.key)
    if hidden := [one.info.key for one in found if not one.is_shown]:
        note(f"Values of more than {LARGEST_VALUE} bytes, which are not shown: {', '.join(hidden)}.")
    rows = [{**as_row(one.info), "value": one.value} for one in found]
    return Listing(COLUMNS, rows, nothing="The task has pushed nothing.")


@command("set-xcom")
@task_arguments
@click.argument("key")
@click.argument("value", metavar="JSON")
@index_option
def tasks_set_xcom(
    session: Session, dag_id: str, run_id: str, task_id: str, key: str, value: str, map_index: int
) -> Done:
    """Create or replace an XCom of a task instance, for the tasks that have not read it yet; - reads the value."""
    try:
        content = msgspec.json.decode(sys.stdin.read() if value == STANDARD_STREAM else value)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise click.BadParameter(f"it is not JSON: {exc}. Texts have quotes: '\"text\"'.", param_hint="JSON") from exc
    run = session.read(run_named, dag_id, run_id)
    task = TaskInstanceKey(run.dag_id, run.run_id, task_id, map_index)
    info = session.act(put_xcom, task, key, content, now=session.now())
    return Done(f"The XCom {key!r} of the task {task_id!r} is set.", as_row(info))


@command("delete-xcom")
@task_arguments
@click.argument("key")
@index_option
def tasks_delete_xcom(session: Session, dag_id: str, run_id: str, task_id: str, key: str, map_index: int) -> Done:
    """Delete an XCom of a task instance."""
    run = session.read(run_named, dag_id, run_id)
    session.act(delete_xcom, TaskInstanceKey(run.dag_id, run.run_id, task_id, map_index), key)
    return Done(f"The XCom {key!r} of the task {task_id!r} is deleted.", {"key": key})
