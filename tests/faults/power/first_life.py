"""The life before the power cut: `python -m tests.faults.power.first_life ROOT`.

It works on the folders `home` and `dags` of ROOT. Each line of `world/promised` is an action that was confirmed to a
user; each of `world/begun` a task whose code has begun. Both stand for the world outside, which a power cut does not
undo.
"""

import os
import subprocess
import sys
from pathlib import Path

import anyio

from asynsched import Scheduler
from asynsched.settings import Settings
from asynsched.store.dags.dags import get_dag
from asynsched.store.engines.opening import open_database

DAG_FILE = """
import os, time
from asynsched import DAG, Connection, Variable, get_current_context, task
from released import VERSION

def begins():
    ti = get_current_context()["ti"]
    line = f"{{ti.dag_id}} {{ti.run_id}} {{ti.task_id}} {{ti.try_number}} {{VERSION}} {version}\\n"
    file = os.open(os.environ["BEGUN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
    print("begins", line)

with DAG("chain", tags=["v{version}"]):
    @task
    def first():
        begins()
        return 1

    @task
    def second(number):
        begins()
        time.sleep(0.1)
        return number + 1

    @task
    def third(number):
        begins()
        assert number == 2
        assert Connection.get("safe").password == "secret"
        assert Variable.get("wanted") == "something"

    third(second(first()))
"""
HELPER = "VERSION = {version}\n"
N_RUNS = 8


def release(root: Path, version: int) -> None:
    """Write a version of the DAG file and of its imports."""
    (root / "dags" / "released.py").write_text(HELPER.format(version=version))
    (root / "dags" / "chain.py").write_text(DAG_FILE.format(version=version))


def options(root: Path) -> dict[str, object]:
    """Return the arguments of a Scheduler of this site."""
    return {"dags": root / "dags", "settings": Settings(home=str(root / "home"), max_active_runs_per_dag=3)}


def promise(root: Path, *words: str) -> None:
    file = os.open(root / "world" / "promised", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{' '.join(words)}\n".encode())
    os.close(file)


def command(root: Path, *words: str) -> None:
    env = os.environ | {"ASYNSCHED_HOME": str(root / "home")}
    subprocess.run([sys.executable, "-m", "asynsched", *words], env=env, check=True, stdout=subprocess.DEVNULL)


async def eventually_known(scheduler: Scheduler, tag: str) -> None:
    """Wait until runs that are created have the version with this tag."""
    database = await open_database(scheduler.settings.database_url)
    with anyio.fail_after(30):
        # A parse has no event that another program can await.
        while (found := await database.read(get_dag, "chain")) is None or tag not in found.tags:  # noqa: ASYNC110
            await anyio.sleep(0.02)
    await database.close()


async def work(root: Path) -> None:
    scheduler = Scheduler(**options(root))  # type: ignore[arg-type] # they fit
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.run("chain", run_id="r0")
        promise(root, "ended", "r0")
        for number in range(1, N_RUNS):
            await scheduler.trigger("chain", run_id=f"r{number}")
            promise(root, "run", f"r{number}")
            if number == N_RUNS // 2:
                release(root, 2)
                await eventually_known(scheduler, "v2")
        await scheduler.wait_idle()
        for number in range(1, N_RUNS):
            promise(root, "ended", f"r{number}")
        scheduler.request_stop()


def main() -> None:
    root = Path(sys.argv[1])
    for name in ("dags", "world"):
        (root / name).mkdir()
    release(root, 1)
    command(root, "connections", "add", "safe", "--conn-type", "http", "--conn-password", "secret")
    promise(root, "connection", "safe")
    command(root, "variables", "set", "wanted", "something")
    promise(root, "variable", "wanted")
    anyio.run(work, root)


if __name__ == "__main__":
    main()
