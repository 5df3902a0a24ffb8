"""What callbacks have written: those of a task's try after the try's log, those of a run by `asynsched runs logs`."""

import sys
from typing import Any, NamedTuple

from asynsched.cli.command import command, dag_argument, fail, run_argument, told_output
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Output, Record, printable
from asynsched.cli.session import Session
from asynsched.executors.log_paths import callback_log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.store.callback_requests import CallbackRequest, list_callbacks
from asynsched.store.deadlines import MISS_EVENT


class CallbackLog(NamedTuple):
    """A callback's event, how far it has come, why it was called, and its log; None where it has written nothing."""

    event: str
    state: str
    reason: str
    log: str | None


def callback_logs(
    session: Session, run_row_id: int, key: TaskInstanceKey, try_number: int | None = None
) -> list[CallbackLog]:
    """Return the logs of the callbacks of a try; of a run's own, its deadlines' included, where the key has no task."""
    found = (
        item
        for item in session.read(list_callbacks, run_row_id)
        if (item.task_id, item.map_index) == (key.task_id, key.map_index) and try_number in (None, item.try_number)
    )
    # A run that ended several times has one log of each event, and how the latest went.
    newest = {(item.event, item.try_number): item for item in found}
    return [CallbackLog(item.event, item.state, item.reason, _text(session, key, item)) for item in newest.values()]


def write_callback_logs(logs: list[CallbackLog]) -> None:
    """Write what callbacks have written, each below a line that names it."""
    for item in logs:
        text = "" if item.log is None else printable(item.log, keep="\n\t")
        about = f" ({printable(item.reason)})" if item.event == MISS_EVENT else ""
        sys.stdout.write(f"--- {item.event}_callback: {item.state}{about}\n{text}")


@command("logs")
@dag_argument
@run_argument
@told_output()
def show_run_logs(session: Session, output: str, dag_id: str, run_id: str) -> Record | None:
    """Show the logs of a run's own callbacks. Those of its tasks are shown by `asynsched tasks logs`."""
    run = session.read(find_run, dag_id, run_id)
    logs = callback_logs(session, run.id, TaskInstanceKey(dag_id, run_id, "", -1))
    if output == Output.JSON:
        return Record({"dag_id": dag_id, "run_id": run_id, "callbacks": as_fields(logs)})
    if not logs:
        fail(f"No callback of the run {run_id!r} itself was due; `asynsched tasks logs` shows those of its tasks.")
    write_callback_logs(logs)
    return None


def as_fields(logs: list[CallbackLog]) -> list[dict[str, Any]]:
    """Return logs as JSON has them."""
    return [item._asdict() for item in logs]


def _text(session: Session, key: TaskInstanceKey, item: CallbackRequest) -> str | None:
    path = session.home / LOGS / callback_log_path(key, item.event, item.try_number)
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
