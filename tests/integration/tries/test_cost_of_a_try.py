"""The cost of a try, counted instead of timed: forks, imports, connections."""

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
async def test_a_try_is_one_fork_that_imports_and_connects_to_nothing(bench: Bench, parameters, arguments):
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


async def test_only_files_that_may_need_jinja_are_forked_with_jinja_loaded(bench: Bench):
    plain, full = bench.code(LOADED % "", "plain.py"), bench.code(LOADED % "**context", "full.py")
    async with bench.running() as executor:
        assert value(await bench.run(executor, bench.launch(plain, "loaded"))) == []
        assert value(await bench.run(executor, bench.launch(full, "loaded", try_number=2))) == list(HEAVY)


@pytest.mark.parametrize("name", ["zygote", "zygote-full"])
async def test_files_find_the_same_loaded_after_their_zygote_was_killed(bench: Bench, name):
    codes = [bench.code(LOADED % parameters, f"{n}.py") for n, parameters in enumerate(("", "**context", "a=1", "**k"))]
    async with bench.running() as executor:
        found = [value(await bench.run(executor, bench.launch(code, "loaded", try_number=0))) for code in codes[:2]]
        [zygote] = bench.called(name)
        os.kill(zygote.pid, signal.SIGKILL)
        # A request that it does not answer any more would make the plain zygote stand in for the full one.
        await eventually(lambda: not zygote.is_running(), "it is reaped")
        for code in codes:
            found.append(value(await bench.run(executor, bench.launch(code, "loaded"))))
    assert found == [[], list(HEAVY)] * 3
    assert bench.processes() == []


async def test_files_run_also_where_what_they_may_need_cannot_be_loaded(bench: Bench, monkeypatch):
    (bench.home / "jinja2.py").write_text("raise ImportError('half upgraded')")
    monkeypatch.setenv("PYTHONPATH", str(bench.home))
    codes = [bench.code(LOADED % parameters, f"{parameters}.py") for parameters in ("**context", "", "**kwargs")]
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "loaded", try_number=n)) for n, code in enumerate(codes)]
    assert [end.state for end in ends] == ["success"] * 3
    assert "half upgraded" in bench.keeper_log()
    assert "Tasks import Jinja and pendulum themselves" in bench.keeper_log()


DEADLY = """
import os
if open("/proc/self/comm").read() == "zygote-full\\n":
    os._exit(1)
raise ImportError("damaged")
"""


async def test_files_run_also_where_the_full_zygote_dies_as_it_starts(bench: Bench, monkeypatch):
    (bench.home / "jinja2.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(bench.home))
    codes = [bench.code(LOADED % parameters, f"{parameters}.py") for parameters in ("**context", "**kwargs")]
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "loaded", try_number=n)) for n, code in enumerate(codes)]
    assert [end.state for end in ends] == ["success"] * 2
    assert bench.keeper_log().count("The plain zygote stands in for the full zygote") == 1
