"""`asynsched tasks logs`: what a try has written, and goes on writing."""

import codecs
import sys
import time
from pathlib import Path
from typing import Any

import click

from asynsched.cli.callback_logs import as_fields, callback_logs, write_callback_logs
from asynsched.cli.command import (
    command,
    dag_argument,
    fail,
    map_index_option,
    run_argument,
    task_argument,
    told_output,
)
from asynsched.cli.lookup import find_run, find_task
from asynsched.cli.missing_logs import why_no_log
from asynsched.cli.rendering import Output, Record, note, printable
from asynsched.cli.session import Session
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.states import FINISHED_TASK_STATES, TaskInstanceState
from asynsched.store.task_instances import TaskInstanceRow, list_tries

FOLLOW_SECONDS = 0.1
"""Time between two looks at a log that is followed."""
_PAUSED = frozenset({TaskInstanceState.UP_FOR_RESCHEDULE, TaskInstanceState.DEFERRED, TaskInstanceState.SCHEDULED})
_OVER = FINISHED_TASK_STATES | {TaskInstanceState.UP_FOR_RETRY}


@command("logs")
@dag_argument
@run_argument
@task_argument
@click.option("--try", "try_number", type=click.IntRange(min=1), metavar="N", help="Which try; by default the newest.")
@map_index_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the try has ended.")
@told_output()
def show_logs(session: Session, output: str, try_number: int | None, follow: bool, **names: Any) -> Record | None:
    """Show the log of a task's try, then those of its callbacks. Control characters are shown as escapes."""
    key = TaskInstanceKey(**names)
    if follow and output == Output.JSON:
        raise click.BadParameter("a log that is followed has no end: it cannot be JSON", param_hint="--follow")
    task = session.read(find_task, *key)
    if follow:
        _follow(session, key, try_number)
        return None
    number = try_number or _newest_try(task)
    path = _path(session, key, number)
    callbacks = callback_logs(session, task.dag_run_id, key, number)
    if not (path.exists() or callbacks):
        fail(_why_no_log(session, key, task, try_number))
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if output == Output.JSON:
        return Record({**key._asdict(), "try_number": number, "log": text, "callbacks": as_fields(callbacks)})
    sys.stdout.write(printable(text, keep="\n\t"))
    write_callback_logs(callbacks)
    return None


def _follow(session: Session, key: TaskInstanceKey, wanted: int | None) -> None:
    """Write the log of a try as it grows, until the try has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    position = 0
    task = session.read(find_task, *key)
    if _newest_try(task) == 0 and not _is_over(task, 1):
        note(_why_no_log(session, key, task, wanted))
    while True:
        number = wanted or max(_newest_try(task), 1)
        # Before its log is read: what it wrote until it ended is then all there.
        over = _is_over(task, number)
        path = _path(session, key, number)
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                block = file.read()
            position += len(block)
            sys.stdout.write(printable(decoder.decode(block), keep="\n\t"))
            sys.stdout.flush()
        if over:
            if not path.exists():
                fail(_why_no_log(session, key, task, wanted))
            return
        time.sleep(FOLLOW_SECONDS)
        wanted = number if position else wanted
        task = session.read(find_task, *key)


def _why_no_log(session: Session, key: TaskInstanceKey, task: TaskInstanceRow, wanted: int | None) -> str:
    run = session.read(find_run, key.dag_id, key.run_id)
    tries = session.read(list_tries, run.id)
    earlier = {one.try_number for one in tries if (one.task_id, one.map_index) == (key.task_id, key.map_index)}
    return why_no_log(task, run, wanted, earlier)


def _newest_try(task: TaskInstanceRow) -> int:
    """Return the number of the newest try that has begun: one that is only paused has not used its number up."""
    return task.try_number + (task.state in _PAUSED and task.started_at is not None)


def _is_over(task: TaskInstanceRow, number: int) -> bool:
    return task.try_number > number or task.state in _OVER


def _path(session: Session, key: TaskInstanceKey, try_number: int) -> Path:
    return session.home / LOGS / log_path(key, try_number)
