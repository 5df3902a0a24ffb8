"""The changes that wake a command that waits beside a scheduler."""

import asyncio
import gc
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest

from asynsched.bell import Hint, decode_hints, encode_hints
from asynsched.cli import changes
from asynsched.cli.changes import Changes
from asynsched.errors import StoreUnavailable
from asynsched.keys import DagRunKey
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.engines import postgres as postgres_engine
from asynsched.store.engines.opening import open_direct
from asynsched.store.runs.pools import set_pool
from asynsched.store.schedulers import CHANNEL
from tests.support.database_gate import gate_before
from tests.support.waiting import eventually, until

LONG = 60.0
SHORT = 0.02
RUN = DagRunKey("d", "r")
MAX_EVENTS = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture(autouse=True)
def no_sweep(monkeypatch):
    monkeypatch.setattr(changes, "SWEEP_SECONDS", LONG)


def is_heard(found: Changes) -> bool:
    """Whether a change is reported, also after waits that ended only because it was time to look again."""
    return until(found.wait, "a change is reported")


@contextmanager
def changing(file: Path):
    """Write to a file again and again meanwhile."""
    stopped = threading.Event()

    def write():
        while not stopped.wait(0.001):
            file.write_text("busy")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopped.set()
        writer.join()


def test_a_commit_wakes_and_reads_and_other_files_do_not(tmp_path):
    url = f"sqlite:///{tmp_path}/asynsched.db"
    with open_direct(url) as other, open_direct(url) as own, closing(Changes(url)) as found:
        own.read(all_dag_ids)
        (tmp_path / "bell.sock").touch()
        assert not found.wait(SHORT)
        other.write(set_pool, "p", 1)
        assert is_heard(found)
        assert not found.wait(SHORT)


def test_a_log_that_grows_wakes_even_if_its_folder_is_new(tmp_path):
    log = tmp_path / "logs" / "run" / "attempt=1.log"
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found:
        found.follow(log, tmp_path)
        log.parent.mkdir(parents=True)
        assert is_heard(found)
        found.follow(log, tmp_path)
        log.write_text("one\n")
        assert is_heard(found)
        (log.parent / "attempt=2.log").touch()
        assert not found.wait(SHORT)
        with log.open("a") as file:
            file.write("two\n")
        assert is_heard(found)


def test_a_log_in_the_folder_of_the_database_hides_no_commit(tmp_path):
    url = f"sqlite:///{tmp_path}/asynsched.db"
    with open_direct(url) as other, open_direct(url) as own, closing(Changes(url)) as found:
        own.read(all_dag_ids)
        found.follow(tmp_path / "logs" / "attempt=1.log", tmp_path)
        other.write(set_pool, "p", 1)
        assert is_heard(found)


def test_other_files_that_keep_changing_prolong_no_wait(tmp_path):
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found, changing(tmp_path / "other"):
        assert not found.wait(SHORT)


def test_changes_of_a_busy_database_are_reported_at_intervals(tmp_path):
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found, changing(tmp_path / "asynsched.db-wal"):
        began_at = time.monotonic()  # a report may be read late, so the next one seems to be early
        reported = [is_heard(found) for _ in range(5)]
        took = time.monotonic() - began_at
    assert all(reported)
    assert took >= 4 * changes.PAUSE_SECONDS


def test_events_that_the_kernel_drops_count_as_a_change(tmp_path):
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found:
        with (tmp_path / "a").open("wb", buffering=0) as one, (tmp_path / "b").open("wb", buffering=0) as other:
            for _ in range(int(MAX_EVENTS.read_text())):  # the kernel merges equal events that follow each other
                one.write(b"x")
                other.write(b"x")
        assert found.wait(LONG)


def test_a_database_that_cannot_be_watched_is_looked_at_often(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "BLIND_SWEEP_SECONDS", SHORT)
    with closing(Changes(f"sqlite:///{tmp_path}/missing/asynsched.db")) as found:
        found.follow(tmp_path / "attempt=1.log", tmp_path)
        looking = threading.Thread(target=lambda: [found.wait() for _ in range(15)], daemon=True)
        looking.start()
        looking.join(LONG / 2)
        assert not looking.is_alive()


class FakeScheduler:
    """A scheduler's connection to PostgreSQL, which reports changes of RUN and notes how often it is asked to."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.n_asked = 0

    def hear(self, _connection: object, _process: int, _channel: str, payload: str) -> None:
        self.n_asked += Hint("watch", *RUN) in decode_hints(payload)

    async def report(self) -> None:
        await self.connection.execute("SELECT pg_notify($1, $2)", CHANNEL, encode_hints([Hint("changed", *RUN)]))


@asynccontextmanager
async def scheduler_on(url: str) -> AsyncIterator[FakeScheduler]:
    connection = await asyncpg.connect(url)
    scheduler = FakeScheduler(connection)
    await connection.add_listener(CHANNEL, scheduler.hear)
    yield scheduler
    await connection.close()


@asynccontextmanager
async def changes_heard(url: str) -> AsyncIterator[Changes]:
    """Yield what a command waits with. It has an event loop of its own, so its calls are made in other threads."""
    found = await asyncio.to_thread(Changes, url, RUN)
    yield found
    await asyncio.to_thread(found.close)


async def test_a_run_whose_changes_end_each_wait_is_asked_for_again(postgres_url, monkeypatch):
    monkeypatch.setattr(changes, "RENEW_SECONDS", LONG)
    # The scheduler starts after the command has asked.
    async with changes_heard(postgres_url) as found, scheduler_on(postgres_url) as scheduler:
        for n_asked, renewed_after in enumerate([LONG, 0.0, 0.0]):
            monkeypatch.setattr(changes, "RENEW_SECONDS", renewed_after)
            await scheduler.report()
            assert await asyncio.to_thread(found.wait)
            await eventually(lambda n=n_asked: scheduler.n_asked == n, f"the scheduler was asked {n_asked} times")


async def test_a_lost_connection_is_a_change_and_is_made_again(postgres_url):
    async with scheduler_on(postgres_url) as scheduler, changes_heard(postgres_url) as found:
        await eventually(lambda: scheduler.n_asked == 1, "the scheduler was asked")
        await scheduler.connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert await asyncio.to_thread(found.wait)
        waiting = asyncio.create_task(asyncio.to_thread(found.wait))
        await eventually(lambda: scheduler.n_asked == 2, "the scheduler was asked again")
        await scheduler.report()
        assert await waiting


def test_other_logs_wake_nobody_on_postgresql(postgres_url, tmp_path):
    with closing(Changes(postgres_url, RUN)) as found:
        found.follow(tmp_path / "attempt=1.log", tmp_path)
        (tmp_path / "attempt=2.log").touch()
        assert not found.wait(SHORT)
        (tmp_path / "attempt=1.log").touch()
        assert found.wait(LONG)


async def test_a_server_that_falls_silent_ends_the_wait(postgres_url, tmp_path, monkeypatch):
    monkeypatch.setattr(postgres_engine, "command_timeout", lambda _dsn: 3.0)  # enough on a busy machine
    monkeypatch.setattr(changes, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(changes, "SWEEP_SECONDS", SHORT)
    async with gate_before(postgres_url, tmp_path) as gate, changes_heard(gate.url) as found:
        gate.silence()
        with anyio.fail_after(LONG / 2), pytest.raises(StoreUnavailable, match="no answer in time"):
            await anyio.to_thread.run_sync(found.wait, abandon_on_cancel=True)


def test_ctrl_c_before_the_event_loop_runs_ends_the_wait_cleanly(tmp_path, monkeypatch, recwarn):
    make = asyncio.new_event_loop

    def interrupted() -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)
        return make()

    monkeypatch.setattr(asyncio.events, "new_event_loop", interrupted)
    with closing(Changes(f"sqlite:///{tmp_path / 'a.db'}")) as found:
        with pytest.raises(KeyboardInterrupt):
            found.wait(LONG)
        gc.collect()  # which warns of a coroutine that was made and never run
    assert not [warned for warned in recwarn.list if "never awaited" in str(warned.message)]
