"""Tasks that wait until a test lets them go on, and their remains."""

import os

import psutil

from asynsched.protocol.messages import CodeVersion, Launch
from tests.integration.tries.bench import Bench

DAG_FILE = """
import os, signal, subprocess, sys
from asynsched import DAG, Variable, task
HOME = {home!r}
with DAG("d"):
    @task
    def waits():
        with open(HOME + "/begun", "a") as file:
            file.write("x")
        return open(HOME + "/gate").read()

    @task
    def asks():
        return Variable.get("colour")

    @task
    def escapes():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with open(HOME + "/escaped", "w") as file:
            file.write(str(child.pid))
        return open(HOME + "/gate").read()

    @task
    def is_deaf():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return open(HOME + "/gate").read()

    waits(); asks(); escapes(); is_deaf()
"""


def code_of(bench: Bench) -> CodeVersion:
    os.mkfifo(bench.home / "gate")
    return bench.code(DAG_FILE.format(home=str(bench.home)))


async def leave_waiting(bench: Bench, code: CodeVersion, *beside: Launch) -> tuple[Launch, int]:
    """Make a scheduler begin the task that waits, see others through, and die.

    Returns the launch of the one that waits, and the process id of its try.
    """
    scheduler = bench.executor()
    await scheduler.start(1)
    launch = bench.launch(code, "waits")
    await scheduler.launch([launch])
    pid = (await bench.start_of(launch)).pid
    for other in beside:
        await bench.run(scheduler, other)
    await scheduler.close()
    return launch, pid


def begun(bench: Bench) -> int:
    return len((bench.home / "begun").read_text())


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
