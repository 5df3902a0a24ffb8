"""The adapter of Dask, alone with a client of a test."""

import asyncio
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from asynsched.clock import Clock, VirtualClock
from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines import dask, dask_connection
from asynsched.executors.engines.circuit_breaker import CircuitBreaker
from asynsched.executors.engines.dask import DaskEngine
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected, Sight
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import DaskSettings, Settings
from asynsched.worker.dask import folder_of, make_folder, terms_of
from tests.support.waiting import DEADLINE_SECONDS, eventually


class StubClient(SimpleNamespace):
    """Stands in for a client of Dask: refuses the keys of tasks that are called `refused`."""

    status = "running"

    def submit(self, *_: Any, key: str, priority: int, **__: Any) -> Any:
        if key.startswith("dag.refused"):
            raise ValueError("it cannot be serialized")
        return SimpleNamespace(status="pending", priority=priority)


@pytest.fixture
def engine(tmp_path, monkeypatch) -> DaskEngine:
    monkeypatch.setattr(dask, "fire_and_forget", lambda _: None)
    settings = Settings(dask=DaskSettings(address="tcp://127.0.0.1:1"))
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return DaskEngine(ExecutorContext(tmp_path, settings, clock, "me", print, None))


def job_of(name: str, priority_weight: int = 1, **config: Any) -> Job:
    ticket = Ticket(name, "secret", ("http://a",), "dag", "run", name, try_number=1)
    return Job(ticket, "default", priority_weight, "default_pool", config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resources": "gpu"}, r"Expected `object`, got `str` - at `\$\.resources`"),
        ({"resources": {"gpu": -1}}, r"Expected `float` > 0\.0 - at `\$\.resources"),
        ({"resources": {"gpu": float("nan")}}, r"Expected `float` > 0\.0 - at `\$\.resources"),
        ({"workers": [""]}, r"at `\$\.workers\[0\]`"),
        ({"priority": 2**70}, r"Expected `int` <= 2147483647 - at `\$\.priority`"),
    ],
)
async def test_a_malformed_wish_rejects_its_own_job_only(engine: DaskEngine, config, message):
    engine._connection._client = StubClient()
    wrong, refused, right = await engine.submit([job_of("wrong", **config), job_of("refused"), job_of("right", 2**70)])
    assert re.search(message, wrong.reason)
    assert refused == Rejected("Dask does not take it: it cannot be serialized")
    assert isinstance(right, Accepted)
    future, _ = engine._submitted[right.engine_id]
    assert future.priority == dask.MOST_PRIORITY, "a Dask scheduler loses its workers by larger numbers"


async def test_a_scheduler_that_does_not_answer_costs_a_batch_one_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_connection, "CALL_SECONDS", 0.2)
    settings = Settings(dask=DaskSettings(address="tcp://127.0.0.1:1"))
    clock, calls = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), []
    engine = DaskEngine(ExecutorContext(tmp_path, settings, clock, "me", print, None))
    answered = asyncio.Event()

    async def connect() -> StubClient:
        calls.append(1)
        await answered.wait()
        return StubClient(close=answered.wait)

    monkeypatch.setattr(engine._connection, "_connect", connect)
    for _ in range(2):
        answers = await engine.submit([job_of("a"), job_of("b")])
        assert answers == [Later("the Dask scheduler has not answered for 0 s")] * 2
    answered.set()
    clock.leap(dask.YOUNG_SECONDS)
    assert [type(one) for one in await engine.submit([job_of("a")])] == [Accepted]
    assert len(calls) == 1, "it went on connecting"
    await engine.close()


async def test_a_lost_connection_makes_jobs_wait_and_no_pass(engine: DaskEngine):
    engine._connection._client = StubClient(status="connecting")
    assert await engine.submit([job_of("a")]) == [Later("the connection with the Dask scheduler is lost")]
    with pytest.raises(ConnectionError):
        await engine.cancel(["job"])


async def test_a_connection_that_stays_lost_is_made_anew(engine: DaskEngine, monkeypatch):
    closed = []

    async def close() -> None:
        closed.append(1)

    async def connect() -> StubClient:
        return StubClient()

    monkeypatch.setattr(engine._connection, "_connect", connect)
    engine._connection._client = StubClient(status="connecting", close=close)
    for seconds in (0, dask_connection.CONNECT_SECONDS - 1):
        engine.context.clock.leap(seconds)
        assert await engine.submit([job_of("a")]) == [Later("the connection with the Dask scheduler is lost")]
    engine.context.clock.leap(1)
    assert [type(one) for one in await engine.submit([job_of("a")])] == [Accepted]
    assert closed == [1]


async def test_a_scheduler_that_takes_connections_and_says_nothing_is_given_up(engine: DaskEngine, monkeypatch):
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr(dask_connection, "CONNECT_SECONDS", 0.5)
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        engine._connection._settings = DaskSettings(address=f"tcp://{host}:{port}")
        with pytest.raises(TimeoutError):
            await engine._connection._connect()


async def test_jobs_that_never_came_to_the_scheduler_are_gone_by_a_new_connection(engine: DaskEngine, monkeypatch):
    """Dask sends tasks by one connection, which may be silent while others work."""

    async def close() -> None:
        future.status = "cancelled"

    async def connect() -> StubClient:
        return StubClient(scheduler=Statuses({}))

    monkeypatch.setattr(engine._connection, "_connect", connect)
    engine._connection._client = StubClient(scheduler=Statuses({}), close=close)
    [given] = await engine.submit([job_of("a")])
    future, _ = engine._submitted[given.engine_id]
    engine.context.clock.leap(2 * dask.YOUNG_SECONDS)
    with pytest.raises(ConnectionError, match="has not got what it was given"):
        await engine.look([given.engine_id])
    sight = (await engine.look([given.engine_id]))[given.engine_id]
    assert sight == Sight("gone", "the Dask scheduler does not have it any more")
    assert [type(one) for one in await engine.submit([job_of("b")])] == [Accepted]


class Statuses:
    """Stands in for a Dask scheduler, which knows jobs by their states."""

    def __init__(self, of_jobs: dict[str, str]) -> None:
        self.of_jobs = of_jobs

    async def get_task_status(self, keys: list[str]) -> dict[str, str | None]:
        return {key: self.of_jobs.get(key) for key in keys}

    async def processing(self, workers: None) -> dict[str, list[str]]:
        return {"tcp://worker": []}


async def test_a_look_at_one_job_does_not_forget_what_dask_says_of_others(engine: DaskEngine):
    engine._connection._client = StubClient()
    answers = await engine.submit([job_of(name) for name in "abcd"])
    asked, refused, done, waits = (one.engine_id for one in answers)
    engine._connection._client.scheduler = Statuses({asked: "processing", refused: "no-worker", waits: "no-worker"})
    engine.context.clock.leap(2 * dask.YOUNG_SECONDS)

    async def error() -> Exception:
        return ValueError("no such worker")

    engine._submitted[refused][0].status = "error"
    engine._submitted[refused][0].exception = error
    engine._submitted[done][0].status = "finished"
    await engine.look([asked])
    assert (await engine.look([refused]))[refused] == Sight("gone", "Dask does not take it: no such worker")
    assert set(engine._submitted) == {asked, refused, waits}, "a future that is kept keeps the result at Dask"


async def test_a_connection_that_comes_after_its_time_limit_is_closed_with_the_engine(engine: DaskEngine, monkeypatch):
    answered, closed = asyncio.Event(), asyncio.Event()

    async def connect() -> StubClient:
        await answered.wait()
        return StubClient(close=close)

    async def close() -> None:
        closed.set()

    monkeypatch.setattr(engine._connection, "_connect", connect)
    monkeypatch.setattr(engine._connection, "_breaker", CircuitBreaker(engine.context.clock, "the Dask scheduler", 0.0))
    assert await engine.submit([job_of("a")]) == [Later("the Dask scheduler has not answered for 0 s")]
    answered.set()
    await eventually(engine._connection._connecting.done, "it is connected")
    await engine.close()
    assert closed.is_set()


STUCK = """
import asyncio, threading
from pathlib import Path

from asynsched.clock import Clock
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines import dask, dask_connection
from asynsched.settings import DaskSettings, Settings

dask_connection.CALL_SECONDS = 0.1

def make():
    threading.Event().wait()

async def main():
    settings = Settings(dask=DaskSettings(cluster="__main__:make"))
    engine = dask.DaskEngine(ExecutorContext(Path(), settings, Clock(), "me", print, None))
    await engine.start()
    [answer] = await engine.submit([None])
    print(answer.reason)
    await engine.close()

asyncio.run(main())
"""


def test_a_function_that_makes_no_cluster_is_named_and_does_not_hold_up_the_stop(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STUCK], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "dask.cluster: __main__:make has not returned yet"


async def test_a_cluster_that_is_made_after_the_engine_has_closed_is_closed_too(tmp_path, monkeypatch):
    may_go_on, is_closed, has_begun = threading.Event(), threading.Event(), threading.Event()

    def make() -> SimpleNamespace:
        has_begun.set()
        may_go_on.wait(DEADLINE_SECONDS)
        return SimpleNamespace(close=is_closed.set)

    monkeypatch.setattr(dask_connection, "_made", lambda _: make())
    monkeypatch.setattr(dask_connection, "CALL_SECONDS", 0.1)
    settings = Settings(dask=DaskSettings(cluster="package:make"))
    engine = DaskEngine(ExecutorContext(tmp_path, settings, Clock(), "me", print, None))
    await engine.start()
    assert has_begun.is_set()
    await engine.close()
    may_go_on.set()
    await eventually(is_closed.is_set, "the cluster is closed")


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_cluster_that_cannot_be_closed_does_not_hold_up_the_stop(engine: DaskEngine, monkeypatch, is_stuck):
    monkeypatch.setattr(dask_connection, "CALL_SECONDS", 0.1)
    called, may_end = threading.Event(), threading.Event()

    def close() -> None:
        called.set()
        if is_stuck:
            may_end.wait(2 * DEADLINE_SECONDS)
        raise OSError("its machine is gone")

    engine._connection._cluster = SimpleNamespace(close=close)
    with anyio.fail_after(DEADLINE_SECONDS):
        await engine.close()
    assert called.is_set()
    may_end.set()


def test_a_tilde_in_the_homes_of_workers_is_the_home_folder_on_their_machine(tmp_path, monkeypatch):
    terms = terms_of(Settings(dask=DaskSettings(worker_homes="~/homes")))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of(terms) == tmp_path / "homes"


@pytest.mark.parametrize("kind", ["open to all", "a link"])
def test_a_worker_takes_no_folder_that_others_may_change(tmp_path, kind):
    folder = tmp_path / "homes"
    if kind == "a link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(SettingsError, match=r"set dask\.worker_homes"):
        make_folder(folder, is_shared=True)
    make_folder(folder, is_shared=False)
    make_folder(tmp_path / "another", is_shared=True)
