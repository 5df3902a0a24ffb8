"""A scheduler gives up another by its own monotonic clock, and only while it can see the other's row."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from asynsched.channels import Channels, RunsOrphaned
from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.lease.expiry import Lease
from asynsched.lease.held_lease import register, unregister
from asynsched.lease.takeover import PeerWatch
from asynsched.settings import LeaseSettings
from asynsched.store.engines.opening import open_inline
from asynsched.store.schedulers import list_schedulers, renew_scheduler, unended_schedulers
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON

INTERVAL, TAKEOVER = 5.0, 30.0
LEASE = timedelta(seconds=15)


class Schedulers:
    """A watching scheduler, `me`, and others that a test has renew their leases, or not."""

    def __init__(self) -> None:
        self.database = FlakyDatabase(open_inline())
        self.clock = VirtualClock(NOON)
        self.channels = Channels()
        self.epochs: dict[str, int] = {}
        self.watch = PeerWatch(
            Lease("me", 1, LeaseSettings(renew_interval=INTERVAL)), channels=self.channels, database=self.database,
            clock=self.clock,
        )  # fmt: skip

    async def register(self, name: str, home: str = "") -> None:
        now = self.clock.now()
        self.epochs[name], _ = await self.database.write(
            register, scheduler_id=name, hostname=name, pid=1, home=home, version="1", now=now, lease_until=now + LEASE,
            takeover_seconds=TAKEOVER,
        )  # fmt: skip

    async def renew(self, *names: str, wall_clock_off_by: timedelta = timedelta()) -> list[bool]:
        now = self.clock.now() + wall_clock_off_by
        return [
            await self.database.write(renew_scheduler, name, self.epochs[name], now=now, lease_until=now + LEASE)
            for name in names
        ]

    async def serving(self) -> list[str]:
        return [row.id for row in await self.database.read(unended_schedulers)]

    async def pass_time(self, seconds: float, *alive: str) -> None:
        """Move time on, a renewal and a look at a time."""
        for _ in range(round(seconds / INTERVAL)):
            self.clock.leap(INTERVAL)
            await self.renew(*alive)
            await self.watch.tick(self.clock.now())

    @property
    def was_told(self) -> bool:
        return RunsOrphaned() in self.channels.runs.take()


@pytest.fixture
async def schedulers():
    found = Schedulers()
    for name in ("me", "alive", "dead"):
        await found.register(name)
    await found.watch.tick(found.clock.now())
    assert found.was_told
    yield found
    await found.database.close()


async def test_one_that_renews_no_more_is_given_up_once_all_its_time_has_passed(schedulers):
    await schedulers.pass_time(TAKEOVER, "alive")
    assert await schedulers.serving() == ["me", "alive", "dead"]
    assert not schedulers.was_told
    assert schedulers.watch.silent() == {"dead"}, "its claimed files wait no longer"
    await schedulers.pass_time(INTERVAL, "alive")
    assert await schedulers.serving() == ["me", "alive"]
    assert schedulers.was_told
    assert schedulers.watch.n_peers == 1
    # Should it wake up now, it learns that it is too late.
    assert await schedulers.renew("alive", "dead") == [True, False]


async def test_the_log_names_each_that_comes_once_it_counts(schedulers):
    with capture_logs() as logs:
        await schedulers.register("new")
        await schedulers.watch.tick(schedulers.clock.now())
        await schedulers.watch.tick(schedulers.clock.now())
    assert [(log["event"], log["found"]) for log in logs] == [("scheduler.found", "new")]
    assert schedulers.watch.n_peers == 3


async def test_clocks_that_are_apart_or_jump_make_nobody_gone(schedulers):
    for hours in (-1, 1, 1, -25, 0):
        await schedulers.renew("alive", "dead", wall_clock_off_by=timedelta(hours=hours))
        await schedulers.pass_time(TAKEOVER / 2)
    assert await schedulers.serving() == ["me", "alive", "dead"]


async def test_after_an_outage_of_the_database_everybody_has_the_whole_time_again(schedulers):
    schedulers.database.away = {"unended_schedulers"}
    schedulers.clock.leap(10 * TAKEOVER)
    with pytest.raises(StoreUnavailable):
        await schedulers.watch.tick(schedulers.clock.now())
    await schedulers.watch.tick(schedulers.clock.now())
    await schedulers.pass_time(TAKEOVER, "alive")
    assert await schedulers.serving() == ["me", "alive", "dead"]
    await schedulers.pass_time(INTERVAL, "alive")
    assert await schedulers.serving() == ["me", "alive"]


async def test_one_that_leaves_frees_its_runs_at_once(schedulers):
    await schedulers.database.write(unregister, "alive", schedulers.clock.now())
    await schedulers.watch.tick(schedulers.clock.now())
    assert schedulers.was_told
    assert schedulers.watch.n_peers == 1
    assert [row.id for row in await schedulers.database.read(list_schedulers, NOON - timedelta(days=1))] == [
        "me",
        "dead",
    ]
