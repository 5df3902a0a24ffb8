"""What a try costs, counted instead of timed: forks, imports, connections."""

import os
import signal

import pytest

from tests.integration.tries.bench import Bench, value
from tests.support.waiting import eventually

WATCHED = """
import os, sys
from asynsched import DAG, task

trace = os.open({trace!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event, arguments):
    if event in ("import", "os.fork", "os.posix_spawn", "os.exec", "subprocess.Popen", "socket.connect"):
        what = arguments[0] if event == "import" else ""
        os.write(trace, f"{{os.getpid()}} {{event}} {{what}}\\n".encode())

with DAG("d"):
    @task
    def say({parameters}):
        return os.getppid()
    say({arguments})

sys.addaudithook(note)
"""


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [("", ""), ("name='x', run_id=None", ""), ("**context", ""), ("day", "'{{ run_id }}'")],
)
async def test_a_try_is_one_fork_of_the_loaded_file_that_imports_nothing_and_connects_to_nothing(
    bench: Bench, parameters, arguments
):
    trace = bench.home / "trace"
    code = bench.code(WATCHED.format(trace=str(trace), parameters=parameters, arguments=arguments))
    async with bench.running() as executor:
        template = value(await bench.run(executor, bench.launch(code, "say")))
        await eventually(lambda: trace.read_text().count("os.fork") == 2, "one is ready for the next try")
        before = trace.read_text()
        tries = [bench.launch(code, "say", try_number=number) for number in range(2, 7)]
        assert [value(await bench.run(executor, launch)) for launch in tries] == [template] * 5
        await eventually(lambda: trace.read_text().count("os.fork") == 7, "one is ready for the next try")
    assert trace.read_text().removeprefix(before).splitlines() == [f"{template} os.fork "] * 5


HEAVY = ("jinja2", "pendulum", "subprocess", "tempfile")
LOADED = f"""
import sys
from asynsched import DAG, task

with DAG("d"):
    @task
    def loaded(%s):
        return [name for name in ({", ".join(f"'{name[:2]}' '{name[2:]}'" for name in HEAVY)}) if name in sys.modules]
    loaded()
"""


async def test_only_files_that_may_need_it_are_forked_from_a_process_that_has_loaded_more(bench: Bench):
    plain, full = bench.code(LOADED % "", "plain.py"), bench.code(LOADED % "**context", "full.py")
    async with bench.running() as executor:
        assert value(await bench.run(executor, bench.launch(plain, "loaded"))) == []
        assert value(await bench.run(executor, bench.launch(full, "loaded", try_number=2))) == list(HEAVY)


async def test_a_file_finds_all_of_it_though_the_process_that_has_loaded_it_was_killed(bench: Bench):
    one, another = (bench.code(LOADED % parameters, f"{parameters}.py") for parameters in ("**context", "**kwargs"))
    async with bench.running() as executor:
        await bench.run(executor, bench.launch(one, "loaded"))
        [zygote] = [process for process in bench.processes() if process.name() == "zygote-full"]
        os.kill(zygote.pid, signal.SIGKILL)
        assert value(await bench.run(executor, bench.launch(another, "loaded", try_number=2))) == list(HEAVY)
        assert value(await bench.run(executor, bench.launch(one, "loaded", try_number=3))) == list(HEAVY)
    assert bench.processes() == []


async def test_files_run_also_where_what_they_may_need_cannot_be_loaded(bench: Bench, monkeypatch):
    (bench.home / "jinja2.py").write_text("raise ImportError('half upgraded')")
    monkeypatch.setenv("PYTHONPATH", str(bench.home))
    codes = [bench.code(LOADED % parameters, f"{parameters}.py") for parameters in ("**context", "", "**kwargs")]
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "loaded", try_number=n)) for n, code in enumerate(codes)]
    assert [end.state for end in ends] == ["success"] * 3
    assert "half upgraded" in bench.keeper_log()
    assert "was not ready in time, or has died before" in bench.keeper_log()
