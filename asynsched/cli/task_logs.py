"""`asynsched tasks logs` and `runs logs`: the logs of tries and callbacks, also while they grow."""

import codecs
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import click

from asynsched.cli.command import command, fail, index_option, run_arguments, task_arguments, try_option
from asynsched.cli.output import Listing, Output, Record, fields_of, note, printable
from asynsched.cli.session import Session
from asynsched.executors.log_paths import callback_log_path, log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey, instance_name
from asynsched.queries.log_lines import MOST_FOUND, FoundLine, find_lines, start_of_line, start_of_tail
from asynsched.queries.log_sources import LogSource, opened_log
from asynsched.queries.runs import CallbackInfo, RunInfo, get_run, list_callbacks, run_named
from asynsched.queries.task_instances import (
    TaskInstanceInfo,
    is_try_over,
    list_tries_of_run,
    number_of_newest_try,
    task_named,
)
from asynsched.scheduling.rules.try_end import EMPTY_TASK, was_interrupted
from asynsched.states import FINISHED_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.runs.deadlines import MISS_EVENT

_ENDED_AS = {
    TaskInstanceState.SUCCESS: "it succeeded without a process, since there is nothing in it to run",
    TaskInstanceState.FAILED: "it failed",
    TaskInstanceState.SKIPPED: "it was skipped",
    TaskInstanceState.UPSTREAM_FAILED: "a task before it failed",
    TaskInstanceState.REMOVED: "it was removed from its DAG",
}
_WAITS_AS = {
    TaskInstanceState.SCHEDULED: "it waits for room within the limits",
    TaskInstanceState.QUEUED: "it is queued, about to start",
    TaskInstanceState.UP_FOR_RETRY: "it waits for its next try",
    TaskInstanceState.UP_FOR_RESCHEDULE: "it waits for its next poke",
    TaskInstanceState.DEFERRED: "it is deferred, and waits for its trigger",
    TaskInstanceState.AWAITING_INPUT: "it waits for an answer",
}
BLOCK_BYTES = 1024**2
"""The most of a log that is in memory at once."""


@command("logs")
@task_arguments
@try_option
@index_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the try has ended.")
@click.option("-n", "--tail", metavar="N", type=click.IntRange(min=1), help="Only the last N lines of the try.")
@click.option("--find", metavar="TEXT", help=f"Only lines with this text, in either case: the first {MOST_FOUND}.")
@click.option(
    "--lines", metavar="FIRST[:LAST]", callback=lambda _, __, text: read_span(text), help="Only these lines, from 1."
)
def tasks_logs(
    session: Session,
    output: Output,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: int,
    try_number: int | None,
    follow: bool,
    tail: int | None,
    find: str | None,
    lines: "Span | None",
) -> Record | Listing | None:
    """Show the log of a task's try, then those of its callbacks. Control characters are shown as escapes.

    With --tail, --find or --lines the logs of callbacks are left out.
    """
    if find is not None and (tail or follow or lines):
        raise click.UsageError("--find searches a whole log: leave out --tail, --lines and --follow.")
    if lines is not None and (tail or follow):
        raise click.UsageError("--lines names a fixed part: leave out --tail and --follow.")
    if follow and output is Output.JSON:
        raise click.BadParameter("a log that is followed has no end: it cannot be JSON", param_hint="--follow")
    run = session.read(run_named, dag_id, run_id)
    task = session.read(task_named, run, task_id, map_index)
    key = task.key
    if follow:
        _follow(session, run, task, try_number, tail)
        return None
    number = try_number or number_of_newest_try(session.home, task)
    path = log_path(key, number)
    requests = session.pages(list_callbacks, run.key)
    its = (item for item in requests if (item.task_id, item.map_index, item.try_number) == (task_id, map_index, number))
    is_part = tail is not None or lines is not None or find is not None
    callbacks = [] if is_part else _callback_logs(session, key, its)
    with opened_log(session.home, session.settings, path) as log:
        if log is None and not callbacks:
            fail(_explain_absence(session, run, task, try_number))
        if find is not None:
            return _found(log, find, output)
        if output is Output.JSON:
            text = _text(log, tail, lines) or ""
            return Record({**key._asdict(), "try_number": number, "log": text, "callbacks": _as_fields(callbacks)})
        _write_log(log, tail, lines)
    _write_callback_logs(callbacks)
    if number > task.try_number and was_interrupted(task.state, task.reason):
        note(f"{task.reason[0].upper()}{task.reason[1:]}.")
    return None


def _found(log: LogSource | None, text: str, output: Output) -> Listing | None:
    """Write the lines of a log that have a text; return them for JSON."""
    found = [] if log is None else find_lines(log, text)
    if output is Output.JSON:
        return Listing(FoundLine.__struct_fields__, found)
    for line in found:
        sys.stdout.write(printable(f"{line.text}\n", keep="\n\t"))
    if not found:
        note(f"No line of the log has the text {text!r}.")
    return None


class Span(NamedTuple):
    """Lines of a log by their numbers, from 1; `last` is None: up to its end."""

    first: int
    last: int | None


def read_span(text: str | None) -> Span | None:
    """Return the lines that an option names: `5`, `5:` or `5:20`. Raises click.BadParameter."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if first.isascii() and first.isdecimal() and (not last or (last.isascii() and last.isdecimal())):
        span = Span(int(first), int(last) if last else None if colon else int(first))
        if 1 <= span.first <= (span.last or span.first):
            return span
    raise click.BadParameter(f"{text!r} is not of the form 5, 5: or 5:20, with lines counted from 1.")


def _part_of(log: LogSource, tail: int | None, lines: Span | None) -> range:
    """Return the bytes of a log that are wanted: without `tail` and `lines`, all."""
    if tail is not None:
        return range(start_of_tail(log, tail), log.size)
    if lines is None:
        return range(log.size)
    start = start_of_line(log, lines.first)
    end = log.size if lines.last is None else start_of_line(log, lines.last - lines.first + 2, start=start)
    return range(start, end)


@command("logs")
@run_arguments
def runs_logs(session: Session, output: Output, dag_id: str, run_id: str) -> Record | None:
    """Show every log of a run: of its tries in the order of their starts, with their callbacks, and of its callbacks.

    Only logs of this home and of the store of logs: without one, a scheduler of another home keeps its tries' logs.
    """
    run = session.read(run_named, dag_id, run_id)
    parts = _parts(session, run)
    if output is Output.JSON:
        return _as_record(session, run, parts)
    n_written = 0
    for part in parts:
        with _log_of(session, part) as log:
            if log is not None or part.callbacks:
                _write_part(run, part, log)
                n_written += 1
    if not n_written:
        what = f"No try of the run {run.run_id!r} ({run.state}) has written anything"
        fail(f"{what}, or their logs are not in {_where(session)}.")
    return None


class CallbackLog(NamedTuple):
    """The log of a callback, None if it has written nothing; with its event, its state, and why it was called."""

    event: str
    state: str
    reason: str
    log: str | None


class TryLogs(NamedTuple):
    """A try with the logs of its callbacks. The callbacks of the run itself have a `key` without a task."""

    key: TaskInstanceKey
    try_number: int
    path: str
    state: str | None
    callbacks: list[CallbackLog]


def _parts(session: Session, run: RunInfo) -> Iterator[TryLogs]:
    """Yield the tries of a run in the order in which they began, and last the run itself, with their callbacks."""
    requests: dict[tuple[str, int, int], list[CallbackInfo]] = defaultdict(list)
    for item in session.pages(list_callbacks, run.key):
        # The run's own callbacks belong to no try: their numbers tell its deadlines apart.
        requests[item.task_id, item.map_index, item.try_number if item.task_id else 0].append(item)
    tries = sorted(session.read(list_tries_of_run, run.key), key=lambda one: (one.started_at is None, one.started_at))
    names = {(one.task_id, one.map_index, one.try_number): one.state for one in tries}
    own = requests.pop(("", -1, 0), [])
    # The callbacks of a task that never began have no try.
    found = [(name, names.get(name), requests.get(name, ())) for name in dict.fromkeys((*names, *requests))]
    for (task_id, map_index, number), state, its in [*found, (("", -1, 0), run.state, own)]:
        key = TaskInstanceKey(run.dag_id, run.run_id, task_id, map_index)
        yield TryLogs(key, number, log_path(key, number), state, _callback_logs(session, key, its))


def _write_part(run: RunInfo, part: TryLogs, log: LogSource | None) -> None:
    """Write the logs of a try, or those of the run's own callbacks, below a line that names it."""
    name = instance_name(part.key.task_id, part.key.map_index)
    what = f"{name}, try {part.try_number}" if part.key.task_id else run.run_id
    sys.stdout.write(f"==> {printable(what)}{f': {part.state}' if part.state else ''} <==\n")
    _write_log(log)
    _write_callback_logs(part.callbacks)


def _as_record(session: Session, run: RunInfo, parts: Iterable[TryLogs]) -> Record:
    tries, own = [], []
    for part in parts:
        with _log_of(session, part) as log:
            text = _text(log)
        if not part.key.task_id:
            own += part.callbacks
        elif text is not None or part.callbacks:
            its = fields_of(part.key, ("task_id", "map_index")) | fields_of(part, ("try_number", "state"))
            tries.append(its | {"log": text, "callbacks": _as_fields(part.callbacks)})
    return Record({"dag_id": run.dag_id, "run_id": run.run_id, "tries": tries, "callbacks": _as_fields(own)})


def _log_of(session: Session, part: TryLogs) -> AbstractContextManager[LogSource | None]:
    """Open the log of a try in the block; None for the run itself."""
    return opened_log(session.home, session.settings, part.path) if part.key.task_id else nullcontext()


def _callback_logs(session: Session, key: TaskInstanceKey, requests: Iterable[CallbackInfo]) -> list[CallbackLog]:
    """Return the logs of callbacks of one try, or of a run."""
    # A run that has ended several times has one log for each event, and the state of the latest callback.
    newest = {(item.event, item.try_number): item for item in requests}
    found = []
    for name, one in newest.items():
        with opened_log(session.home, session.settings, callback_log_path(key, *name)) as log:
            found.append(CallbackLog(one.event, one.state, one.reason, _text(log)))
    return found


def _write_callback_logs(logs: list[CallbackLog]) -> None:
    """Write the logs of callbacks, each below a line that names it."""
    for item in logs:
        text = "" if item.log is None else printable(item.log, keep="\n\t")
        about = f" ({printable(item.reason)})" if item.event == MISS_EVENT else ""
        sys.stdout.write(f"--- {item.event}_callback: {item.state}{about}\n{text}")
        if text and not text.endswith("\n"):
            sys.stdout.write("\n")


def _as_fields(logs: list[CallbackLog]) -> list[dict[str, Any]]:
    return [item._asdict() for item in logs]


def _text(log: LogSource | None, tail: int | None = None, lines: Span | None = None) -> str | None:
    return None if log is None else "".join(_blocks(log, _part_of(log, tail, lines)))


def _write_log(log: LogSource | None, tail: int | None = None, lines: Span | None = None) -> None:
    """Write a log, if there is one, or a part of it, and end its last line."""
    end = "\n"
    for text in () if log is None else _blocks(log, _part_of(log, tail, lines)):
        sys.stdout.write(printable(text, keep="\n\t"))
        end = text[-1:] or end
    if end != "\n":
        sys.stdout.write("\n")


def _blocks(log: LogSource, part: range) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    position = part.start
    while position < part.stop and (block := log.read(position, min(BLOCK_BYTES, part.stop - position))):
        position += len(block)
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _follow(session: Session, run: RunInfo, task: TaskInstanceInfo, wanted: int | None, tail: int | None) -> None:
    """Write the log of a try, or its last lines, as it grows, until the try has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    position = 0
    with session.watching(run.key) as changes:
        newest = number_of_newest_try(session.home, task)
        if newest == 0 and not is_try_over(task, 1, newest):
            note(_explain_absence(session, run, task, wanted))
        while True:
            number = wanted or max(newest, 1)
            over = is_try_over(task, number, newest)
            path = log_path(task.key, number)
            changes.follow(session.home / LOGS / path, session.home)
            # Read after the state: the log of a try that is over is whole.
            with opened_log(session.home, session.settings, path, may_be_archived=over, joins_parts=False) as log:
                if log is not None:
                    if tail is not None:
                        position, tail = start_of_tail(log, tail), None
                    position = _write_from(log, position, decoder)
                elif over:
                    fail(_explain_absence(session, run, task, wanted))
            if over:
                return
            changes.wait()
            wanted = number if position else wanted
            task = session.read(task_named, run, task.task_id, task.map_index)
            newest = number_of_newest_try(session.home, task)


def _write_from(log: LogSource, position: int, decoder: codecs.IncrementalDecoder) -> int:
    """Write a log from a byte on, and return where it ends now."""
    for block in log.blocks(position, BLOCK_BYTES):
        position += len(block)
        sys.stdout.write(printable(decoder.decode(block), keep="\n\t"))
    sys.stdout.flush()
    return position


def _explain_absence(session: Session, run: RunInfo, task: TaskInstanceInfo, wanted: int | None) -> str:
    tries = session.read(list_tries_of_run, run.key)
    earlier = {
        one.try_number
        for one in tries
        if (one.task_id, one.map_index) == (task.task_id, task.map_index) and one.try_number != task.try_number
    }
    return why_no_log(task, session.read(get_run, *run.key), wanted, earlier, _where(session))


def _where(session: Session) -> str:
    """Return where logs were searched, for people."""
    store = session.settings.log.store
    return f"the home {session.home}{f' or in {store}' if store else ''}"


def why_no_log(task: TaskInstanceInfo, run: RunInfo, wanted: int | None, earlier: Collection[int], where: str) -> str:
    """Return why there is no log, in a sentence.

    Args:
        wanted: The try that was asked for, None for the newest.
        where: Where logs were searched. A scheduler of another home writes logs there.
    """
    started = {*earlier, task.try_number} - {0}
    if task.state == TaskInstanceState.QUEUED or task.reason == EMPTY_TASK:
        started.discard(task.try_number)
    number = wanted or task.try_number
    if number in started:
        return f"Try {number} of the task {task.task_id!r} has written nothing, or its log is not in {where}."
    if started and number != task.try_number:
        *others, last = sorted(started)
        tries = f"the tries {', '.join(map(str, others))} and {last}" if others else f"try {last}"
        return f"The task {task.task_id!r} has no try {number}; it has {tries}."
    if task.state in FINISHED_TASK_STATES:
        ended = _with_reason(_ENDED_AS[TaskInstanceState(task.state)], task)
        return f"The task {task.task_id!r} never started: {ended}."
    what = f"Try {number} of the task" if started else "The task"
    return f"{what} {task.task_id!r} has not started yet: {_waits(task, run)}."


def _waits(task: TaskInstanceInfo, run: RunInfo) -> str:
    if run.state == DagRunState.QUEUED:
        return f"its run is queued ({run.reason})" if run.reason else "its run is queued"
    if task.state is None:
        return _with_reason("it waits for the tasks before it", task)
    return _with_reason(_WAITS_AS.get(TaskInstanceState(task.state), f"it is {task.state}"), task)


def _with_reason(what: str, task: TaskInstanceInfo) -> str:
    return f"{what} ({task.reason})" if task.reason else what
