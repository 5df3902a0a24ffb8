"""The memory of a try, most of which it shares with the process that forked it."""

import os
import signal

from tests.integration.tries.bench import Bench, replies, value

FIRST, SECOND = "ada-lovelace", "-1815-1852"
PASSWORD = "grace-hopper", "-1906-1992"
UNFIT = "import socket; kept = socket.socket()"
"""A file whose process cannot be forked: each try loads the file itself."""
LOOKS = """
import time
from pathlib import Path
from asynsched import DAG, Variable, task
{before}

def finds(first, backwards):
    '''Whether a text is anywhere in this process's memory. It is given in parts that make no copy of it.'''
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, access, *_ = line.split()
            if "r" not in access or line.rstrip().endswith(("[vvar]", "[vvar_vclock]", "[vsyscall]")):
                continue
            start, end = (int(part, 16) for part in place.split("-"))
            memory.seek(start)
            found = b""
            try:
                while len(found) < end - start:
                    found += memory.read(end - start - len(found))
            except OSError:  # nothing is there
                pass
            at = found.find(first)
            while at >= 0:
                if found[at + len(first) : at + len(first) + len(backwards)][::-1] == backwards:
                    return True
                at = found.find(first, at + 1)
    return False

def secrets():
    return [finds(b"ada-lovelace", b"2581-5181-"), finds(b"grace-hopper", b"2991-6091-")]

with DAG("d"):
    @task
    def takes():
        kept = Variable.get("api_token")
        while not Path({gate!r}).exists():
            time.sleep(0.01)
        return secrets()

    @task
    def looks():
        return secrets()

    takes(), looks()
"""


async def test_a_try_finds_no_secret_of_another_and_no_database_in_its_memory(bench: Bench, monkeypatch):
    monkeypatch.setenv("ASYNSCHED_DATABASE", f"postgresql://u:{''.join(PASSWORD)}@db/x")
    bench.answers["variable_get"] = replies(FIRST + SECOND)
    gate = bench.home / "gate"
    first, second, lone, last = [
        bench.code(LOOKS.format(before=before, gate=str(gate)), f"{name}.py")
        for name, before in [("first", ""), ("second", "1  # context"), ("lone", UNFIT), ("last", "2")]
    ]
    async with bench.running() as executor:
        # While it runs, the keeper knows its secret.
        takes = bench.launch(first, "takes")
        await executor.launch([takes])
        await bench.until(lambda: bench.requests, "it has asked")
        others = [bench.launch(code, "looks", try_number=n) for n, code in enumerate((first, second, lone))]
        await executor.launch(others)
        found = [value(await bench.end_of(launch)) for launch in others]
        [zygote], _ = bench.children_of_keeper()
        os.kill(zygote.pid, signal.SIGKILL)
        found.append(value(await bench.run(executor, bench.launch(last, "looks", try_number=3))))
        found.append(value(await bench.run(executor, bench.launch(lone, "looks", try_number=4))))
        [another], _ = bench.children_of_keeper()
        gate.touch()
        its_own = value(await bench.end_of(takes))
    assert its_own == [True, False]
    assert found == [[False, False]] * 5
    assert another.pid != zygote.pid
    assert "rehearsal" not in bench.keeper_log(), "the rehearsal is not logged"
    assert bench.processes() == []
