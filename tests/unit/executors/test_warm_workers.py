"""Workers that wait for another ticket: each ticket goes to one of them, or to none."""

from datetime import UTC, datetime

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import TicketRefused
from asynsched.executors import warm_workers
from asynsched.executors.warm_workers import WarmWorkers
from asynsched.protocol.worker_messages import Proof, Ticket


def ticket_of(token: str) -> Ticket:
    return Ticket(token, f"secret of {token}", ("http://scheduler",))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def warm(clock, monkeypatch) -> WarmWorkers:
    monkeypatch.setattr(warm_workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(warm_workers, "CLAIM_SECONDS", 0.01)
    return WarmWorkers(clock, 30.0, 2)


async def hand_over(warm: WarmWorkers, token: str, *fitting: str) -> str:
    return await warm.hand_over(ticket_of(token), lambda last: f"job of {last.token}", set(fitting).__contains__)


async def test_a_worker_gets_one_fitting_ticket_after_another_and_keeps_its_job(warm: WarmWorkers, monkeypatch):
    monkeypatch.setattr(warm_workers, "CLAIM_SECONDS", 10.0)
    monkeypatch.setattr(warm_workers, "POLL_SECONDS", 10.0)
    taken: list[Ticket | None] = []

    async def ask(token: str) -> None:
        taken.append(found := await warm.next(ticket_of(token).proof))
        assert found is not None
        warm.note_claim(found.token)

    for last, following in (("a", "b"), ("b", "c")):
        warm.stay(ticket_of(last))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, last)
            assert await hand_over(warm, following, "job of b") == "", "the job is that of a, also after b"
            assert await hand_over(warm, following, "job of a") == "job of a"
        assert await hand_over(warm, "d", "job of a") == "", "it has a ticket"
    assert taken == [ticket_of("b"), ticket_of("c")]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_ticket_goes_on_without_a_worker_that_does_not_claim_it(warm: WarmWorkers, asks):
    warm.stay(ticket_of("a"))
    async with anyio.create_task_group() as tasks:
        if asks:
            tasks.start_soon(warm.next, ticket_of("a").proof)
        assert await hand_over(warm, "b", "job of a") == ""
    warm.note_claim("b")
    with pytest.raises(TicketRefused):
        await warm.next(ticket_of("a").proof)


async def test_a_worker_asks_again_until_its_time_is_over(warm: WarmWorkers, clock: VirtualClock):
    warm.stay(ticket_of("a"))
    assert await warm.next(ticket_of("a").proof) is None
    clock.leap(29.995)
    with pytest.raises(TicketRefused):
        await warm.next(ticket_of("a").proof)
    warm.stay(ticket_of("b"))
    clock.leap(31.0)
    assert await hand_over(warm, "c", "job of b") == ""


@pytest.mark.parametrize("wrong", [Proof("b", "secret of a"), Proof("a", "secret of b"), Proof("a", "\ud800")])
async def test_the_secret_of_the_last_try_admits_its_own_worker_alone(warm: WarmWorkers, wrong):
    warm.stay(ticket_of("a"))
    with pytest.raises(TicketRefused):
        await warm.next(wrong)
    assert await warm.next(ticket_of("a").proof) is None


async def test_no_more_than_a_number_wait_and_none_after_a_close(warm: WarmWorkers, monkeypatch):
    for token in "abc":
        warm.stay(ticket_of(token))
    with pytest.raises(TicketRefused):
        await warm.next(ticket_of("c").proof)
    monkeypatch.setattr(warm_workers, "POLL_SECONDS", 10.0)

    async def is_refused() -> None:
        with pytest.raises(TicketRefused):
            await warm.next(ticket_of("a").proof)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(is_refused)
        await anyio.wait_all_tasks_blocked()
        warm.close()
    warm.stay(ticket_of("d"))
    with pytest.raises(TicketRefused):
        await warm.next(ticket_of("d").proof)
