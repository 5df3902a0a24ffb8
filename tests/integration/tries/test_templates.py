"""Loading a version of a DAG file once, and forking it for each try."""

import os
import signal

import psutil
import pytest

from asynsched.protocol.messages import Reply
from tests.integration.tries.bench import Bench, value

NATIVE_THREAD = "import ctypes as c; n = c.CDLL(None); n.pthread_create(c.byref(c.c_ulong()), None, n.pause, None)"
"""A thread that Python does not know, and that knows nothing of forks."""
SIMPLE = """
from asynsched import DAG, task
{before}
with DAG("d"):
    @task
    def say():
        return {result}
    @task
    def other():
        return "other"
    say(); other()
"""


def dag_file(before: str = "", result: str = "'said'") -> str:
    return SIMPLE.format(before=before, result=result)


async def test_many_tries_import_a_file_once_and_the_first_log_has_the_output(bench: Bench):
    mark = bench.home / "imports"
    code = bench.code(dag_file(f"print('importing'); open({str(mark)!r}, 'a').write('x')"))
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "say", try_number=number)) for number in (1, 2, 3)]
    assert [value(end) for end in ends] == ["said"] * 3
    assert mark.read_text() == "x"
    assert [bench.log("say", number).count("importing\n") for number in (1, 2, 3)] == [1, 0, 0]


async def test_tries_share_imported_objects_but_not_random_draws(bench: Bench):
    code = bench.code(dag_file("import random; own = random.Random()", "[own.random(), random.random()]"))
    async with bench.running() as executor:
        drawn = [value(await bench.run(executor, bench.launch(code, "say", try_number=number))) for number in (1, 2)]
    assert drawn[0][0] == drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


async def test_a_run_keeps_its_version_after_the_file_has_changed(bench: Bench):
    first = bench.code(dag_file(result="1"))
    async with bench.running() as executor:
        assert value(await bench.run(executor, bench.launch(first, "say"))) == 1
        second = bench.code(dag_file(result="2"))
        (bench.dags / "dag_file.py").unlink()
        assert [value(await bench.run(executor, bench.launch(code, "say"))) for code in (second, first)] == [2, 1]


DAMAGES = {
    "missing": lambda source: source.unlink(),
    "empty": lambda source: source.write_bytes(b""),
    "cut off": lambda source: source.write_bytes(source.read_bytes()[:-20]),
    "zeroed": lambda source: source.write_bytes(b"\0" * source.stat().st_size),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("before", ["", NATIVE_THREAD], ids=["forked", "loaded for each try"])
async def test_a_damaged_source_is_taken_from_the_database_and_written_again(bench: Bench, damage, before):
    code = bench.code(dag_file(before))
    source = bench.home / "sources" / f"{code.sources[0].content_hash}.py"
    text = source.read_text()
    bench.answers["source_get"] = lambda request: Reply(request.token, request.request_id, value=text)
    DAMAGES[damage](source)
    async with bench.running() as executor:
        assert value(await bench.run(executor, bench.launch(code, "say"))) == "said"
        assert source.read_text() == text
        assert value(await bench.run(executor, bench.launch(code, "other"))) == "other"
    assert [request.arguments for request in bench.requests] == [{"content_hash": code.sources[0].content_hash}]


async def test_a_damaged_source_that_is_not_in_the_database_fails_with_advice(bench: Bench):
    code = bench.code(dag_file("1 / 0  # never run"))
    source = bench.home / "sources" / f"{code.sources[0].content_hash}.py"
    source.write_bytes(b"1 / 0")
    async with bench.running() as executor:
        bench.answers["source_get"] = lambda request: Reply(request.token, request.request_id, found=False)
        missing = await bench.run(executor, bench.launch(code, "say"))
        bench.answers["source_get"] = lambda request: Reply(request.token, request.request_id, value="1 / 0")
        damaged = await bench.run(executor, bench.launch(code, "other"))
    assert missing.reason.startswith(f"dag_file.py cannot be loaded: the source {source} of dag_file.py")
    assert "the database does not give it either" in missing.reason
    assert "the copy in the database is damaged, too" in damaged.reason
    for end in (missing, damaged):
        assert f"the version {code.version_hash[:12]}" in end.reason
        assert "`asynsched dags reparse DAG_ID`" in end.reason
        assert end.state == "failed"
    assert missing.reason in bench.log("say")


@pytest.mark.parametrize(
    ("before", "reason", "cause"),
    [
        ("raise ValueError('broken here')", "dag_file.py cannot be imported: ValueError: broken here", "task"),
        ("import sys; sys.exit(4)", "dag_file.py cannot be imported: SystemExit: 4", "task"),
        ("import os; os._exit(5)", "exit code 5", "task"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV", "task"),
        ("import os\nif os.fork() == 0: raise ValueError('the child goes on')", "", "task"),
        ("DAG = lambda name: __import__('asynsched').DAG('another')", "makes no DAG 'd'", "task"),
    ],
)
async def test_a_file_that_breaks_when_it_is_run_fails_its_tries_and_no_others(bench: Bench, before, reason, cause):
    good = bench.code(dag_file(), "good.py")
    broken = bench.code(dag_file(before), "dag_file.py")
    async with bench.running() as executor:
        launches = [bench.launch(broken, "say"), bench.launch(broken, "other"), bench.launch(good, "say", try_number=2)]
        await executor.launch(launches)
        first, second, third = [await bench.end_of(launch) for launch in launches]
    assert value(third) == "said"
    for ended in (first, second):
        assert (ended.state, ended.cause) == ("failed" if reason else "success", cause)
        assert reason in ended.reason
    assert reason in bench.log("say")
    if "broken here" in reason:
        assert 'dag_file.py", line 3, in <module>' in bench.log("say")
        assert 'dag_file.py", line 3, in <module>' in bench.log("other")


async def test_a_file_that_takes_too_long_to_import_fails_its_tries(bench: Bench):
    parse = type(bench.settings.parse)(import_timeout=0.3)
    bench.settings = type(bench.settings)(parse=parse, lease=bench.settings.lease)
    code = bench.code(dag_file("while True: pass"))
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "say"))
    assert (ended.state, ended.cause) == ("failed", "task")
    assert ended.reason == "dag_file.py took longer than 0.3 s to import"


@pytest.mark.parametrize(
    "before",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
        "import socket\nkept = socket.socket()",
        "import asyncio\nloop = asyncio.new_event_loop()",
        NATIVE_THREAD,
    ],
)
async def test_a_file_that_cannot_be_forked_is_loaded_by_each_try(bench: Bench, before):
    mark = bench.home / "imports"
    code = bench.code(dag_file(f"open({str(mark)!r}, 'a').write('x')\n{before}"))
    async with bench.running() as executor:
        launches = [bench.launch(code, name) for name in ("say", "other", "say")]
        await executor.launch(launches[:2])
        ends = [await bench.end_of(launch) for launch in launches[:2]]
        ends.append(await bench.run(executor, launches[2]))
    assert [value(end) for end in ends] == ["said", "other", "said"]
    assert mark.read_text() == "xxxx", "once to find out, then for each try"
    assert bench.processes() == []


async def test_a_library_whose_threads_survive_forks_is_imported_once(bench: Bench):
    mark = bench.home / "imports"
    before = f"import os, numpy; open({str(mark)!r}, 'a').write('x')"
    code = bench.code(
        dag_file(before, "[float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()), os.getppid()]")
    )
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "say", try_number=number)) for number in (1, 2, 3)]
    values, parents = zip(*(value(end) for end in ends), strict=True)
    assert values == (27e6,) * 3
    assert len(set(parents)) == 1
    assert mark.read_text() == "x"


async def test_a_template_that_is_killed_is_replaced_and_its_running_tries_go_on(bench: Bench):
    gate = bench.home / "gate"
    os.mkfifo(gate)
    code = bench.code(dag_file(result=f"open({str(gate)!r}).read()"))
    async with bench.running() as executor:
        running = bench.launch(code, "say")
        await executor.launch([running])
        os.kill(psutil.Process((await bench.start_of(running)).pid).ppid(), signal.SIGKILL)
        assert value(await bench.run(executor, bench.launch(code, "other"))) == "other"
        gate.write_text("through")
        assert value(await bench.end_of(running)) == "through"
        dying = bench.launch(code, "say", try_number=2)
        await executor.launch([dying])
        pid = (await bench.start_of(dying)).pid
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        ended = await bench.end_of(dying)
    assert (ended.state, ended.cause) == ("failed", "machine")
    assert bench.processes() == []


LIES = """
import os, socket
from asynsched.protocol.frames import encode_frame
from sandbox.template import Exited
for descriptor in range(3, 100):
    try:
        socket.socket(fileno=os.dup(descriptor)).sendall(encode_frame(Exited({pid}, 0)))
    except OSError:
        pass
"""
"""Writes on every socket that a template has that a process has exited."""


async def test_a_file_that_reports_the_exit_of_anothers_try_is_not_believed(bench: Bench):
    gate = bench.home / "gate"
    os.mkfifo(gate)
    good = bench.code(dag_file(result=f"open({str(gate)!r}).read()"), "good.py")
    async with bench.running() as executor:
        running = bench.launch(good, "say")
        await executor.launch([running])
        pid = (await bench.start_of(running)).pid
        liar = bench.code(dag_file(LIES.format(pid=pid)), "liar.py")
        assert value(await bench.run(executor, bench.launch(liar, "other"))) == "other"
        assert running.token not in bench.ended
        gate.write_text("through")
        assert value(await bench.end_of(running)) == "through"
