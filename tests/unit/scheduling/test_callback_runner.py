"""Callbacks of a stored run, when the database goes away, the scheduler stops, or the run is deleted."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from asynsched import DAG, BashOperator
from asynsched.channels import CallbackRequested, Channels
from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import Held
from asynsched.executors.client import ExecutorClient
from asynsched.executors.requests import RequestAnswerer
from asynsched.protocol.messages import Ended, Request
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.loading import VersionCache
from asynsched.settings import CallbacksSettings, Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_inline
from asynsched.store.rows import as_new
from asynsched.store.runs.callbacks import take_callback
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schema import ListenerCall, callback_request, dag_run, dag_version, listener_call
from tests.support.flaky_database import FlakyDatabase
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON
from tests.support.stored import store_dag

CALLBACKS = CallbacksSettings(processes=5, attempts=2, timeout=7)


@dataclass
class Scheduler:
    """The callback runner and the executor client of one scheduler; the executor is the test."""

    database: FlakyDatabase
    home: Path
    channels: Channels = field(default_factory=Channels)

    def __post_init__(self) -> None:
        clock = VirtualClock(NOON)
        self.client = ExecutorClient(
            channels=self.channels, clock=clock, answerer=RequestAnswerer(self.database, clock)
        )
        self.client.executor = self
        self.runner = CallbackRunner(
            settings=Settings(callbacks=CALLBACKS),
            channels=self.channels,
            database=self.database,
            clock=clock,
            versions=VersionCache(self.database, self.home, self.home),
            scheduler_id="me",
            adopt=self.adopt,
        )
        self.left_elsewhere: Held | Exception = Held()
        self.launched: list[str] = []
        self.acknowledged: list[str] = []

    async def launch(self, launches):
        self.launched += [launch.token for launch in launches]
        assert {launch.execution_timeout for launch in launches} == {CALLBACKS.timeout}

    async def adopt(self, run_ids):
        if isinstance(self.left_elsewhere, Exception):
            raise self.left_elsewhere
        return self.left_elsewhere

    async def acknowledge(self, tokens):
        self.acknowledged += tokens

    def end(self, *tokens: str) -> None:
        for token in tokens:
            self.client.report(Ended(token, "success", NOON))

    async def tick(self) -> None:
        try:
            await self.runner.tick(NOON)
        finally:
            await self.client.tick(NOON)


@pytest.fixture
async def database():
    database = FlakyDatabase(open_inline())
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag)
    await database.write(create_manual_run, "d", Trigger(run_id="r"), now=NOON)
    yield database
    await database.close()


async def request_callbacks(database: Database, n: int) -> None:
    run = await database.read(get_run, "d", "r")

    def insert(conn):
        for number in range(n):
            values = {"dag_run_id": run.id, "task_id": "t", "try_number": number, "event": "on_retry"}
            conn.execute(callback_request.insert(), values | {"created_at": NOON})

    await database.write(insert)


async def test_the_runner_is_not_idle_while_it_begins_a_callback(database, tmp_path):
    seen: list[tuple[str, bool]] = []

    class Watched(PassingDatabase):
        async def pass_on(self, call, query, args, kwargs):
            seen.append((query.__name__, scheduler.runner.is_idle))
            return await super().pass_on(call, query, args, kwargs)

    scheduler = Scheduler(Watched(database), tmp_path)
    await scheduler.tick()
    assert scheduler.runner.is_idle
    seen.clear()
    await request_callbacks(database, 1)
    scheduler.channels.callbacks.put_nowait(CallbackRequested())
    await scheduler.tick()
    assert ("take_callback", False) in seen
    assert not any(is_idle for _, is_idle in seen), seen


async def states(database: Database) -> dict[tuple[str, int], int]:
    """Return how many callbacks are in each state, after how many attempts."""
    query = sa.select(callback_request.c.state, callback_request.c.attempts)
    return Counter(tuple(row) for row in await database.read(lambda conn: conn.execute(query).all()))


async def test_ends_of_callbacks_survive_a_database_that_goes_away(database, tmp_path):
    await request_callbacks(database, CALLBACKS.processes + 2)
    scheduler = Scheduler(database, tmp_path)
    await scheduler.tick()
    assert len(scheduler.launched) == CALLBACKS.processes
    scheduler.end(*scheduler.launched)
    for _ in range(2):
        database.away = {"finish_callback"}
        with pytest.raises(StoreUnavailable):
            await scheduler.tick()
        assert scheduler.acknowledged == []
        assert not scheduler.runner.is_idle
    await scheduler.tick()
    assert scheduler.acknowledged == scheduler.launched[: CALLBACKS.processes]
    scheduler.end(*scheduler.launched[CALLBACKS.processes :])
    await scheduler.tick()
    assert await states(database) == {("success", 1): CALLBACKS.processes + 2}
    assert scheduler.runner.is_idle


async def test_callbacks_of_a_deleted_run_are_skipped(database, tmp_path):
    await request_callbacks(database, 2)
    scheduler = Scheduler(database, tmp_path)
    read = database.inner.read

    async def read_then_delete(query, *args, **kwargs):
        found = await read(query, *args, **kwargs)
        if query.__name__ == "next_callbacks":
            await database.write(lambda conn: conn.execute(dag_run.delete()))
        return found

    database.inner.read = read_then_delete
    await scheduler.tick()
    assert scheduler.launched == []
    assert await states(database) == {}
    assert scheduler.runner.is_idle


@pytest.mark.parametrize("held_as", ["starting", "running", "ended"])
async def test_a_new_scheduler_takes_its_callbacks_back_and_restarts_lost_ones(database, tmp_path, held_as):
    await request_callbacks(database, 3)
    gone = Scheduler(database, tmp_path)
    await gone.tick()
    *held, lost = gone.launched
    scheduler = Scheduler(database, tmp_path)
    if held_as == "ended":
        scheduler.end(*held)
    await scheduler.runner.recover(Held(**{held_as: frozenset(held)}))
    await scheduler.tick()
    assert scheduler.channels.reports.empty()
    if held_as != "ended":
        asked = [await scheduler.client.answer(Request(token, 1, "task_states", {"dag_id": "d"})) for token in held]
        assert [reply.error for reply in asked] == ["", ""]
        scheduler.end(*held)
        await scheduler.tick()
    assert scheduler.acknowledged == held
    [relaunched] = set(scheduler.launched) - set(held)
    assert relaunched != lost
    scheduler.end(relaunched)
    await scheduler.tick()
    assert await states(database) == {("success", 1): 2, ("success", 2): 1}
    assert scheduler.runner.is_idle


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_callback_of_a_scheduler_that_is_gone_goes_on_elsewhere(database, tmp_path, is_away):
    await request_callbacks(database, 1)
    gone = Scheduler(database, tmp_path)
    gone.runner._scheduler_id = "gone"
    await gone.tick()
    (token,) = gone.launched
    scheduler = Scheduler(database, tmp_path)
    if is_away:
        scheduler.left_elsewhere = StoreUnavailable("the database is away")
        with pytest.raises(StoreUnavailable):
            await scheduler.tick()
    scheduler.left_elsewhere = Held(running=frozenset({token}))
    await scheduler.tick()
    assert scheduler.launched == [token], "its requests are answered, and it is not begun again"
    scheduler.end(token)
    await scheduler.tick()
    assert await states(database) == {("success", 1): 1}


async def test_callbacks_killed_by_the_machine_restart_and_are_finally_given_up(database, tmp_path):
    await request_callbacks(database, 1)
    scheduler = Scheduler(database, tmp_path)
    for n_launches in (1, 2, 2):
        await scheduler.tick()
        assert len(scheduler.launched) == n_launches
        if not scheduler.runner.is_idle:
            scheduler.client.report(Ended(scheduler.launched[-1], "failed", NOON, reason="killed", cause="machine"))
    assert await states(database) == {("failed", 2): 1}
    assert scheduler.acknowledged == scheduler.launched


async def test_callbacks_that_a_stop_interrupts_start_again_and_lose_no_attempt(database, tmp_path):
    await request_callbacks(database, 1)
    for _ in range(CALLBACKS.attempts + 1):
        stopping = Scheduler(database, tmp_path)
        await stopping.tick()
        [token] = stopping.launched
        stopping.runner.stop_beginning()
        stopping.client.report(Ended(token, "failed", NOON, reason="a stop", cause="interrupted"))
        for _ in range(2):
            await stopping.tick()
        assert stopping.launched == stopping.acknowledged == [token]
        assert await states(database) == {("queued", 0): 1}
    scheduler = Scheduler(database, tmp_path)
    await scheduler.tick()
    scheduler.end(*scheduler.launched)
    await scheduler.tick()
    assert await states(database) == {("success", 1): 1}


async def test_a_stop_just_before_a_callback_begins_costs_it_no_attempt(database, tmp_path):
    await request_callbacks(database, 1)
    stopping = Scheduler(database, tmp_path)
    write = database.inner.write

    async def write_while_it_is_stopped(query, *args, **kwargs):
        if query is take_callback:
            stopping.runner.stop_beginning()
            assert not stopping.runner.are_reports_stored, "a stop waits for this"
        return await write(query, *args, **kwargs)

    database.inner.write = write_while_it_is_stopped
    await stopping.tick()
    assert not stopping.runner.are_reports_stored
    await stopping.tick()
    assert stopping.runner.are_reports_stored
    assert stopping.launched == []
    assert await states(database) == {("queued", 0): 1}


async def test_callbacks_that_need_a_newer_version_are_left_to_it(database, tmp_path):
    await request_callbacks(database, CALLBACKS.processes + 1)
    stored = await database.read(lambda conn: conn.scalar(sa.select(dag_version.c.serialized)))
    for serialized, n_launched in ((b'{"from": "tomorrow"}', 0), (stored, CALLBACKS.processes)):
        await database.write(lambda conn, code=serialized: conn.execute(sa.update(dag_version).values(serialized=code)))
        scheduler = Scheduler(database, tmp_path)
        with capture_logs() as logs:
            for _ in range(4):
                await scheduler.tick()
        assert len(scheduler.launched) == n_launched
        assert len(logs) == (0 if n_launched else CALLBACKS.processes + 1), "each is reported once"
    assert await states(database) == {("running", 1): CALLBACKS.processes, ("queued", 0): 1}


async def test_calls_of_listeners_that_belong_to_no_run_are_made_until_one_has_ended(database, tmp_path):
    call = ListenerCall(event="on_asset_created", subjects=[{"name": "a", "uri": "a"}], created_at=NOON)
    await database.write(lambda conn: conn.execute(listener_call.insert(), [as_new(call)]))
    await request_callbacks(database, 1)
    stored = sa.select(listener_call.c.state, listener_call.c.attempts)
    lost = Scheduler(database, tmp_path)
    await lost.tick()
    assert len(lost.launched) == 2
    scheduler = Scheduler(database, tmp_path)
    await scheduler.runner.recover(Held())
    await scheduler.tick()
    assert len(scheduler.launched) == 2, "both were begun, and their ends are not stored"
    scheduler.end(*scheduler.launched)
    database.away = {"finish_callback"}
    with pytest.raises(StoreUnavailable):
        await scheduler.tick()
    assert [tuple(row) for row in await database.read(lambda conn: conn.execute(stored).all())] == [("running", 2)]
    await scheduler.tick()
    assert await database.read(lambda conn: conn.execute(stored).all()) == []
    assert scheduler.runner.is_idle
