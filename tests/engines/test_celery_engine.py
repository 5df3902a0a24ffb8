"""The adapter of Celery, alone with a broker in memory."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from kombu.exceptions import OperationalError

from asynsched.clock import VirtualClock
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines import celery, celery_app, circuit_breaker
from asynsched.executors.engines.celery import CeleryEngine
from asynsched.executors.engines.circuit_breaker import OPEN_SECONDS
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import CelerySettings, Settings
from tests.engines.brokers import RabbitMQ, require_broker
from tests.faults.real.proxies import Proxies
from tests.support.waiting import eventually


@pytest.fixture
async def engine(tmp_path):
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    settings = Settings(celery=CelerySettings(broker_url="memory://"))
    engine = CeleryEngine(ExecutorContext(tmp_path, settings, clock, "me", print, None))
    yield engine
    await engine.close()


def job_of(name: str, queue: str = "default", **config: Any) -> Job:
    ticket = Ticket(name, "secret", ("http://a",), "dag", "run", name, try_number=1)
    return Job(ticket, queue, 1, "default_pool", config)


@pytest.mark.parametrize("queue", ["", " ", "a\0b", "a\nb", "\ud800", 201 * "x", "amq.gen"])
async def test_a_malformed_queue_rejects_its_own_job_only(engine: CeleryEngine, queue):
    answers = await engine.submit([job_of("wrong", queue), job_of("wish", queue="gpu"), job_of("right")])
    assert [type(one) for one in answers] == [Rejected, Accepted, Accepted]
    assert "cannot be a queue: its name has 1 to 200 bytes" in answers[0].reason


class Sent:
    """Stands in for `send_task`: raises the error of a task's name."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        self.names: list[str] = []

    def __call__(self, *_: Any, shadow: str, **__: Any) -> None:
        self.names.append(shadow)
        if (error := self.errors.get(shadow.removeprefix("dag."))) is not None:
            raise error


async def test_an_error_of_one_message_makes_no_other_one_wait(engine: CeleryEngine, monkeypatch):
    sent = Sent({"b": UnicodeError("no such character"), "c": RuntimeError("nacked")})
    monkeypatch.setattr(engine._app, "send_task", sent)
    answers = await engine.submit([job_of(name) for name in "abcd"])
    assert [type(one) for one in answers] == [Accepted, Rejected, Later, Accepted]
    assert answers[1].reason == "Celery's broker does not take it: no such character"


async def test_a_broker_that_goes_away_keeps_what_it_has_and_is_asked_once_for_the_rest(
    engine: CeleryEngine, monkeypatch
):
    error = OperationalError("Connection refused")
    error.__cause__ = ConnectionRefusedError()
    sent = Sent({"b": error})
    monkeypatch.setattr(engine._app, "send_task", sent)
    answers = await engine.submit([job_of(name) for name in "abcd"])
    away = Later("Connection refused")
    assert [type(answers[0]), *answers[1:]] == [Accepted, away, away, away]
    assert sent.names == ["dag.a", "dag.b"]


async def test_a_broker_that_does_not_answer_costs_a_batch_one_time_limit(engine: CeleryEngine, monkeypatch):
    loop, released, calls = asyncio.get_running_loop(), threading.Event(), []
    limit = TimeLimit()

    def hang(*_: Any, shadow: str, **__: Any) -> None:
        calls.append(shadow)
        if not released.is_set():
            loop.call_soon_threadsafe(limit.reach)
            released.wait(60)

    monkeypatch.setattr(circuit_breaker, "anyio", SimpleNamespace(fail_after=limit))
    monkeypatch.setattr(engine._app, "send_task", hang)
    for _ in range(3):
        answers = await engine.submit([job_of(name) for name in "abcd"])
        assert answers == [Later("Celery's broker has not answered for 20 s")] * 4
    released.set()
    engine.context.clock.leap(OPEN_SECONDS)
    assert [type(one) for one in await engine.submit([job_of("e")])] == [Accepted]
    assert calls == ["dag.a", "dag.e"], "what was given up is not published later"


async def test_a_rabbitmq_that_falls_silent_keeps_no_connection(tmp_path, monkeypatch):
    require_broker(RabbitMQ)
    monkeypatch.setattr(celery_app, "SOCKET_SECONDS", 1.0)
    broker, proxies = RabbitMQ(tmp_path), Proxies()
    broker.start()
    try:
        proxy = proxies.lead_to("broker", broker.port)
        settings = Settings(celery=CelerySettings(broker_url=broker.url_at(proxy.port)))
        clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
        engine = CeleryEngine(ExecutorContext(tmp_path, settings, clock, "me", print, None))
        assert [type(one) for one in await engine.submit([job_of("a")])] == [Accepted]
        proxies.change(proxy, "mute")
        assert [type(one) for one in await engine.submit([job_of("b", "a queue of its own")])] == [Later]
        await eventually(lambda: not engine._app.producer_pool._dirty, "the thread has given its connection back")
        proxies.change(proxy, "fair")
        clock.leap(OPEN_SECONDS)
        assert [type(one) for one in await engine.submit([job_of("c", "a queue of its own")])] == [Accepted]
        await engine.close()
    finally:
        proxies.close()
        broker.kill()


class TimeLimit:
    """Stands in for `anyio.fail_after`: the test says when the time is over."""

    @contextmanager
    def __call__(self, _: float) -> Iterator[None]:
        with anyio.CancelScope() as self._scope:
            yield
        if self._scope.cancelled_caught:
            raise TimeoutError

    def reach(self) -> None:
        self._scope.cancel()


async def test_batches_leave_no_descriptors_open(tmp_path):
    settings = Settings(celery=CelerySettings(broker_url="redis://127.0.0.1:1/0"))
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    engine = CeleryEngine(ExecutorContext(tmp_path, settings, clock, "me", print, None))
    await engine.submit([])
    gc.disable()
    try:
        before = n_descriptors()
        for _ in range(20):
            await engine.submit([])
        assert n_descriptors() <= before
    finally:
        gc.enable()
    await engine.close()


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_look_does_not_wait_for_workers(engine: CeleryEngine, monkeypatch):
    answered, real = threading.Event(), engine._ask

    def ask(jobs: Any) -> Any:
        answered.wait(60)
        return real(jobs)

    monkeypatch.setattr(celery, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(engine, "_ask", ask)
    [answer] = await engine.submit([job_of("a", "looked")])
    engine.context.clock.leap(2 * celery.LOOK_SECONDS)
    assert await engine.look([answer.engine_id]) == {}, "it is not known yet"
    await engine.cancel([answer.engine_id])
    answered.set()
    await eventually(engine._asking.done, "the workers had their time")
    sight = (await engine.look([answer.engine_id]))[answer.engine_id]
    assert sight.reason == "no worker answers; in the queue looked since 00:00 UTC, with 1 waiting"
