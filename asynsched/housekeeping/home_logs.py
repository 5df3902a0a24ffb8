"""The logs in a home that are copied to an archive: which there are, which were stored, and what happens to each next.

A run's folder has a journal of the logs that were stored, a line of JSON each. A lost line costs one more look at the
archive. A log that has grown since is stored again.
"""

import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from asynsched.executors.log_paths import (
    DAG_PREFIX,
    RUN_PREFIX,
    callback_log_path,
    folder_name,
    log_path,
    run_folder,
)
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.protocol.home_files import PRIVATE_FILE
from asynsched.store.runs.open_logs import OpenLogs

JOURNAL = ".stored"
QUIET = timedelta(seconds=5)
"""How long nothing was appended to a log before it is stored, where no lock says that it is not being written."""
_TRY = re.compile(r"(?P<folder>.*)/attempt=(?P<number>\d+)\.log")
Step = Literal["wait", "store", "keep", "remove"]


class LocalLog(NamedTuple):
    """A log in a home. `path`: below the log folder. `written_ns`: its last change, in ns since 1970."""

    path: str
    size: int
    written_ns: int

    @property
    def written_at(self) -> datetime:
        return datetime.fromtimestamp(self.written_ns / 1e9, UTC)


class StoredLog(Struct, frozen=True):
    """A line of a journal: a log that was stored at this instant, when it was so long and so old.

    `n_stored`: the bytes of the stored log, which may have parts of other homes; None: they are not known.
    """

    path: str
    size: int
    written_ns: int
    at: datetime
    n_stored: int | None = None


class RunLogs(NamedTuple):
    """The logs of a run in a home. `stored` has those that were stored, by their paths."""

    folder: str
    logs: list[LocalLog]
    stored: Mapping[str, StoredLog]


class Writers(NamedTuple):
    """What may still write to the logs of some runs.

    Attributes:
        known: The folders of the runs that are stored; other folders are of runs that were deleted.
        elsewhere: Those of runs that another scheduler has: only its home's logs grow.
        tries: By the folder of a task instance, the number from which on its tries are open.
        callbacks: The paths of the logs of open callbacks.
    """

    known: Collection[str]
    elsewhere: Collection[str]
    tries: Mapping[str, int]
    callbacks: Collection[str]

    def may_write(self, path: str) -> bool:
        """Return whether a try or a callback that has not ended has this log."""
        found = _TRY.fullmatch(path)
        if found is None:
            return path in self.callbacks
        first = self.tries.get(found["folder"])
        return first is not None and int(found["number"]) >= first


def writers_of(dag_id: str, found: OpenLogs, scheduler_id: str) -> Writers:
    """Return what may write to the logs of these runs of a DAG, as the scheduler with this id sees it."""
    run_ids = {run.id: run.run_id for run in found.runs}
    folders = {run.id: run_folder(DagRunKey(dag_id, run.run_id)) for run in found.runs}
    tries: dict[str, int] = {}
    for one in found.tries:
        key = TaskInstanceKey(dag_id, run_ids[one.dag_run_id], one.task_id, one.map_index)
        tries[log_path(key, 0).rpartition("/")[0]] = one.number
    callbacks = {
        callback_log_path(
            TaskInstanceKey(dag_id, run_ids[one.dag_run_id], one.task_id, one.map_index), one.event, one.try_number
        )
        for one in found.callbacks
    }
    elsewhere = {folders[run.id] for run in found.runs if run.scheduler_id not in (None, scheduler_id)}
    return Writers(frozenset(folders.values()), elsewhere, tries, callbacks)


def next_step(
    log: LocalLog, stored: StoredLog | None, *, is_open: bool, is_elsewhere: bool, now: datetime, quiet: timedelta,
    keep: timedelta,
) -> Step:  # fmt: skip
    """Return what happens to a log next: it waits until it is complete, is stored, is kept for a time, is removed.

    Args:
        stored: How it was stored last.
        is_open: Whether its try or callback has not ended. Then it stays, since this home may go on with it.
        is_elsewhere: Whether another scheduler has the run, so that this home's part is complete for now.
        quiet: How long nothing must have been appended.
        keep: How long it stays in the home after it was stored.
    """
    if is_open and not is_elsewhere:
        return "wait"
    if stored is None or (stored.size, stored.written_ns) != (log.size, log.written_ns):
        # A clock that was set back must not keep a log waiting.
        return "store" if abs(now - log.written_at) >= quiet else "wait"
    return "keep" if is_open or now < stored.at + keep else "remove"


class HomeLogs:
    """The logs below a folder. Every method blocks, and raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs_of(self, dag_id: str) -> Iterator[str]:
        """Yield the folders of a DAG's runs that have logs."""
        dag = f"{DAG_PREFIX}{folder_name(dag_id)}"
        with suppress(FileNotFoundError), os.scandir(self.folder / dag) as entries:
            for entry in entries:
                if entry.name.startswith(RUN_PREFIX) and entry.is_dir(follow_symlinks=False):
                    yield f"{dag}/{entry.name}"

    def of_run(self, folder: str) -> RunLogs:
        """Return the logs in the folder of a run."""
        return RunLogs(folder, list(self._logs_in(folder)), self._journal(folder))

    def look(self, path: str) -> LocalLog:
        """Return a log as it is now. Raises FileNotFoundError."""
        status = (self.folder / path).stat(follow_symlinks=False)
        return LocalLog(path, status.st_size, status.st_mtime_ns)

    def stored(self, path: str) -> StoredLog | None:
        """Return how a log was stored last; None: it was not, as far as the journal says."""
        return self._journal(_run_of(path), only=path).get(path)

    def note_stored(self, log: LocalLog, n_stored: int, at: datetime) -> None:
        """Note in the journal of a log's run that the log is stored, with this number of bytes."""
        line = msgspec.json.encode(StoredLog(log.path, log.size, log.written_ns, at, n_stored)) + b"\n"
        journal = self.folder / _run_of(log.path) / JOURNAL
        descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def is_being_written(self, path: str) -> bool:
        """Return whether a keeper, or a scheduler for a worker, has a log open. Raises FileNotFoundError."""
        with _locked(self.folder / path) as is_free:
            return not is_free

    def remove(self, log: LocalLog) -> bool:
        """Remove a log that is stored, unless it has changed since, then its empty folders. Returns whether it went."""
        file, run = self.folder / log.path, self.folder / _run_of(log.path)
        try:
            with _locked(file) as is_free:
                status = file.stat()
                if not is_free or (status.st_size, status.st_mtime_ns) != (log.size, log.written_ns):
                    return False
                file.unlink()
        except FileNotFoundError:
            return True
        with suppress(OSError):  # a folder that is not empty stays
            for inner in file.relative_to(run).parents[:-1]:
                (run / inner).rmdir()
        with suppress(OSError):
            if [entry.name for entry in os.scandir(run)] == [JOURNAL]:
                (run / JOURNAL).unlink()
                run.rmdir()
        return True

    def _logs_in(self, folder: str) -> Iterator[LocalLog]:
        with suppress(FileNotFoundError), os.scandir(self.folder / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from self._logs_in(path)
                elif entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield self.look(path)

    def _journal(self, folder: str, only: str = "") -> dict[str, StoredLog]:
        """Return how the logs of a run were stored last; with `only`, how this one was."""
        try:
            lines = (self.folder / folder / JOURNAL).read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        quoted = msgspec.json.encode(only)[1:-1]
        found = {}
        for line in lines:
            if quoted not in line:
                continue  # decoded for nothing: a run of many tasks has many lines
            with suppress(msgspec.DecodeError):  # a crash may cut the last line
                stored = msgspec.json.decode(line, type=StoredLog)
                found[stored.path] = stored
        return found


def _run_of(path: str) -> str:
    """Return the folder of the run that a log belongs to."""
    dag, run, _ = path.split("/", 2)
    return f"{dag}/{run}"


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Lock a log exclusively in the block, and tell whether it was free. Its writers share a lock; see `open_log`."""
    # Network file systems give a lock alone only to writers.
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    is_free = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        except OSError:
            pass  # a file system without locks
        yield is_free
    finally:
        os.close(descriptor)
