"""A real trigger host under a real keeper: the outcomes of its triggers, and their isolation from one another."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from asynsched.authoring.transport import to_transport
from asynsched.executors.tokens import code_of_trigger, host_key, new_host_token
from asynsched.protocol.messages import (
    CodeVersion,
    Deferral,
    Launch,
    Reply,
    Request,
    Resume,
    RunContext,
    TriggerHost,
    TriggerOutcome,
    TriggerSpec,
    TriggerWork,
)
from sandbox.sources.local_imports import DAG_MODULE_PREFIX
from tests.integration.tries.bench import Bench, replies, value

DAG_FILE = """
import asyncio, os, sys, time
from datetime import timedelta
from asynsched import DAG, BaseOperator, BaseTrigger, Connection, TaskSuccessEvent, TriggerEvent

class Does(BaseTrigger):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def serialize(self):
        return f"{__name__}.Does", {"what": self.what}

    async def run(self):
        if self.what == "blocks":
            time.sleep(600)
        if self.what == "raises":
            raise ValueError("no luck")
        if self.what == "exits":
            sys.exit(3)
        if self.what == "ends":
            yield TaskSuccessEvent(xcoms={"rows": [1]})
        if self.what.startswith("tells much "):
            yield TriggerEvent("x" * 4_500_000)
        if self.what == "tells too much":
            yield TriggerEvent("x" * 9_000_000)
        if self.what == "asks":
            yield TriggerEvent(Connection.get("db").password)
        if self.what == "dies":
            os._exit(7)
        while self.what == "waits":
            await asyncio.sleep(600)
        print("prints", self.what)
        self.log.info("logs %s", self.task_instance.task_id)
        yield TriggerEvent(timedelta(hours=1))

    async def cleanup(self):
        print("cleaned", self.what, flush=True)

class Waits(BaseOperator):
    def execute(self, context):
        self.defer(trigger=Does("fires"), method_name="go_on", kwargs={"pair": (1, 2)}, timeout=60)

    def go_on(self, context, event, pair):
        return [str(event), list(pair), context["ti"].try_number]

with DAG("d"):
    Waits(task_id="waits")
"""


class Host:
    """A host that is launched at the bench, and the scheduler that answers it."""

    def __init__(self, bench: Bench, code: CodeVersion, block_timeout: float = 30.0) -> None:
        self.bench = bench
        self.code = code_of_trigger("dag_file.Does", code)
        run = RunContext("", "", "", datetime.now(UTC))
        self.launch = Launch(
            new_host_token(host_key(self.code)), "", -1, 1, 0, run, self.code, "triggers/host.log",
            trigger_host=TriggerHost(block_timeout),
        )  # fmt: skip
        self.steps: asyncio.Queue[TriggerWork] = asyncio.Queue()
        self.outcomes: dict[str, TriggerOutcome] = {}
        self.number = 0
        bench.answer_later = {"trigger_work": self._work, "trigger_outcomes": self._take}

    @property
    def log(self) -> str:
        return (self.bench.home / "logs/triggers/host.log").read_text()

    def tell(self, start: tuple[str, ...] = (), stop: tuple[str, ...] = (), **fields: Any) -> None:
        """Make the host start and stop triggers that do this."""
        self.number += 1
        path = f"{DAG_MODULE_PREFIX}dag_file.Does"
        specs = tuple(TriggerSpec(what, path, {"what": what}, "d", "r", f"t-{what}", -1, 1) for what in start)
        self.steps.put_nowait(TriggerWork("s", self.number, specs, stop, **fields))

    async def outcome(self, name: str) -> TriggerOutcome:
        await self.bench.until(lambda: name in self.outcomes, f"the outcome of {name}")
        return self.outcomes[name]

    async def _work(self, request: Request) -> Reply:
        return Reply(request.token, request.request_id, msgspec.to_builtins(await self.steps.get()))

    async def _take(self, request: Request) -> Reply:
        for outcome in msgspec.convert(request.arguments["outcomes"], list[TriggerOutcome]):
            self.outcomes[outcome.id] = outcome
        return Reply(request.token, request.request_id)


async def test_triggers_of_a_dag_file_run_side_by_side_to_their_own_ends(bench: Bench):
    host = Host(bench, bench.code(DAG_FILE), block_timeout=0.3)
    bench.answers["connection_get"] = lambda request: Reply(
        request.token, request.request_id, {"conn_id": "db", "conn_type": "x", "password": "hidden"}
    )
    async with bench.running() as executor:
        await executor.launch([host.launch])
        host.tell(("waits", "blocks", "raises", "exits", "ends", "asks", "fires"))
        assert (await host.outcome("ends")) == TriggerOutcome("ends", "success", xcoms={"rows": [1]})
        assert (await host.outcome("asks")).payload == "hidden"
        assert (await host.outcome("fires")).payload == {"__type__": "timedelta", "__value__": [0, 3600, 0]}
        raised = await host.outcome("raises")
        assert (raised.kind, raised.detail) == ("error", "ValueError: no luck")
        assert any("raise ValueError" in line for line in raised.traceback)
        assert (await host.outcome("exits")).detail == "SystemExit: 3"
        blocked = await host.outcome("blocks")
        assert blocked.detail == (
            "TriggerBlocked: it blocked the event loop for 0.3 s: await, or use asyncio.to_thread"
        )
        assert any("time.sleep(600)" in line for line in blocked.traceback)
        assert "waits" not in host.outcomes
        host.tell(stop=("waits",))
        host.tell(end=True)
        assert (await bench.end_of(host.launch)).state == "success"
    assert "prints fires" in host.log
    assert "[d r t-fires] logs t-fires" in host.log
    assert {f"cleaned {what}" in host.log for what in ("waits", "blocks", "raises", "ends", "fires")} == {True}
    assert "hidden" not in host.log


async def test_large_outcomes_come_in_several_messages_and_too_large_ones_fail(bench: Bench):
    host = Host(bench, bench.code(DAG_FILE))
    much = [f"tells much {number}" for number in range(5)]
    bench.answers["connection_get"] = replies({"conn_id": "db", "conn_type": "x", "password": "x" * 17_000_000})
    async with bench.running() as executor:
        await executor.launch([host.launch])
        host.tell((*much, "tells too much", "asks"))
        for name in much:
            assert len((await host.outcome(name)).payload) == 4_500_000
        assert (
            "its event is too large: 8.6 MiB of JSON; the limit is 7.6 MiB"
            in (await host.outcome("tells too much")).detail
        )
        assert "connection_get: 16.2 MiB of JSON; the limit is 16.0 MiB" in (await host.outcome("asks")).detail
        host.tell(end=True)
        await bench.end_of(host.launch)


async def test_a_task_that_cannot_be_told_how_to_go_on_fails_and_harms_no_other(bench: Bench):
    code = bench.code(DAG_FILE)
    async with bench.running() as executor:
        too_much = bench.launch(code, "waits", resume=Resume("go_on", {"event": "x" * 17_000_000, "pair": 1}))
        deferred = bench.launch(code, "waits")
        await executor.launch([too_much, deferred])
        assert (await bench.end_of(deferred)).state == "deferred"
        refused = await bench.end_of(too_much)
        assert (refused.state, refused.retry) == ("failed", False)
        assert "the event that it goes on with is too large: 16.2 MiB of JSON; the limit is 16.0 MiB" in refused.reason


async def test_a_host_that_dies_is_known_at_once(bench: Bench):
    host = Host(bench, bench.code(DAG_FILE))
    async with bench.running() as executor:
        await executor.launch([host.launch])
        host.tell(("waits", "dies"))
        ended = await bench.end_of(host.launch)
        assert (ended.state, ended.cause) == ("failed", "task")
        assert "exit code 7" in ended.reason


async def test_a_host_that_is_to_be_ended_cleans_up(bench: Bench):
    host = Host(bench, bench.code(DAG_FILE))
    async with bench.running() as executor:
        await executor.launch([host.launch])
        host.tell(("waits", "fires"))
        await host.outcome("fires")
        await executor.kill(host.launch.token, "it hangs")
        assert (await bench.end_of(host.launch)).reason == "it hangs"
    assert "cleaned waits" in host.log


async def test_a_host_outlives_the_scheduler_and_repeats_its_questions_to_the_next(bench: Bench):
    host = Host(bench, bench.code(DAG_FILE))
    executor = bench.executor()
    await executor.start(1)
    await executor.launch([host.launch])
    await bench.until(lambda: bench.requests, "the host asks")
    await executor.close()
    executor = bench.executor()
    assert host.launch.token in (await executor.start(2)).running
    host.tell(("fires",))
    assert (await host.outcome("fires")).kind == "event"
    await executor.drain(datetime.now(UTC))
    await executor.close()


@pytest.mark.parametrize("code", [CodeVersion("", "")])
async def test_asynscheds_own_triggers_need_no_code_of_a_dag_file(bench: Bench, code: CodeVersion):
    host = Host(bench, code)
    path = "asynsched.authoring.triggers.temporal.DateTimeTrigger"
    moment = to_transport(datetime(2020, 1, 1, tzinfo=UTC))
    host.steps.put_nowait(TriggerWork("s", 1, (TriggerSpec("t", path, {"moment": moment}, "d", "r", "t", -1, 1),)))
    async with bench.running() as executor:
        await executor.launch([host.launch])
        assert (await host.outcome("t")).kind == "event"
        host.tell(end=True)
        await bench.end_of(host.launch)


async def test_a_task_defers_and_goes_on_in_another_process(bench: Bench):
    code = bench.code(DAG_FILE)
    async with bench.running() as executor:
        deferred = await bench.run(executor, bench.launch(code, "waits"))
        path = f"{DAG_MODULE_PREFIX}dag_file.Does"
        pair = {"__type__": "tuple", "__value__": [1, 2]}
        assert deferred.state == "deferred"
        assert deferred.deferral == Deferral(path, {"what": "fires"}, "go_on", {"pair": pair}, 60.0)
        length = {"__type__": "timedelta", "__value__": [0, 3600, 0]}
        resume = Resume("go_on", {"event": length, "pair": pair})
        ended = await bench.run(executor, bench.launch(code, "waits", resume=resume))
        assert value(ended) == [str(timedelta(hours=1)), [1, 2], 1]
        error = {"error": "Trigger timeout", "detail": "too slow", "traceback": []}
        ended = await bench.run(executor, bench.launch(code, "waits", resume=Resume("__fail__", error)))
        assert (ended.state, ended.reason) == ("failed", "TaskDeferralTimeout: Trigger timeout: too slow")
