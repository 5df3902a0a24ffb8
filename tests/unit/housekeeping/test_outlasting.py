"""The database is away: tries go on as long as nobody can take their runs, and no longer."""

from contextlib import suppress

import pytest
from msgspec.structs import replace

from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.housekeeping.loop_lease import LoopLease
from asynsched.housekeeping.peer_watch import enter, takeover_seconds
from asynsched.settings import LeaseSettings
from asynsched.store.engines.direct_database import open_inline
from asynsched.store.schedulers import remove_scheduler, unended_schedulers
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON

LEASE = LeaseSettings(duration=15, renew_interval=5, grace=10, kill_time=5, outage=120, shared_outage=60)
USUAL = takeover_seconds(LEASE)
BESIDE_OTHERS = USUAL + 60


class Lone:
    """The lease of the scheduler `me`, on a database that others may use, too. It is its own executor."""

    def __init__(self, settings: LeaseSettings = LEASE) -> None:
        self.settings = settings
        self.clock = VirtualClock(NOON)
        self.losing_answers = FlakyDatabase(open_inline(), after=True)
        self.database = FlakyDatabase(self.losing_answers)
        self.told: list[float] = []

    async def register(self, name: str) -> int:
        now = self.clock.now()
        return await self.database.inner.write(
            enter, scheduler_id=name, hostname=name, pid=1, home="", version="1", now=now, lease_until=now,
            takeover_seconds=USUAL,
        )  # fmt: skip

    async def start(self) -> None:
        self.lease = LoopLease(
            settings=self.settings, database=self.database, home_is_claim=False, clock=self.clock, scheduler_id="me",
            lease_epoch=await self.register("me"), executor=self, on_lost=lambda: pytest.fail("it is not lost"),
        )  # fmt: skip

    def renew_lease(self, valid_until: float) -> None:
        self.told.append(valid_until)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / LEASE.renew_interval)):
            self.clock.leap(LEASE.renew_interval)
            with suppress(StoreUnavailable):
                await self.lease.tick(self.clock.now())

    @property
    def last_words(self) -> float:
        """CLOCK_BOOTTIME from which on no try of it runs."""
        return self.told[-1] + USUAL - LEASE.duration

    async def takeover(self) -> float:
        """How long after its last renewal others leave its runs alone."""
        [row] = [row for row in await self.database.inner.read(unended_schedulers) if row.id == "me"]
        return row.takeover_seconds


@pytest.fixture
async def lone() -> Lone:
    lone = Lone()
    await lone.start()
    await lone.pass_time(10)
    return lone


async def test_the_tries_of_the_only_scheduler_outlast_an_outage_as_long_as_it_has_said(lone):
    renewed_at = lone.clock.boottime()
    assert await lone.takeover() == USUAL + LEASE.outage
    lone.database.is_away = lambda _: True
    await lone.pass_time(60)
    assert lone.told[-1] == lone.clock.boottime() + LEASE.duration, "as if nothing had happened"
    await lone.pass_time(3600)
    assert lone.last_words == renewed_at + USUAL + LEASE.outage
    lone.database.is_away = lambda _: False
    await lone.pass_time(5)
    assert lone.told[-1] == lone.clock.boottime() + LEASE.duration


async def test_beside_another_scheduler_tries_outlast_a_minute_and_end_in_time_for_it_to_take_their_runs(lone):
    await lone.register("other")
    await lone.pass_time(5)
    renewed_at = lone.clock.boottime()
    assert await lone.takeover() == BESIDE_OTHERS
    lone.database.is_away = lambda _: True
    await lone.pass_time(60)
    assert lone.last_words == lone.clock.boottime() + USUAL, "as if nothing had happened"
    await lone.pass_time(3600)
    assert lone.last_words == renewed_at + BESIDE_OTHERS


def test_the_time_beside_others_follows_the_lease_unless_it_is_said():
    assert LeaseSettings().longest_shared_outage == 60
    assert LeaseSettings(duration=3, renew_interval=1).longest_shared_outage == 12
    assert LeaseSettings(shared_outage=0).longest_shared_outage == 0


async def test_a_scheduler_that_comes_during_the_outage_gives_the_other_all_the_time_that_it_takes(lone):
    renewed_at = lone.clock.boottime()
    lone.database.is_away = lambda _: True
    await lone.register("other")
    await lone.pass_time(3600)
    assert lone.last_words <= renewed_at + await lone.takeover()


async def test_tries_end_in_time_when_the_answer_to_the_first_renewal_beside_another_scheduler_is_lost(lone):
    await lone.register("other")
    lone.losing_answers.away = {"renew"}
    await lone.pass_time(5)
    renewed_at = lone.clock.boottime()
    assert await lone.takeover() == BESIDE_OTHERS, "it is committed"
    lone.database.is_away = lambda _: True
    await lone.pass_time(3600)
    assert lone.last_words <= renewed_at + BESIDE_OTHERS


async def test_tries_end_in_time_when_the_answer_to_the_first_renewal_without_others_is_lost():
    lone = Lone(replace(LEASE, outage=30.0))
    await lone.start()
    await lone.register("other")
    await lone.pass_time(10)
    assert await lone.takeover() == BESIDE_OTHERS
    await lone.database.inner.write(remove_scheduler, "other", lone.clock.now())
    lone.losing_answers.away = {"renew"}
    await lone.pass_time(5)
    renewed_at = lone.clock.boottime()
    assert await lone.takeover() == USUAL + 30, "it is committed"
    lone.database.is_away = lambda _: True
    await lone.pass_time(3600)
    assert lone.last_words <= renewed_at + USUAL + 30
