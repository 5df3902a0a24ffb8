"""The renewal of a lease while the database fails, and the end of a lost lease."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from asynsched.clock import Clock
from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.lease import renewal as module
from asynsched.lease.expiry import Expiry, Lease, takeover_seconds
from asynsched.lease.renewal import LoopRenewal, ThreadRenewal
from asynsched.service import Availability
from asynsched.settings import LeaseSettings

SETTINGS = LeaseSettings(renew_interval=0.01)


class Renewals:
    """Takes the leases for the executor; `longer` is set when one is later than the first."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.longer = threading.Event()

    def __call__(self, valid_until: float) -> None:
        self.told.append(valid_until)
        if valid_until > self.told[0]:
            self.longer.set()


def renewal(kind: type, told: Renewals, *, home_is_lock: bool = False, **options):
    """Return a renewal of the lease of `s`, whose loss fails the test."""
    expiry = Expiry(Clock().boottime(), takeover_seconds(SETTINGS, is_alone=True))
    lease = Lease("s", 1, SETTINGS, expiry, home_is_lock=home_is_lock)
    if kind is ThreadRenewal:
        options = {"database_url": "sqlite://", "availability": Availability(Clock())} | options
    options = {"on_lost": lambda: pytest.fail("it is not lost")} | options
    return kind(lease, clock=Clock(), tell_executor=told, **options)


@pytest.mark.parametrize("home_is_lock", [True, False])
async def test_tries_go_on_without_the_database_where_the_home_is_the_lock(monkeypatch, home_is_lock):
    attempts = []
    tried = threading.Event()

    def refuse(url):
        attempts.append(url)
        if len(attempts) > 2:
            tried.set()
        raise SettingsError("the password was refused")

    monkeypatch.setattr(module, "open_direct", refuse)
    told = Renewals()
    thread = renewal(ThreadRenewal, told, home_is_lock=home_is_lock)
    with capture_logs() as logs:
        thread.start()
        assert await asyncio.to_thread(tried.wait, 10), "it goes on trying after every error"
        await thread.stop()
    assert told.longer.is_set() == home_is_lock
    assert [line["event"] for line in logs] == ["store.unavailable"], "that is said once"


@pytest.mark.parametrize("home_is_lock", [True, False])
async def test_a_lease_on_the_loop_does_as_the_thread_does(home_is_lock):
    async def write(*_, **__):
        raise StoreUnavailable("away")

    told = Renewals()
    lease = renewal(LoopRenewal, told, home_is_lock=home_is_lock, database=SimpleNamespace(write=write))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await lease.tick(lease.clock.now())
    assert told.longer.is_set() == home_is_lock


async def test_a_lost_lease_is_reported_on_the_loop(monkeypatch):
    lost = asyncio.get_running_loop().create_future()
    threads = []

    def on_lost():
        threads.append(threading.current_thread())
        lost.set_result(None)

    direct = SimpleNamespace(write=lambda *_, **__: None, close=lambda: None)
    monkeypatch.setattr(module, "open_direct", lambda url: direct)
    thread = renewal(ThreadRenewal, Renewals(), on_lost=on_lost)
    thread.start()
    async with asyncio.timeout(10):
        await lost
    await thread.stop()
    assert threads == [threading.current_thread()]


async def test_a_bug_in_the_renewal_counts_as_a_lost_lease():
    lost = asyncio.Event()
    thread = renewal(ThreadRenewal, Renewals(), on_lost=lost.set)
    thread._watch_loop = lambda: 1 / 0
    with capture_logs() as logs:
        thread.start()
        await asyncio.wait_for(lost.wait(), 20)
        await thread.stop()
    assert [entry["event"] for entry in logs] == ["lease.failed"]
