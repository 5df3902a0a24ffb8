"""Any process may die, at any moment: lost tries, surviving tries, and no second start."""

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from asynsched.clock import Clock
from asynsched.errors import ExecutorError
from asynsched.executors import keeper_connection, local
from asynsched.protocol.frames import DEEPEST
from asynsched.protocol.messages import PROTOCOL_VERSION
from tests.integration.tries.bench import Bench, replies, value
from tests.integration.tries.waiting_tasks import begun, code_of, is_alive, leave_waiting
from tests.support.waiting import eventually, until


async def test_a_scheduler_that_comes_back_takes_its_tries_back(bench: Bench, code):
    finished = bench.launch(code, "asks")
    running, _ = await leave_waiting(bench, code, finished)
    assert value(bench.ended[finished.token][0]) is None
    bench.ended.clear()

    second = bench.executor()
    held = await second.start(2)
    assert (held.running, held.starting, held.ended) == ({running.token}, frozenset(), {finished.token})
    assert len(bench.ended[finished.token]) == 1, "an unacknowledged end is reported again"
    await second.acknowledge([finished.token])
    await second.launch([running, finished])
    (bench.home / "gate").write_text("through")
    assert value(await bench.end_of(running)) == "through"
    await second.drain(Clock().now())
    await second.close()
    assert begun(bench) == 1


async def test_a_launch_that_is_repeated_runs_once(bench: Bench, code):
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        for _ in range(3):
            await executor.launch([launch])
            executor._connection.send(launch)
        await bench.start_of(launch)
        (bench.home / "gate").write_text("through")
        await bench.end_of(launch)
        executor._connection.send(launch)
        await bench.run(executor, bench.launch(code, "asks"))
        assert begun(bench) == 1
        assert len(bench.ended[launch.token]) == 1
        await executor.close()
    bench.ended.clear()
    async with bench.running():
        assert value(bench.ended[launch.token][0]) == "through"


async def test_a_try_is_ended_though_the_connection_broke_meanwhile(bench: Bench, code, monkeypatch):
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        await executor.launch([launch])
        await bench.start_of(launch)
        connection = executor._connection
        with monkeypatch.context() as on_its_way:
            on_its_way.setattr(connection, "send", lambda _: None)
            await executor.kill(launch.token, "it was marked as failed")
            connection.close()
        assert (await bench.end_of(launch)).reason == "it was marked as failed"


async def test_a_try_begins_when_no_process_of_the_one_before_is_left(bench: Bench, code):
    async with bench.running() as executor:
        first, second = (bench.launch(code, "waits", try_number=number) for number in (1, 2))
        await executor.launch([first])
        pid = (await bench.start_of(first)).pid
        await eventually(lambda: (bench.home / "begun").exists() and begun(bench), "the task's first line")
        os.kill(pid, signal.SIGSTOP)
        await executor.launch([second])
        assert value(await bench.run(executor, bench.launch(code, "asks"))) is None, "other tasks do not wait"
        assert begun(bench) == 1
        await executor.kill(first.token, "it was marked as failed")
        await bench.start_of(second)
        assert bench.ended[first.token][0].reason == "it was marked as failed"
        assert not is_alive(pid)
        (bench.home / "gate").write_text("through")
        assert value(await bench.end_of(second)) == "through"
        assert begun(bench) == 2


async def test_a_try_that_is_ended_while_it_waits_for_its_turn_never_begins(bench: Bench, code):
    async with bench.running() as executor:
        first, second, third = (bench.launch(code, "waits", try_number=number) for number in (1, 2, 3))
        await executor.launch([first])
        await bench.start_of(first)
        await executor.launch([second, third])
        await executor.kill(second.token, "it was cleared")
        assert (await bench.end_of(second)).reason == "it was cleared"
        (bench.home / "gate").write_text("through")
        await bench.end_of(first)
        await bench.start_of(third)
        (bench.home / "gate").write_text("through")
        assert value(await bench.end_of(third)) == "through"
        assert begun(bench) == 2


async def test_a_request_is_answered_across_a_restart_of_the_scheduler(bench: Bench, code):
    first = bench.executor()
    silent = asyncio.Event()

    async def never(request):
        bench.requests.append(request)
        bench._changed.set()
        await silent.wait()

    object.__setattr__(first.context, "answer", never)
    await first.start(1)
    launch = bench.launch(code, "asks")
    await first.launch([launch])
    await bench.until(lambda: bench.requests, "the request")
    await first.close()
    bench.answers["variable_get"] = replies("green")
    async with bench.running(lease_epoch=1):
        assert value(await bench.end_of(launch)) == "green"
    assert [request.request_id for request in bench.requests] == [1, 1]


async def test_a_killed_keeper_takes_its_tries_with_it_and_another_reports_them(bench: Bench, code):
    async with bench.running() as executor:
        running, escaping = bench.launch(code, "waits"), bench.launch(code, "escapes")
        await executor.launch([running, escaping])
        pids = [(await bench.start_of(launch)).pid for launch in (running, escaping)]
        until(lambda: (bench.home / "escaped").exists() and (bench.home / "escaped").read_text(), "the child")
        escaped = int((bench.home / "escaped").read_text())
        keeper = bench.keeper().pid
        os.kill(keeper, signal.SIGKILL)
        ends = [await bench.end_of(launch) for launch in (running, escaping)]
        assert {(end.state, end.cause) for end in ends} == {("failed", "machine")}
        assert "keeper" in ends[0].reason
        assert "keeper" in bench.log("waits")
        assert not [pid for pid in [*pids, escaped] if is_alive(pid)], "also processes that had left the try's session"
        assert bench.keeper().pid != keeper
        assert value(await bench.run(executor, bench.launch(code, "asks"))) is None
    assert begun(bench) == 1


async def test_tries_die_with_their_keeper_though_nobody_is_left_to_see_it(bench: Bench, code):
    _, pid = await leave_waiting(bench, code)
    os.kill(bench.keeper().pid, signal.SIGKILL)
    until(lambda: not is_alive(pid) and not bench.processes(), "the try and its template are gone")


async def test_what_a_dead_keeper_had_not_heard_of_is_launched_by_the_next(bench: Bench, code):
    async with bench.running() as executor:
        os.kill(bench.keeper().pid, signal.SIGKILL)
        ended = await bench.run(executor, bench.launch(code, "asks"))
    assert (ended.state, ended.cause) == ("success", "task")


async def test_a_keeper_that_is_killed_while_it_starts_is_made_up_for(bench: Bench, code, monkeypatch):
    kill = [True]

    def start_and_kill(*arguments, **options):
        start(*arguments, **options)
        if kill:
            kill.clear()
            os.kill(bench.keeper().pid, signal.SIGKILL)
            until(lambda: not bench.processes(), "the keeper is gone")

    start = local.start_keeper
    monkeypatch.setattr(local, "start_keeper", start_and_kill)
    async with bench.running() as executor:
        assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
    assert not kill


async def test_a_home_with_a_very_long_path_works(tmp_path):
    bench = Bench(tmp_path / ("long" * 40))
    code = code_of(bench)
    try:
        async with bench.running() as executor:
            assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
    finally:
        bench.end_processes()


async def test_a_keeper_that_cannot_start_is_reported_in_one_line(bench: Bench):
    (bench.home / "attempts").rmdir()
    (bench.home / "attempts").write_text("in the way")
    with pytest.raises(ExecutorError, match=r"the keeper could not be started: .*attempts"):
        await bench.executor().start(1)


async def test_a_keeper_goes_on_with_the_tries_of_a_scheduler_that_was_upgraded(bench: Bench, code, monkeypatch):
    running, _ = await leave_waiting(bench, code)

    monkeypatch.setattr(keeper_connection, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    monkeypatch.setattr(keeper_connection, "encode_frame", frame_of_a_later_version)
    async with bench.running(lease_epoch=2) as upgraded:
        assert value(await bench.run(upgraded, bench.launch(code, "asks"))) is None
        (bench.home / "gate").write_text("through")
        assert value(await bench.end_of(running)) == "through"
    assert begun(bench) == 1


def frame_of_a_later_version(message: Struct) -> bytes:
    """Return a frame with an unknown field, after one of an unknown kind."""
    frames = b""
    for fields in ({"type": "greeting", "words": "hello"}, msgspec.to_builtins(message) | {"zone": {"of": "later"}}):
        body = msgspec.json.encode(fields)
        frames += len(body).to_bytes(4, "big") + body
    return frames


async def test_a_run_whose_conf_is_nested_too_deeply_fails_and_others_go_on(bench: Bench, code):
    def conf(levels: int) -> dict[str, Any]:
        value: Any = "bottom"
        for _ in range(levels):
            value = [value]
        return {"value": value}

    outside = 3  # the launch, its run, and the conf
    confs = [conf(levels - outside) for levels in (690, DEEPEST + 1, DEEPEST)]
    async with bench.running() as executor:
        launches = [bench.launch(code, "asks", try_number=n, conf=conf) for n, conf in enumerate(confs)]
        waits = bench.launch(code, "waits")
        await executor.launch([*launches, waits])
        await bench.start_of(waits)
        refused = [await bench.end_of(launch) for launch in launches[:2]]
        assert [end.reason for end in refused] == [
            f"its launch cannot be sent: a message with lists and objects nested {levels} deep; the limit is {DEEPEST}"
            for levels in (690, DEEPEST + 1)
        ]
        assert not any(end.retry for end in refused)
        assert (await bench.end_of(launches[2])).state == "success"
        (bench.home / "gate").write_text("through")
        assert value(await bench.end_of(waits)) == "through"
