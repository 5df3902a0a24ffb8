"""What a try costs, counted instead of timed: forks, imports, connections."""

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
    def say(**context):
        return os.getppid()
    say()

sys.addaudithook(note)
"""


async def test_a_try_is_one_fork_of_the_loaded_file_that_imports_nothing_and_connects_to_nothing(bench: Bench):
    trace = bench.home / "trace"
    code = bench.code(WATCHED.format(trace=str(trace)))
    async with bench.running() as executor:
        template = value(await bench.run(executor, bench.launch(code, "say")))
        await eventually(lambda: trace.read_text().count("os.fork") == 2, "one is ready for the next try")
        before = trace.read_text()
        tries = [bench.launch(code, "say", try_number=number) for number in range(2, 7)]
        assert [value(await bench.run(executor, launch)) for launch in tries] == [template] * 5
        await eventually(lambda: trace.read_text().count("os.fork") == 7, "one is ready for the next try")
    assert trace.read_text().removeprefix(before).splitlines() == [f"{template} os.fork "] * 5
