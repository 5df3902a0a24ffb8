"""The log archiver on a real database: outages of the store, and logs that stay for a time."""

import json
from datetime import timedelta
from threading import Event

import anyio
import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from asynsched.clock import VirtualClock
from asynsched.errors import LogStoreUnavailable
from asynsched.executors.log_archive import LogArchive
from asynsched.executors.log_removal import UNWANTED
from asynsched.health import Vitals
from asynsched.home import LOGS, TMP, prepare_home
from asynsched.housekeeping.home_logs import JOURNAL, HomeLogs, LocalLog
from asynsched.housekeeping.log_archiver import AT_ONCE, LogArchiver
from asynsched.keys import TaskInstanceKey
from asynsched.protocol.secrets import Secrets
from asynsched.store.database import Database
from sandbox.supervision.task_log import TaskLog
from tests.store.test_retention import NOW, add_dag, add_run
from tests.support.stored import log_file
from tests.support.waiting import eventually

KEEP = timedelta(hours=1)


class Archiving:
    """An archiver with a log of an ended try in its home, and a store that may be away."""

    def __init__(self, database: Database, folder, home: str = "home") -> None:
        self.home, self.clock = folder / home, VirtualClock(NOW)
        prepare_home(self.home)
        self.log = log_file(self.home, TaskInstanceKey("d", "r0", "t000"), 1)
        self.archive = LogArchive(f"memory://{folder}", {})
        self.path = str(self.log.relative_to(self.home / LOGS))
        self.archiver = LogArchiver(
            archive=self.archive, keep=KEEP, database=database, clock=self.clock, home=self.home, scheduler_id="me"
        )

    async def walk(self) -> list[str]:
        """Walk once, when that is due, and return the events that were logged."""
        if self.archiver.due_at is not None:
            self.clock.leap((self.archiver.due_at - self.clock.now()).total_seconds())
        with capture_logs() as logged:
            while True:
                await self.archiver.tick(self.clock.now())
                if self.archiver.due_at > self.clock.now():
                    return [entry["event"] for entry in logged]


@pytest.fixture
async def archiving(database, tmp_path):
    def prepare(conn: Connection) -> None:
        add_dag(conn, "d")
        add_run(conn, "d", 0)

    await database.write(prepare)
    return with_log(Archiving(database, tmp_path), "one\n")


def with_log(made: Archiving, text: str) -> Archiving:
    made.log.parent.mkdir(parents=True, exist_ok=True)
    made.log.write_text(text)
    return made


async def test_an_outage_is_said_once_and_its_pauses_grow_until_the_store_is_back(archiving, monkeypatch):
    def fail(*_, **__):
        raise LogStoreUnavailable("it is away")

    with monkeypatch.context() as patched:
        for method in ("size", "check"):
            patched.setattr(archiving.archive, method, fail)
        pauses = []
        for expected in (["logs.not_stored"], [], [], [], [], [], []):
            assert await archiving.walk() == expected
            pauses.append((archiving.archiver.due_at - archiving.clock.now()).total_seconds())
            assert (archiving.archiver.waiting.n_logs, archiving.archiver.waiting.problem) == (1, "it is away")
    assert [5 * 2**n <= pause <= 10 * 2**n for n, pause in enumerate(pauses[:5])] == [True] * 5
    assert pauses[-1] <= 600
    assert await archiving.walk() == ["logs.stored_again"]
    assert archiving.archive.read(archiving.path, 0, 4) == b"one\n"
    assert (archiving.archiver.waiting.n_logs, archiving.archiver.waiting.problem) == (0, "")


async def test_a_stored_log_stays_for_a_time_and_is_stored_again_if_it_grows_or_is_lost(archiving):
    await archiving.walk()
    assert archiving.log.exists()
    with archiving.log.open("a") as log:
        log.write("two\n")
    await archiving.walk()
    assert archiving.archive.read(archiving.path, 0, 8) == b"one\ntwo\n"

    archiving.archive.remove_folder("dag_id=d/run_id=r0")
    archiving.clock.leap(KEEP.total_seconds())
    await archiving.walk()
    assert archiving.log.exists(), "it was the only copy"
    assert archiving.archive.read(archiving.path, 0, 8) == b"one\ntwo\n"
    await archiving.walk()
    assert not archiving.log.exists()


async def test_a_log_that_cannot_be_stored_does_not_keep_others_waiting(archiving, monkeypatch):
    for number in range(2, 2 * AT_ONCE):
        archiving.log.with_name(f"attempt={number}.log").write_text("more\n")
    put, refused = archiving.archive.put, []

    def refuse_first(path, *args):
        refused.append(path)
        if path == refused[0]:
            raise LogStoreUnavailable("its name is too long")
        return put(path, *args)

    monkeypatch.setattr(archiving.archive, "put", refuse_first)
    assert await archiving.walk() == ["logs.not_stored"]
    assert (archiving.archiver.waiting.n_logs, archiving.archiver.waiting.problem) == (1, "its name is too long")
    assert len(refused) == 2 * AT_ONCE - 1


async def test_unreadable_files_of_the_home_are_named_and_stop_neither_scheduler_nor_walk(
    archiving,
):
    broken = archiving.home / LOGS / "dag_id=d" / "run_id=broken" / JOURNAL
    broken.mkdir(parents=True)  # a folder in the place of a file
    scratch, note = archiving.home / TMP / "log-1", archiving.home / LOGS / UNWANTED / "note"
    scratch.mkdir()
    note.mkdir(parents=True)
    assert await archiving.walk() == ["logs.not_stored"]
    await archiving.archiver.finish()
    assert archiving.archive.size(archiving.path) is None, "what is left of a deleted run goes first"
    note.rmdir()
    await archiving.walk()
    assert str(broken) in archiving.archiver.problem
    assert archiving.archive.size(archiving.path) == 4
    scratch.rmdir()
    broken.rmdir()
    assert await archiving.walk() == ["logs.stored_again"]


async def test_a_store_that_hangs_is_reported_delays_nothing_and_makes_no_loop_stuck(archiving, monkeypatch):
    hangs, goes_on = Event(), Event()

    def hang(*_) -> int:
        hangs.set()
        goes_on.wait()
        return 4

    async def live() -> None:
        with archiver.pulse.running():
            while True:
                with archiver.pulse.step():
                    await archiver.tick(archiving.clock.now())

    monkeypatch.setattr(archiving.archive, "put", hang)
    archiver, vitals = archiving.archiver, Vitals(archiving.clock, "me", longest_step=60)
    vitals.watch(archiver.name, archiver.pulse, lambda: archiver.interval)
    vitals.watch_logs(lambda: archiver.waiting)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(live)
            await eventually(hangs.is_set, "the store hangs")
            archiving.clock.leap(500)
            health = vitals.health()
            group.cancel_scope.cancel()
        assert (health.status, health.oldest_step, health.logs.n_logs) == ("healthy", None, 1)
        assert health.logs.problem == f"log.store: {archiving.archive.url} has not answered for 500 s"
    finally:
        goes_on.set()


async def test_a_log_that_grows_while_it_is_stored_waits_without_a_problem(archiving, monkeypatch):
    put_file = archiving.archive._put_file

    def grow(file, path) -> None:
        monkeypatch.setattr(archiving.archive, "_put_file", put_file)
        put_file(file, path)
        with archiving.log.open("a") as log:
            log.write("two\n")

    monkeypatch.setattr(archiving.archive, "_put_file", grow)
    assert await archiving.walk() == []
    assert (archiving.archiver.waiting.n_logs, archiving.archiver.waiting.problem) == (1, "")
    assert (archiving.archiver.due_at - archiving.clock.now()).total_seconds() < 60
    await archiving.walk()
    assert archiving.archive.read(archiving.path, 0, 8) == b"one\ntwo\n"


async def test_a_log_of_unknown_stored_size_is_compared_before_it_goes(archiving):
    journal = archiving.log.parents[1] / JOURNAL
    status = archiving.log.stat()
    line = {"path": archiving.path, "size": 4, "written_ns": status.st_mtime_ns, "at": (NOW - 2 * KEEP).isoformat()}
    journal.write_text(json.dumps(line) + "\n")
    await archiving.walk()
    assert (archiving.log.exists(), archiving.archive.read(archiving.path, 0, 4)) == (True, b"one\n")
    await archiving.walk()
    assert not archiving.log.exists()


async def test_a_local_log_goes_only_if_the_stored_one_is_the_one_that_was_stored(archiving):
    await archiving.walk()
    archiving.archive._fs.pipe_file(archiving.archive._at(archiving.path), b"another and longer")
    archiving.clock.leap(KEEP.total_seconds())
    await archiving.walk()
    assert archiving.log.exists()
    assert archiving.archive.read(archiving.path, 0, 23) == b"another and longer\none\n"
    await archiving.walk()
    assert not archiving.log.exists()


async def test_two_homes_that_store_their_parts_of_a_log_at_the_same_time_lose_neither(
    archiving, database, tmp_path, monkeypatch
):
    other = with_log(Archiving(database, tmp_path, "other"), "another part\n")
    other.archive = other.archiver._archive = archiving.archive
    put_file, size = archiving.archive._put_file, archiving.archive.size

    def overwrite(file, path) -> None:
        monkeypatch.setattr(archiving.archive, "_put_file", put_file)
        # The other home has stored its part since this one has found none.
        assert archiving.archive.put(path, other.log, tmp_path) == 13
        put_file(file, path)

    monkeypatch.setattr(archiving.archive, "_put_file", overwrite)
    assert size(archiving.path) is None
    await archiving.walk()
    journal_as_if_stored(other)
    for home in (archiving, other):
        home.clock.leap(KEEP.total_seconds())
        while home.log.exists():
            await home.walk()
    stored = archiving.archive.read(archiving.path, 0, size(archiving.path))
    assert sorted(stored.splitlines()) == [b"another part", b"one"]


def journal_as_if_stored(home: Archiving) -> None:
    status = home.log.stat()
    found = LocalLog(home.path, status.st_size, status.st_mtime_ns)
    HomeLogs(home.home / LOGS).note_stored(found, status.st_size, NOW)


async def test_a_log_stays_in_the_home_for_its_time_also_when_the_store_has_more_of_it(archiving, tmp_path):
    part = tmp_path / "part"
    part.write_text("a part of another home\n")
    archiving.archive.put(archiving.path, part, tmp_path)
    await archiving.walk()
    assert archiving.archive.size(archiving.path) == len("a part of another home\none\n")
    assert archiving.log.exists()


async def test_a_stopping_scheduler_waits_for_logs_that_are_being_closed(archiving, monkeypatch):
    writer = TaskLog(archiving.log, 1000, Secrets())
    writer.write(b"first\n")
    pauses = []

    async def close_in_the_second(_: timedelta) -> None:
        assert archiving.archive.size(archiving.path) is None
        pauses.append(1)
        if len(pauses) == 2:
            writer.write(b"the last line\n")
            writer.close()

    monkeypatch.setattr(archiving.clock, "sleep", close_in_the_second)
    with capture_logs() as logged:
        await archiving.archiver.finish()
    stored = archiving.archive.read(archiving.path, 0, archiving.archive.size(archiving.path))
    assert (len(pauses), stored, logged) == (2, archiving.log.read_bytes(), [])
    assert stored.endswith(b"the last line\n")
