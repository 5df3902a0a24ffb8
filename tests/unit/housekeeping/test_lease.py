"""The lease while the database fails."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from asynsched.clock import SystemClock
from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.lease import renewal as module
from asynsched.lease.promise import NO_PROMISE, Outlasting, Promise, takeover_seconds
from asynsched.lease.renewal import LeaseKeeper, LoopLease
from asynsched.service import Availability
from asynsched.settings import LeaseSettings

SETTINGS = LeaseSettings(renew_interval=0.01)


class Renewals:
    """An executor that is told of the lease; `longer` is set when it was told of more than at first."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.longer = threading.Event()

    def renew_lease(self, valid_until: float) -> None:
        self.told.append(valid_until)
        if valid_until > self.told[0]:
            self.longer.set()


def arguments(executor: Renewals, *, home_is_claim: bool = False, **changes) -> dict:
    entry = Promise(SystemClock().boottime(), takeover_seconds(SETTINGS, is_alone=True))
    return {
        "outlasting": Outlasting(SETTINGS, entry, home_is_claim=home_is_claim),
        "settings": SETTINGS, "clock": SystemClock(), "scheduler_id": "s", "lease_epoch": 1, "executor": executor,
        "on_lost": lambda: pytest.fail("it is not lost"),
    } | changes  # fmt: skip


@pytest.mark.parametrize("home_is_claim", [True, False])
async def test_tries_go_on_without_the_database_where_the_home_is_the_claim(monkeypatch, home_is_claim):
    attempts = []
    tried = threading.Event()

    def refuse(url):
        attempts.append(url)
        if len(attempts) > 2:
            tried.set()
        raise SettingsError("the password was refused")

    monkeypatch.setattr(module, "open_direct", refuse)
    executor = Renewals()
    availability = Availability(SystemClock())
    keeper = LeaseKeeper(
        **arguments(executor, database_url="sqlite://", home_is_claim=home_is_claim, availability=availability)
    )
    with capture_logs() as logs:
        keeper.start()
        assert await asyncio.to_thread(tried.wait, 10), "it goes on trying, whatever the error"
        await keeper.stop()
    assert executor.longer.is_set() == home_is_claim
    assert [line["event"] for line in logs] == ["store.unavailable"], "that is said once"


@pytest.mark.parametrize("home_is_claim", [True, False])
async def test_a_lease_on_the_loop_does_as_the_thread_does(home_is_claim):
    async def write(*_, **__):
        raise StoreUnavailable("away")

    executor = Renewals()
    database = SimpleNamespace(write=write)
    lease = LoopLease(**arguments(executor, database=database, home_is_claim=home_is_claim))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await lease.tick(lease.clock.now())
    assert executor.longer.is_set() == home_is_claim


async def test_a_lost_lease_is_told_on_the_loop(monkeypatch):
    lost = asyncio.get_running_loop().create_future()
    threads = []

    def on_lost():
        threads.append(threading.current_thread())
        lost.set_result(None)

    direct = SimpleNamespace(write=lambda *_, **__: (False, NO_PROMISE), close=lambda: None)
    monkeypatch.setattr(module, "open_direct", lambda url: direct)
    keeper = LeaseKeeper(
        **arguments(
            Renewals(),
            database_url="sqlite://",
            on_lost=on_lost,
            availability=Availability(SystemClock()),
        )
    )
    keeper.start()
    async with asyncio.timeout(10):
        await lost
    await keeper.stop()
    assert threads == [threading.current_thread()]


async def test_a_bug_in_what_renews_the_lease_is_told_as_its_loss():
    lost = asyncio.Event()
    keeper = LeaseKeeper(
        **arguments(Renewals(), database_url="sqlite://", availability=Availability(SystemClock()), on_lost=lost.set)
    )
    keeper._watch_loop = lambda: 1 / 0
    with capture_logs() as logs:
        keeper.start()
        await asyncio.wait_for(lost.wait(), 20)
        await keeper.stop()
    assert [entry["event"] for entry in logs] == ["lease.failed"]
