"""The triggers of a host that stop and start again, as the scheduler tells it to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from asynsched import BaseTrigger, TriggerEvent
from asynsched.protocol.messages import TriggerSpec, TriggerWork
from sandbox.trigger_host import TriggerRunner, shared_streams
from tests.support.waiting import eventually

LIVES: list["Life"] = []


class Life:
    """What happens to a trigger from its start to the end of its clean-up."""

    def __init__(self) -> None:
        self.may_fire, self.may_end = asyncio.Event(), asyncio.Event()
        self.state = "running"


class Watcher(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Watcher", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        LIVES.append(life := Life())
        try:
            await life.may_fire.wait()
            yield TriggerEvent("fired")
            await asyncio.Event().wait()
        finally:
            life.state = "cleans up"
            await life.may_end.wait()
            life.state = "ended"


CALLS: list[str] = []


class RemoteJob(BaseTrigger):
    """A trigger that waits for a job elsewhere."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        CALLS.append("run")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as exc:
            CALLS.append(f"cancelled {exc}".strip())
            raise
        yield TriggerEvent()

    async def on_kill(self) -> None:
        CALLS.append("kill")

    async def cleanup(self) -> None:
        CALLS.append("clean up")


class FailingKill(RemoteJob):
    async def on_kill(self) -> None:
        await super().on_kill()
        raise ValueError("the job is unknown")


class EndlessKill(RemoteJob):
    async def on_kill(self) -> None:
        await super().on_kill()
        await asyncio.Event().wait()


class Scheduler:
    """The scheduler, for a host: it says what to run, and holds back its answers to outcomes until `may_store`."""

    def __init__(self, watcher: str) -> None:
        self._watcher = watcher
        self._steps: asyncio.Queue[TriggerWork] = asyncio.Queue()
        self._number = 0
        self.reported: list[dict[str, Any]] = []
        self.running: list[list[str]] = []
        self.may_store = asyncio.Event()

    def tell(self, start: str = "", stop: str = "", *, what: str = "Watcher", **fields: Any) -> None:
        self._number += 1
        specs = (TriggerSpec(start, f"{__name__}.{what}", {}, "d", "r", "t", -1, 1, watcher=self._watcher),)
        step = TriggerWork("s", self._number, specs if start else (), (stop,) if stop else (), **fields)
        self._steps.put_nowait(step)

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "trigger_work":
            self.running += [arguments["running"]] if "running" in arguments else []
            return msgspec.to_builtins(await self._steps.get())
        self.reported += msgspec.to_builtins(arguments["outcomes"])
        await self.may_store.wait()
        return None


@pytest.fixture(params=["watcher", "task"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def scheduler(kind, monkeypatch):
    LIVES.clear()
    monkeypatch.setenv("AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT", "0.05")
    scheduler = Scheduler("of a" if kind == "watcher" else "")
    serving = asyncio.create_task(TriggerRunner(scheduler).serve())  # type: ignore[arg-type]
    scheduler.tell(start="x")
    await eventually(lambda: len(LIVES) == 1, "it runs")
    yield scheduler
    scheduler.may_store.set()
    for life in LIVES:
        life.may_end.set()
    scheduler.tell(end=True)
    await serving


async def test_a_trigger_told_to_start_while_it_cleans_up_starts_after_that(scheduler):
    scheduler.tell(stop="x")
    await eventually(lambda: LIVES[0].state == "cleans up", "it is being stopped")
    scheduler.tell(tell_all=True)
    scheduler.tell(start="x")
    scheduler.tell(tell_all=True)
    await eventually(lambda: len(scheduler.running) == 2, "it has told twice what runs")
    assert scheduler.running == [[], ["x"]], "what is being stopped does not count, what is to start does"
    LIVES[0].may_end.set()
    await eventually(lambda: len(LIVES) == 2, "it runs again")
    assert [life.state for life in LIVES] == ["ended", "running"]


async def test_a_trigger_stopped_again_while_it_cleans_up_stays_stopped(scheduler):
    scheduler.tell(stop="x")
    await eventually(lambda: LIVES[0].state == "cleans up", "it is being stopped")
    scheduler.tell(start="x")
    scheduler.tell(stop="x")
    scheduler.tell(tell_all=True)
    await eventually(lambda: scheduler.running == [[]], "it has told that nothing is to start")
    LIVES[0].may_end.set()
    await eventually(lambda: LIVES[0].state == "ended", "it has ended")
    scheduler.tell(tell_all=True)
    await eventually(lambda: scheduler.running == [[], []], "it has told again what runs")
    assert len(LIVES) == 1


@pytest.mark.parametrize("kind", ["watcher"])
async def test_an_event_of_a_stopped_watcher_is_reported_and_does_not_delay_its_next_start(scheduler):
    scheduler.tell(start="y")
    await eventually(lambda: len(LIVES) == 2, "another one runs")
    LIVES[1].may_fire.set()
    await eventually(lambda: scheduler.reported, "its event is being stored")
    LIVES[0].may_fire.set()
    LIVES[0].may_end.set()
    scheduler.tell(stop="x")
    await eventually(lambda: LIVES[0].state == "ended", "it was stopped with an event that was not reported yet")
    scheduler.tell(tell_all=True)
    scheduler.tell(start="x")
    await eventually(lambda: len(LIVES) == 3, "it runs again")
    assert scheduler.running == [["y"]]
    scheduler.may_store.set()
    await eventually(lambda: len(scheduler.reported) == 2, "the event is reported")
    assert [outcome["id"] for outcome in scheduler.reported] == ["y", "x"]


@pytest.mark.parametrize("kind", ["task"])
@pytest.mark.parametrize("what", [RemoteJob, FailingKill, EndlessKill])
async def test_a_killed_trigger_can_cancel_its_job_before_it_cleans_up(scheduler, what):
    CALLS.clear()
    scheduler.tell(start="y", what=what.__name__)
    await eventually(lambda: CALLS == ["run"], "it runs")
    scheduler.tell(stop="y", kill=("y",))
    await eventually(lambda: CALLS[-1] == "clean up", "it has ended")
    # Providers tell a kill from the end of a host by this message of Airflow's.
    assert CALLS == ["run", "cancelled __airflow_user_action__", "kill", "clean up"]
    scheduler.tell(tell_all=True)
    await eventually(lambda: scheduler.running == [["x"]], "others go on")
    assert scheduler.reported == []


@pytest.mark.parametrize("kind", ["task"])
async def test_a_trigger_that_is_only_stopped_is_not_killed(scheduler):
    CALLS.clear()
    scheduler.tell(start="y", what="RemoteJob")
    await eventually(lambda: CALLS == ["run"], "it runs")
    scheduler.tell(stop="y")
    await eventually(lambda: CALLS[-1] == "clean up", "it has ended")
    assert CALLS == ["run", "cancelled", "clean up"]


def test_options_of_airflow_limit_shared_streams(monkeypatch):
    assert (shared_streams().max_waiting, shared_streams().ack_timeout) == (1024, 300)
    monkeypatch.setenv("AIRFLOW__TRIGGERER__SHARED_STREAM_SUBSCRIBER_QUEUE_SIZE", "7")
    monkeypatch.setenv("AIRFLOW__TRIGGERER__SHARED_STREAM_ACK_TIMEOUT", "2.5")
    assert (shared_streams().max_waiting, shared_streams().ack_timeout) == (7, 2.5)
