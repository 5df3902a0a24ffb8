"""The titles of a scheduler's processes in `ps`: each names its part, and none contains a secret."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.up import MARK, Site, title_of

COLD = True

DAG_FILE = """
    import asyncio, os, time
    from pathlib import Path
    from asynsched import DAG, BaseOperator, BaseTrigger, task

    class Waits(BaseTrigger):
        def serialize(self):
            return f"{__name__}.Waits", {}

        async def run(self):
            await asyncio.sleep(600)
            yield

    class Defers(BaseOperator):
        def execute(self, context):
            self.defer(trigger=Waits(), method_name="execute")

    with DAG("etl"):

        @task
        def load(n):
            Path(os.environ["BEGUN"]).touch()
            time.sleep(600)

        load.expand(n=[1])
        Defers(task_id="defers")
"""
HANGS = "import time\nfrom asynsched import DAG\ntime.sleep(600)\n"
TITLES = {
    "asynsched: keeper", "asynsched: zygote", "asynsched: full zygote", "asynsched: template of sales/etl.py",
    "asynsched: ready for a task of sales/etl.py", "asynsched: try 1 of etl.load[0], run r",
    "asynsched: triggers of sales/etl.py", "asynsched: parse server", "asynsched: guardian of parses",
    "asynsched: parse of hangs.py",
}  # fmt: skip


def test_every_process_shows_its_part_its_home_and_no_secret(tmp_path):
    hanging = {"ASYNSCHED_PARSE__TIMEOUT": "300", "ASYNSCHED_PARSE__IMPORT_TIMEOUT": "300"}
    site = Site(tmp_path, env={"BEGUN": str(tmp_path / "begun"), "ASYNSCHED_SHUTDOWN_GRACE": "0", **hanging})
    site.write("sales/etl.py", DAG_FILE)
    with site.up():
        site.wait_for_dag("etl")
        site.run("dags", "trigger", "etl", "--run-id", "r", "--conf", '{"password": "hunter22"}')
        site.write("hangs.py", HANGS)
        site.until(lambda: titles(site).keys() >= TITLES, "all of them are there")
        site.until((tmp_path / "begun").exists, "the task has begun")
        assert titles(site).keys() - TITLES == {sys.executable}, "the scheduler's own process has none"
        commands = [" ".join(titles(site)[title].cmdline()) for title in TITLES]
        assert [command for command in commands if str(tmp_path) not in command or "hunter22" in command] == []
        trying = titles(site)["asynsched: try 1 of etl.load[0], run r"]
        assert trying.environ()[MARK] == site.mark, "the environment is left as it was"


def titles(site: Site) -> dict[str, psutil.Process]:
    return {title_of(process): process for process in site.processes()}


def test_what_does_not_fit_is_cut(tmp_path):
    program = "from sandbox.processes import set_title\nset_title('é' * 500, '--home', '/the/home')"
    program += "\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", program, "x" * 100]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.stdin.write(b"\n")
        process.stdin.close()
    assert len(shown) == sum(len(os.fsencode(word)) + 1 for word in command)
    assert shown.startswith("asynsched: éé".encode())
    assert shown.endswith(b"\0--home\0/the/home\0")
