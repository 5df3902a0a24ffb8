"""Tries go on without news of their scheduler as long as no other one can take their runs, and no longer."""

from contextlib import suppress

import pytest
from msgspec.structs import replace

from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.lease.expiry import DRIFT, Expiry, Lease, takeover_seconds
from asynsched.lease.held_lease import register
from asynsched.lease.renewal import LoopRenewal
from asynsched.settings import LeaseSettings
from asynsched.store.engines.opening import open_inline
from asynsched.store.schedulers import remove_scheduler, unended_schedulers
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON

LEASE = LeaseSettings(duration=15, renew_interval=5, grace=10, kill_time=5, outage=120, shared_outage=60)
ALONE, BESIDE_OTHERS = 15 + 10 + 5 + 120, 15 + 10 + 5 + 60
"""The time for which tries outlast the last renewal."""


class Lone:
    """The lease of the scheduler `me`, on a database that others may use, too. It is its own executor."""

    def __init__(self, settings: LeaseSettings = LEASE) -> None:
        self.settings = settings
        self.clock = VirtualClock(NOON)
        self.losing_answers = FlakyDatabase(open_inline(), after=True)
        self.database = FlakyDatabase(self.losing_answers)
        self.told: list[float] = []

    async def register(self, name: str, seconds: float = 0.0) -> int:
        now = self.clock.now()
        epoch, _ = await self.database.inner.write(
            register, scheduler_id=name, hostname=name, pid=1, home="", version="1", now=now, lease_until=now,
            takeover_seconds=seconds,
        )  # fmt: skip
        return epoch

    async def start(self) -> None:
        expiry = Expiry(self.clock.boottime(), takeover_seconds(self.settings, is_alone=False))
        lease = Lease("me", await self.register("me", expiry.takeover_seconds), self.settings, expiry)
        self.renewal = LoopRenewal(
            lease, database=self.database, clock=self.clock, tell_executor=lambda at: self.renew_lease(at),
            on_lost=lambda: pytest.fail("it is lost"),
        )  # fmt: skip
        self.renewed_at = self.clock.boottime()

    def renew_lease(self, valid_until: float) -> None:
        self.told.append(valid_until)

    async def pass_time(self, seconds: float) -> None:
        """Move time on. If any attempt to renew, successful or not, were the last one, no two tries would overlap."""
        for _ in range(round(seconds / LEASE.renew_interval)):
            self.clock.leap(LEASE.renew_interval)
            now = self.clock.boottime()
            before = await self.row()
            with suppress(StoreUnavailable):
                await self.renewal.tick(self.clock.now())
            if (row := await self.row()).heartbeat_at != before.heartbeat_at:
                self.renewed_at = now
            longest = (1 - DRIFT / 2) * row.takeover_seconds
            assert self.ends_at < self.renewed_at + longest, "also for a clock that runs too fast"

    @property
    def ends_at(self) -> float:
        """CLOCK_BOOTTIME from which on no try of it runs."""
        return self.told[-1] + self.settings.grace + self.settings.kill_time

    async def row(self):
        [row] = [row for row in await self.database.inner.read(unended_schedulers) if row.id == "me"]
        return row


@pytest.fixture
async def lone() -> Lone:
    lone = Lone()
    await lone.start()
    await lone.pass_time(10)
    return lone


@pytest.mark.parametrize("are_others", [False, True])
async def test_tries_go_on_as_long_as_was_stored_before_the_outage(lone, are_others):
    if are_others:
        await lone.register("other")
        await lone.pass_time(LEASE.outage)
    lasting = BESIDE_OTHERS if are_others else ALONE
    renewed_at = lone.clock.boottime()
    assert lone.ends_at == pytest.approx(renewed_at + lasting), "and so for a keeper that hears of nothing more"
    lone.database.is_away = lambda _: True
    await lone.pass_time(3600)
    assert lone.ends_at == pytest.approx(renewed_at + lasting)
    lone.database.is_away = lambda _: False
    await lone.pass_time(5)
    assert lone.ends_at == pytest.approx(lone.clock.boottime() + lasting)


def test_the_outage_beside_others_is_by_default_four_leases():
    assert LeaseSettings().longest_shared_outage == 60
    assert LeaseSettings(duration=3, renew_interval=1).longest_shared_outage == 12
    assert LeaseSettings(shared_outage=0).longest_shared_outage == 0


def test_a_lone_scheduler_has_no_less_time():
    lease = replace(LEASE, outage=0.0)
    assert takeover_seconds(lease, is_alone=True) == takeover_seconds(lease, is_alone=False)


async def test_tries_end_in_time_when_another_scheduler_comes_in_the_outage(lone):
    lone.database.is_away = lambda _: True
    await lone.register("other")
    await lone.pass_time(300)


async def test_a_takeover_never_moves_forward_when_another_scheduler_comes(lone):
    ends_at = lone.ends_at
    await lone.register("other")
    lone.told = [lone.told[-1]]
    lone.renew_lease = lambda _: None
    await lone.pass_time(LEASE.outage - LEASE.renew_interval)
    assert lone.ends_at == ends_at


@pytest.mark.parametrize("are_others_first", [False, True])
async def test_tries_end_in_time_when_the_answer_to_a_renewal_is_lost(are_others_first):
    lone = Lone(replace(LEASE, outage=30.0, shared_outage=20.0) if are_others_first else LEASE)
    await lone.start()
    if are_others_first:
        await lone.register("other")
    await lone.pass_time(10)
    if are_others_first:
        await lone.database.inner.write(remove_scheduler, "other", lone.clock.now())
    else:
        await lone.register("other")
    lone.losing_answers.away = {"renew"}
    await lone.pass_time(5)
    lone.database.is_away = lambda _: True
    await lone.pass_time(300)
