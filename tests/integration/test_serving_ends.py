"""How serving ends when something fails or is broken off: a lost lease, a failed start, a badly timed cancellation."""

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import psutil
import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from structlog.testing import capture_logs

from asynsched import Scheduler
from asynsched.errors import ExecutorError, HomeGone, LeaseLost, NotServing, SettingsError, StoreUnavailable
from asynsched.executors import local
from asynsched.executors.base import Held
from asynsched.lease.expiry import takeover_seconds
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.settings import LeaseSettings
from asynsched.simulation.script import ScriptedExecutor
from asynsched.store.engines.opening import open_database
from asynsched.store.schedulers import list_schedulers, register_scheduler, unended_schedulers
from asynsched.store.schema import scheduler as scheduler_table
from asynsched.store.schema import task_instance
from tests.support.flaky_database import FlakyDatabase
from tests.support.waiting import eventually

DAGS = """
    import os, signal, time
    from pathlib import Path
    from asynsched import DAG, task

    with DAG("deaf"):
        @task
        def deaf():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path(os.environ["HANGS"]).write_text(str(os.getpid()))
            while True:
                time.sleep(0.01)

        deaf()
"""


@pytest.fixture
def options(program) -> dict:
    program.write(DAGS)
    return program.options(lease=LeaseSettings(duration=20, renew_interval=0.05, kill_time=1.0))


def forget_schedulers(conn) -> None:
    conn.execute(sa.delete(scheduler_table))


@pytest.mark.parametrize("is_open", [False, True], ids=["by url", "open"])
async def test_a_lease_is_renewed_and_serving_ends_with_an_error_when_it_is_lost(options, program, tmp_path, is_open):
    url = f"sqlite:///{tmp_path / 'state.db'}"
    database = await open_database(url)
    scheduler = Scheduler(database=database if is_open else url, **options)
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.started.wait()

    async def lease_until() -> datetime:
        [row] = await database.read(list_schedulers, scheduler.clock.now())
        return row.lease_until

    first = await lease_until()
    with anyio.fail_after(20):
        while await lease_until() == first:
            await anyio.lowlevel.checkpoint()
        await database.write(forget_schedulers)
        with pytest.raises(LeaseLost, match="lost its lease"):
            await serving
    assert program.processes() == []
    await database.close()


@pytest.mark.parametrize("way", ["anyio", "asyncio", "asyncio, twice"])
async def test_a_run_whose_creation_is_cancelled_is_not_started_later(options, way):
    scheduler = Scheduler(**options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        if way.startswith("asyncio"):
            waiting = asyncio.create_task(scheduler.run("deaf"))
            for _ in range(2 if way.endswith("twice") else 1):
                await asyncio.sleep(0)
                waiting.cancel()
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(scheduler.run, "deaf")
                await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        with anyio.fail_after(60):
            await scheduler.wait_runs(1)
        scheduler.request_stop()


async def test_using_a_scheduler_that_has_stopped_says_so(options, program):
    scheduler = Scheduler(**options)
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.wait_idle()
    running = asyncio.create_task(scheduler.run("deaf"))
    await eventually(program.hangs.exists, "the task runs")
    waiting = [running, *(asyncio.create_task(wait) for wait in (scheduler.wait_runs(7), scheduler.wait_idle()))]
    await asyncio.sleep(0)
    scheduler.request_stop()
    with capture_logs() as logs:
        await serving
    assert "task.cannot_start" not in {entry["event"] for entry in logs}
    late = [scheduler.run("deaf"), scheduler.trigger("deaf"), scheduler.wait_runs(7), scheduler.wait_idle()]
    with anyio.fail_after(60):
        for one in (*waiting, *late):
            with pytest.raises(NotServing, match="has stopped"):
                await one


async def test_waiting_for_a_scheduler_that_cannot_start_says_so(options, program):
    scheduler = Scheduler(**options | {"dags": program.root / "nowhere"})
    waiting = [asyncio.create_task(wait) for wait in (scheduler.wait_idle(), scheduler.wait_runs(1))]
    await asyncio.sleep(0)
    with pytest.raises(SettingsError, match="nowhere"):
        await scheduler.serve()
    with anyio.fail_after(60):
        for one in waiting:
            with pytest.raises(NotServing, match="has stopped"):
                await one


async def test_a_stop_while_the_database_is_away_is_a_good_end(options, tmp_path, monkeypatch):
    monkeypatch.setattr("asynsched.lease.held_lease.RELEASE_PAUSE", timedelta())
    async with AsyncExitStack() as stack:
        database = FlakyDatabase(await open_database(f"sqlite:///{tmp_path / 'state.db'}"))
        stack.push_async_callback(database.close)
        scheduler = Scheduler(database=database, **options)
        serving = asyncio.create_task(scheduler.serve())
        await scheduler.started.wait()
        database.away.add("unregister")
        scheduler.request_stop()
        await serving
        assert database.away == set()
        assert await database.read(list_schedulers, scheduler.clock.now()) == []


@pytest.mark.parametrize("has_left_tries", [False, True])
async def test_runs_are_handed_over_only_when_no_try_can_be_left(options, tmp_path, has_left_tries):
    class Ended(ScriptedExecutor):
        @property
        def has_left_tries(self):
            return has_left_tries

    async with AsyncExitStack() as stack:
        database = await open_database(f"sqlite:///{tmp_path / 'state.db'}")
        stack.push_async_callback(database.close)
        scheduler = Scheduler(database=database, executor=Ended, **options)
        serving = asyncio.create_task(scheduler.serve())
        await scheduler.started.wait()
        scheduler.request_stop()
        with capture_logs() as logs:
            await serving
        assert len(await database.read(unended_schedulers)) == has_left_tries
        assert ("lease.kept" in {entry["event"] for entry in logs}) == has_left_tries


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["asked", "cancelled"])
@pytest.mark.parametrize("away", [None, "watched_triggers", "apply_and_pause"])
async def test_runs_are_handed_over_only_when_the_ends_of_their_tries_are_stored(
    options, program, tmp_path, monkeypatch, is_cancelled, away
):
    keeps_runs = away == "apply_and_pause"
    monkeypatch.setattr("asynsched.assembly.HURRIED_STORE_SECONDS", 0.2 if keeps_runs else 60)
    options["settings"] = replace(options["settings"], sweep_interval=0.1)
    async with AsyncExitStack() as stack:
        database = FlakyDatabase(await open_database(f"sqlite:///{tmp_path / 'state.db'}"))
        stack.push_async_callback(database.close)
        scheduler = Scheduler(database=database, **options)
        serving = asyncio.create_task(scheduler.serve())
        await scheduler.wait_idle()
        await scheduler.trigger("deaf")
        await eventually(program.hangs.exists, "the task runs")
        with capture_logs() as logs, suppress(asyncio.CancelledError):
            database.is_away = lambda query: query == away
            if away == "watched_triggers":
                await eventually(lambda: logs, "the watchers of assets miss the database")
            scheduler.hurry()
            serving.cancel() if is_cancelled else scheduler.request_stop()
            await serving
        assert len(await database.read(unended_schedulers)) == keeps_runs
        assert ("lease.kept" in {entry["event"] for entry in logs}) == keeps_runs
        [state] = await database.read(lambda conn: conn.execute(sa.select(task_instance.c.state)).scalars().all())
        assert (state in ("queued", "running")) == keeps_runs


@pytest.mark.parametrize("of_one_before", [0, 1000])
async def test_a_scheduler_that_dies_at_its_start_keeps_the_longer_lease(options, tmp_path, of_one_before):
    found = []
    options["settings"] = replace(options["settings"], lease=LeaseSettings(renew_interval=10))

    class Dying(ScriptedExecutor):
        async def start(self, lease_epoch):
            found.extend(await database.read(unended_schedulers))
            raise ExecutorError("it dies")

    async with AsyncExitStack() as stack:
        database = await open_database(f"sqlite:///{tmp_path / 'state.db'}")
        stack.push_async_callback(database.close)
        await database.write(
            register_scheduler, scheduler_id="before", hostname=socket.gethostname(), pid=1, version="1",
            home=str(options["settings"].home_path), now=datetime.now(UTC), lease_until=datetime.now(UTC),
            takeover_seconds=of_one_before,
        )  # fmt: skip
        with pytest.raises(ExecutorError):
            await Scheduler(database=database, executor=Dying, **options).serve()
    lease = options["settings"].lease
    longest = max(of_one_before, takeover_seconds(lease, is_alone=False))
    assert found[0].takeover_seconds > longest - 10, "it may have been renewed some seconds later"


@pytest.mark.parametrize("is_open", [False, True], ids=["by url", "open"])
async def test_a_lease_is_renewed_however_long_the_start_takes(options, tmp_path, is_open):
    url = f"sqlite:///{tmp_path / 'state.db'}"
    database = await open_database(url)

    async def heartbeat_at() -> datetime:
        [row] = await database.read(unended_schedulers)
        return row.heartbeat_at

    class Slow(ScriptedExecutor):
        def renew_lease(self, valid_until):
            told.append(valid_until)

        async def start(self, lease_epoch):
            assert told, "it knows how long the lease is valid"
            first = await heartbeat_at()
            with anyio.fail_after(20):
                while await heartbeat_at() == first:
                    await anyio.lowlevel.checkpoint()
            raise ExecutorError("that is enough")

    told = []
    with pytest.raises(ExecutorError, match="enough"):
        await Scheduler(database=database if is_open else url, executor=Slow, **options).serve()
    await database.close()


async def test_a_start_that_fails_ends_no_try_that_survived_a_crash(options, monkeypatch):
    steps = []

    class Recording(ScriptedExecutor):
        async def start(self, lease_epoch):
            steps.append("start")
            return Held(running=frozenset({"survivor"}))

        async def drain(self, deadline):
            steps.append("drain")

        async def close(self):
            steps.append("close")

    async def fail(*_):
        raise StoreUnavailable("away")

    monkeypatch.setattr(DependencyEvaluator, "recover", fail)
    with pytest.raises(StoreUnavailable, match="away"):
        await Scheduler(executor=Recording, **options).serve()
    assert steps == ["start", "close"]


async def test_a_cancellation_while_the_keeper_starts_leaves_no_keeper(options, program, monkeypatch):
    begun = threading.Event()
    start_keeper = local.start_keeper

    def start(*arguments, **options):
        begun.set()
        start_keeper(*arguments, **options)

    monkeypatch.setattr(local, "start_keeper", start)
    serving = asyncio.create_task(Scheduler(**options).serve())
    await eventually(begun.is_set, "the keeper is being started")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert program.processes() == []


async def test_a_bug_during_the_replacement_of_a_lost_keeper_ends_serving(options, program, monkeypatch):
    scheduler = Scheduler(**options)
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.started.wait()
    keeper = min(program.processes("asynsched: keeper"), key=psutil.Process.create_time)
    monkeypatch.setattr(local, "connect", lambda home: 1 / 0)
    keeper.kill()
    with capture_logs() as logs, anyio.fail_after(20), pytest.raises(ExceptionGroup) as raised:
        await serving
    assert raised.group_contains(ZeroDivisionError, match="division")
    assert "executor.failed" in [entry["event"] for entry in logs]
    await eventually(lambda: not program.processes(), "what the killed keeper has started is gone")


async def test_a_cancelled_scheduler_gives_its_tries_all_their_time_to_end(options, program, monkeypatch):
    monkeypatch.setattr("asynsched.scheduler.CLEANUP_SECONDS", 0.5)
    scheduler = Scheduler(**options)
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.started.wait()
    await scheduler.wait_idle()
    await scheduler.trigger("deaf")
    await eventually(program.hangs.exists, "the task runs")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert program.processes() == []


@pytest.mark.parametrize("way", ["cancelled", "asked"])
async def test_a_hurried_end_kills_its_tries_and_leaves_no_process(program, way):
    program.write(DAGS)
    lease = LeaseSettings(duration=20, renew_interval=0.05, kill_time=300)
    scheduler = Scheduler(**program.options(shutdown_grace=0, lease=lease))
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.wait_idle()
    await scheduler.trigger("deaf")
    await eventually(program.hangs.exists, "the task runs")
    serving.cancel() if way == "cancelled" else scheduler.request_stop()
    logs = scheduler.settings.home_path / "logs"
    await eventually(
        lambda: any("Ending the task" in log.read_text() for log in logs.rglob("*.log")), "the task is to end itself"
    )
    with capture_logs() as said, anyio.fail_after(60), suppress(asyncio.CancelledError):
        serving.cancel() if way == "cancelled" else scheduler.hurry()
        await serving
    assert program.processes() == []
    assert [entry["event"] for entry in said if entry["event"] == "lease.kept"] == []
    assert serving.cancelled() == (way == "cancelled")


@pytest.mark.parametrize("way", ["removed", "replaced"])
async def test_serving_ends_once_the_home_is_removed_or_replaced(options, program, way):
    scheduler = Scheduler(**options)
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.wait_idle()
    await scheduler.trigger("deaf")
    await eventually(program.hangs.exists, "the task runs")
    program.home.rename(program.root / "aside")
    if way == "replaced":
        shutil.copytree(program.root / "aside", program.home, ignore=shutil.ignore_patterns("*.sock"))
    with anyio.fail_after(60), pytest.raises(HomeGone, match="home was removed, moved or replaced"):
        await serving
    assert program.processes() == []


def test_a_scheduler_whose_log_has_no_room_serves_all_the_same(tmp_path):
    (tmp_path / "dags").mkdir()
    line = [sys.executable, "-m", "asynsched", "up", "dags", "--home", "home", "--until-idle"]
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(line, cwd=tmp_path, stderr=full, check=False).returncode == 0
