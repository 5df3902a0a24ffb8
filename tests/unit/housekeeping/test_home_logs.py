"""Which logs of a home are complete, stored, kept and removed."""

import errno
import fcntl
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from asynsched.housekeeping.home_logs import (
    JOURNAL,
    HomeLogs,
    LocalLog,
    StoredLog,
    next_step,
    writers_of,
)
from asynsched.protocol.secrets import Secrets
from asynsched.store.runs.open_logs import LoggedRun, OpenCallback, OpenLogs, OpenTry
from sandbox.supervision.task_log import TaskLog

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LOG = LocalLog("dag_id=d/run_id=r/task_id=t/attempt=1.log", 10, int((NOW - MINUTE).timestamp()) * 10**9)
STORED = StoredLog(LOG.path, LOG.size, LOG.written_ns, NOW - MINUTE)
GROWN = StoredLog(LOG.path, 9, LOG.written_ns, NOW - MINUTE)
OPEN, ELSEWHERE = {"is_open": True}, {"is_open": True, "is_elsewhere": True}
YOUNG = {"quiet": timedelta(hours=1)}
GONE_SOON = {"keep": MINUTE}


@pytest.mark.parametrize(
    ("stored", "state", "step"),
    [
        (None, {}, "store"),
        (None, OPEN, "wait"),
        (None, ELSEWHERE, "store"),
        (None, YOUNG, "wait"),
        (STORED, {}, "keep"),
        (STORED, GONE_SOON, "remove"),
        (STORED, GONE_SOON | ELSEWHERE, "keep"),
        (STORED, GONE_SOON | OPEN, "wait"),
        (GROWN, GONE_SOON, "store"),
        (GROWN, YOUNG, "wait"),
    ],
)
def test_a_log_is_stored_once_it_is_complete_and_again_when_it_has_grown(stored, state, step):
    usual = {"is_open": False, "is_elsewhere": False, "quiet": timedelta(seconds=5), "keep": timedelta(days=1)}
    assert next_step(LOG, stored, now=NOW, **usual | state) == step


def test_a_clock_that_was_set_back_keeps_no_log_waiting():
    usual = {"is_open": False, "is_elsewhere": False, "quiet": MINUTE, "keep": MINUTE}
    assert next_step(LOG, None, now=NOW - timedelta(days=9), **usual) == "store"


def test_only_tries_and_callbacks_that_have_not_ended_may_write_to_their_logs():
    found = OpenLogs(
        [LoggedRun(1, "r", "me"), LoggedRun(2, "other", "another")],
        [OpenTry(1, "t", -1, 3), OpenTry(1, "m", 4, 1)],
        [OpenCallback(1, "t", -1, "on_failure", 2), OpenCallback(2, "", -1, "on_success", 0)],
    )
    writers = writers_of("d", found, "me")
    run, other = "dag_id=d/run_id=r", "dag_id=d/run_id=other"
    assert (set(writers.known), set(writers.elsewhere)) == ({run, other}, {other})
    may_write = [
        f"{run}/task_id=t/attempt=3.log", f"{run}/task_id=t/attempt=4.log",
        f"{run}/task_id=m/map_index=4/attempt=1.log",
        f"{run}/task_id=t/attempt=2.on_failure.log", f"{other}/on_success.log",
    ]  # fmt: skip
    may_not = [
        f"{run}/task_id=t/attempt=2.log", f"{run}/task_id=m/map_index=5/attempt=1.log",
        f"{other}/task_id=t/attempt=3.log", f"{run}/task_id=t/attempt=1.on_failure.log", f"{run}/on_success.log",
    ]  # fmt: skip
    assert [path for path in may_write + may_not if writers.may_write(path)] == may_write


def test_a_log_goes_only_when_nobody_writes_it_and_the_store_has_all_of_it(tmp_path):
    path, logs = "dag_id=d/run_id=r/task_id=t/attempt=1.log", HomeLogs(tmp_path)

    def written(text: str) -> TaskLog:
        task_log = TaskLog(tmp_path / path, 1000, Secrets())
        task_log.write(text.encode())
        return task_log

    def found():
        (folder,) = logs.runs_of("d")
        (log,) = logs.of_run(folder).logs
        return log

    task_log = written("one\n")
    log = found()
    assert logs.is_being_written(path)
    assert not logs.remove(log), "the keeper has it open"
    task_log.close()
    assert not logs.is_being_written(path)

    logs.note_stored(log, 9, NOW)
    with (tmp_path / "dag_id=d/run_id=r" / JOURNAL).open("ab") as journal:
        journal.write(b'{"path": "cut')
    assert logs.stored(path) == StoredLog(path, log.size, log.written_ns, NOW, 9)
    written("two\n").close()
    assert not logs.remove(log), "it has grown"

    log = found()
    assert logs.remove(log)
    assert list((tmp_path / "dag_id=d").iterdir()) == [], "its folders and its journal go with it"
    assert logs.remove(log), "it has gone before"


def test_locks_are_asked_for_as_network_file_systems_give_them(tmp_path, monkeypatch):
    flock = fcntl.flock

    def nfs_flock(descriptor: int, operation: int) -> None:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        unfit = os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY if operation & fcntl.LOCK_EX else None
        if mode == unfit:
            raise OSError(errno.EBADF, "not open for that")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    task_log = TaskLog(tmp_path / "folder" / "log", 1000, Secrets())
    task_log.write(b"one\n")
    assert HomeLogs(tmp_path).is_being_written("folder/log")
    task_log.close()
    assert not HomeLogs(tmp_path).is_being_written("folder/log")


def test_a_try_waits_for_no_lock_on_its_log_and_needs_no_links(tmp_path, monkeypatch):
    file = tmp_path / "log"
    file.touch()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        task_log = TaskLog(file, 1000, Secrets())
        task_log.write(b"one\n")
        assert file.read_bytes().endswith(b"one\n")
        task_log.close()
    task_log = TaskLog(file, 1000, Secrets())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _: SimpleNamespace(st_nlink=0))
        task_log.write(b"two\n")
    task_log.close()
    assert file.read_bytes().endswith(b"two\n")
