"""`asynsched tasks xcom`: what a task instance has returned or pushed."""

from asynsched.authoring.transport import readable
from asynsched.cli.command import command, dag_argument, map_index_option, run_argument, task_argument
from asynsched.cli.lookup import find_task
from asynsched.cli.rendering import Listing
from asynsched.cli.session import Session
from asynsched.store.runs.xcoms import XComEntry, list_xcoms


@command("xcom", tables=True)
@dag_argument
@run_argument
@task_argument
@map_index_option
def show_xcoms(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> Listing:
    """List what a task instance has returned or pushed."""
    task = session.read(find_task, dag_id, run_id, task_id, map_index)
    entries = session.read(list_xcoms, task.dag_run_id, task_id, map_index)
    rows = [{**entry._asdict(), "value": readable(entry.value)} for entry in entries]
    return Listing(XComEntry._fields, rows, nothing="The task has pushed nothing.")
