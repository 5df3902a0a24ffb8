"""The triggers of asset watchers: those that nothing uses are deleted, and nothing else is written for them."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched import DAG, Asset, AssetWatcher, BaseEventTrigger
from asynsched.channels import Channels
from asynsched.clock import VirtualClock
from asynsched.lease.expiry import Lease
from asynsched.scheduling.asset_watchers import AssetWatchers
from asynsched.scheduling.loading import VersionCache
from asynsched.settings import Settings
from asynsched.store.schedulers import register_scheduler, remove_scheduler
from asynsched.store.schema import asset_trigger, dag
from asynsched.store.watchers import drop_watchers
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON
from tests.support.stored import store_dag


class Arrivals(BaseEventTrigger):
    def serialize(self):
        return "module.Arrivals", {}

    async def run(self):
        yield


class CountingDatabase(PassingDatabase):
    """Counts the calls of each query."""

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = Counter()

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        self.calls[query.__name__] += 1
        return await super().pass_on(call, query, args, kwargs)


@pytest.fixture
async def serve(database, tmp_path):
    """Store a DAG with a watcher; return a function that serves watchers with a new scheduler."""
    with DAG("d", schedule=[Asset("mail", watchers=[AssetWatcher(name="inbox", trigger=Arrivals())])]) as watching:
        pass
    await database.write(store_dag, watching)

    async def begin(name):
        fields = {"hostname": name, "pid": 1, "home": name, "version": "1", "now": NOON, "takeover_seconds": 30}
        epoch = await database.write(register_scheduler, scheduler_id=name, lease_until=NOON, **fields)
        counting = CountingDatabase(database)
        watchers = AssetWatchers(
            Settings(), Channels(), counting, VirtualClock(NOON), versions=VersionCache(counting, tmp_path, tmp_path),
            lease=Lease(name, epoch),
        )  # fmt: skip
        await watchers.recover()
        return watchers, counting.calls

    return begin


async def owners(database):
    return await database.read(lambda conn: conn.scalars(sa.select(asset_trigger.c.scheduler_id)).all())


async def test_a_watcher_of_an_inactive_dag_is_not_written_for(database, serve):
    await database.write(lambda conn: conn.execute(sa.update(dag).values(is_active=False)))
    _, calls = await serve("one")
    assert calls["watched_triggers"] == 1
    assert calls["assign_triggers"] == 0
    assert await owners(database) == [None]


async def test_an_unused_trigger_of_a_scheduler_that_has_gone_is_deleted(database, serve):
    await serve("gone")
    assert await owners(database) == ["gone"]
    await database.write(remove_scheduler, "gone", NOON)
    await database.write(drop_watchers, ["d"])
    await serve("heir")
    assert await owners(database) == []


async def test_an_unused_trigger_is_deleted_once_its_scheduler_has_left_it(database, serve):
    watchers, _ = await serve("one")
    await database.write(drop_watchers, ["d"])
    _, calls = await serve("other")
    assert (await owners(database), calls["assign_triggers"]) == (["one"], 0), "it may still run"
    await watchers.recover()
    assert await owners(database) == []


async def test_watchers_are_looked_for_as_often_after_the_clock_was_set_back(serve):
    watchers, calls = await serve("one")
    past = NOON - timedelta(days=1)
    for now, n_looks in ((NOON, 0), (NOON + watchers.interval, 1), (past, 1), (past, 0)):
        calls.clear()
        await watchers.tick(now)
        assert calls["watched_triggers"] == n_looks, now
