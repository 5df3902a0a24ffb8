"""Runs whose scheduler is gone: taken over once, also if an answer is lost, and given back by who cannot read them."""

from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from asynsched import DAG, BashOperator
from asynsched.assembly.evaluating import make_evaluator
from asynsched.assembly.foundation import Foundation
from asynsched.channels import Channels, RunCreated, SchedulersChanged, TaskFinished, TaskReady
from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.versions import VersionCache
from asynsched.settings import Settings
from asynsched.states import SLOT_TASK_STATES
from asynsched.store.database import Database
from asynsched.store.engines.direct_database import open_inline
from asynsched.store.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.pools import set_pool
from asynsched.store.run_queue import take_over_runs
from asynsched.store.schedulers import register_scheduler, remove_scheduler
from asynsched.store.schema.tables import dag_run, dag_version, task_instance
from asynsched.store.slot_settlement import pool_use_elsewhere
from sandbox.protocol import Ended
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON
from tests.support.simulated import report_of


class Scheduler:
    """The evaluator of one scheduler; the executor is the test."""

    def __init__(self, database: Database, folder: Path, name: str, epoch: int) -> None:
        self.name, self.epoch = name, epoch
        self.clock = VirtualClock(NOON)
        self.channels = Channels()
        base = Foundation(
            settings=Settings(sweep_interval=60), channels=self.channels, clock=self.clock, database=database,
            database_url=None, scheduler_id=name, lease_epoch=epoch,
        )  # fmt: skip
        self.evaluator = make_evaluator(base, VersionCache(database, folder, folder), 9, {}, lambda: False)

    async def tick(self, *news: object) -> dict[str, str]:
        """Let it go round until it rests; return the run of each try that it has launched, by token."""
        for message in news:
            self.channels.active_runs.put_nowait(message)
        for _ in range(5):
            await self.evaluator.tick(self.clock.now())
        ready = [message.launch for message in self.channels.ready.take() if isinstance(message, TaskReady)]
        return {launch.token: launch.run.run_id for launch in ready}

    async def sweep(self) -> None:
        """Let it go round after the time of a sweep."""
        self.clock.leap(61)
        await self.tick()

    def end(self, *tokens: str) -> None:
        for token in tokens:
            self.channels.finished.put_nowait(TaskFinished(Ended(token, "success", NOON)))


@pytest.fixture
async def database():
    database = open_inline()
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true", pool="narrow")
    await database.write(
        store_report, report_of(dag), FileStamp("", 0, 0, ""), now=NOON,
        defaults=DagDefaults(max_active_runs=16, paused=False),
    )  # fmt: skip
    await database.write(set_pool, "narrow", 1)
    yield database
    await database.close()


async def scheduler(database: Database, folder: Path, name: str) -> Scheduler:
    values = {"hostname": name, "pid": 1, "home": name, "version": "1", "now": NOON, "lease_until": NOON}
    epoch = await database.write(register_scheduler, scheduler_id=name, **values)
    found = Scheduler(database, folder, name, epoch)
    await found.evaluator.recover(Held(), NOON)
    await found.tick()
    return found


async def run_on(scheduler: Scheduler, database: Database, run_id: str) -> dict[str, str]:
    await database.write(create_manual_run, "d", now=NOON, run_id=run_id)
    return await scheduler.tick(RunCreated(DagRunKey("d", run_id)))


async def owners(database: Database) -> list[tuple[str | None, int, int]]:
    """Return who owns each run, under which epoch, and which epoch its tasks have."""
    query = (
        sa.select(dag_run.c.scheduler_id, dag_run.c.lease_epoch, task_instance.c.lease_epoch)
        .join(task_instance, task_instance.c.dag_run_id == dag_run.c.id)
        .order_by(dag_run.c.id)
    )
    return [tuple(row) for row in await database.read(lambda conn: conn.execute(query).all())]


async def states(database: Database) -> Counter[str]:
    query = sa.select(task_instance.c.state)
    return Counter(await database.read(lambda conn: conn.scalars(query).all()))


async def make_unreadable(database: Database) -> bytes:
    """Let the DAG's code be what only a newer version can read; return what it was."""
    stored = await database.read(lambda conn: conn.scalar(sa.select(dag_version.c.serialized)))
    await write_code(database, b'{"from": "tomorrow"}')
    return stored


async def write_code(database: Database, serialized: bytes) -> None:
    await database.write(lambda conn: conn.execute(sa.update(dag_version).values(serialized=serialized)))


async def test_a_takeover_whose_answer_is_lost_gives_no_slot_twice_and_loses_no_try(database, tmp_path):
    gone = await scheduler(database, tmp_path, "gone")
    lost = await run_on(gone, database, "r0")
    flaky = FlakyDatabase(database, after=True)
    heir = await scheduler(flaky, tmp_path, "heir")
    await database.write(remove_scheduler, "gone")
    flaky.away = {"take_over_runs"}
    with pytest.raises(StoreUnavailable):
        await heir.tick(SchedulersChanged())
    assert await owners(database) == [("heir", heir.epoch, heir.epoch)], "it was done"
    # Whether it was begun is not known: it may have ended on the other home. So it is lost, and gives back its slot.
    begun = await run_on(heir, database, "r1")
    assert [*begun.values()] == ["r1"]
    counted = await states(database)
    assert sum(counted[state] for state in SLOT_TASK_STATES) == 1, "the pool has one slot"
    heir.end(*begun)
    await heir.tick()
    heir.clock.leap(2)
    another = await heir.tick()
    assert [*another.values()] == ["r0"]
    assert not another.keys() & lost.keys()


async def test_a_try_that_waits_on_the_own_home_is_launched_under_its_token_which_starts_once(database, tmp_path):
    gone = await scheduler(database, tmp_path, "gone")
    launched = await run_on(gone, database, "r0")
    values = {"hostname": "gone", "pid": 2, "home": "gone", "version": "1", "now": NOON, "lease_until": NOON}
    epoch = await database.write(register_scheduler, scheduler_id="next", **values)
    following = Scheduler(database, tmp_path, "next", epoch)
    await following.evaluator.recover(Held(), NOON)
    assert await following.tick() == launched


async def test_one_that_was_given_up_takes_over_nothing(database, tmp_path):
    gone, sleeper = [await scheduler(database, tmp_path, name) for name in ("gone", "sleeper")]
    await run_on(gone, database, "r0")
    for name in ("gone", "sleeper"):
        await database.write(remove_scheduler, name)
    assert await database.write(take_over_runs, "sleeper", sleeper.epoch) == []
    assert await sleeper.tick(SchedulersChanged()) == {}
    assert await owners(database) == [("gone", gone.epoch, gone.epoch)]


async def test_a_run_that_only_a_newer_version_can_read_is_given_back_and_not_taken_again(database, tmp_path):
    gone = await scheduler(database, tmp_path, "gone")
    lost = await run_on(gone, database, "r0")
    older = await scheduler(database, tmp_path, "older")
    stored = await make_unreadable(database)
    await database.write(remove_scheduler, "gone")
    with capture_logs() as logs:
        assert await older.tick(SchedulersChanged()) == {}
        for _ in range(2):
            await older.sweep()
            assert await older.tick(SchedulersChanged()) == {}
    assert [line["event"] for line in logs] == ["runs.taken_over", "run.given_back"]
    assert await owners(database) == [(None, 0, 0)]
    used = await database.read(pool_use_elsewhere, older.epoch, frozenset())
    assert used == {"narrow": 1}, "its slots are somebody else's"
    await write_code(database, stored)
    newer = await scheduler(database, tmp_path, "newer")
    newer.clock.leap(2)
    another = await newer.tick()
    assert [*another.values()] == [*lost.values()]
    newer.end(*another)
    await newer.tick()
    assert await states(database) == {"success": 1}


async def test_a_run_that_cannot_be_read_stays_while_a_try_of_it_runs_here(database, tmp_path):
    gone = await scheduler(database, tmp_path, "gone")
    [token] = await run_on(gone, database, "r0")
    await database.write(remove_scheduler, "gone")
    older = Scheduler(database, tmp_path, "older", 2)
    values = {"hostname": "gone", "pid": 2, "home": "gone", "version": "1", "now": NOON, "lease_until": NOON}
    await database.write(register_scheduler, scheduler_id="older", **values)
    await make_unreadable(database)
    await older.evaluator.recover(Held(running=frozenset({token})), NOON)
    assert [message.token for message in older.channels.ready.take()] == [token], "the try is to be ended"
    await older.sweep()
    assert await owners(database) == [("older", 2, 2)]
    older.end(token)
    await older.tick()
    await older.sweep()
    assert await owners(database) == [(None, 0, 0)]
