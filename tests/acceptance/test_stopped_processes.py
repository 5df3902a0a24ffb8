"""Processes that stand still for longer than every lease, and go on: nothing is executed twice at once."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.up import Site, Up

COLD = True

LEASE = {"DURATION": "2", "RENEW_INTERVAL": "0.5", "GRACE": "0.5", "KILL_TIME": "0.5"}
LONGER_THAN_ALL = 4.5
LEDGER = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task

    with DAG("ledger"):
        @task(retries=0)
        def writes():
            def mark(what):
                with Path(os.environ["MARKS"]).open("a") as marks:
                    marks.write(f"{what} {os.getpid()}\\n")

            for line in Path(os.environ["MARKS"]).read_text().splitlines():
                what, pid = line.split()
                if what == "begin" and Path(f"/proc/{pid}").exists():
                    mark("overlap")
            mark("begin")
            while not Path(os.environ["GATE"]).exists():
                time.sleep(0.01)
            mark("end")

        writes()
"""


def only_the_scheduler(site: Site, up: Up) -> list[psutil.Process]:
    return [psutil.Process(up.process.pid)]


def the_whole_machine(site: Site, up: Up) -> list[psutil.Process]:
    """As when a machine is suspended: the clock that leases are measured by goes on."""
    return site.processes()


@pytest.mark.parametrize("who", [only_the_scheduler, the_whole_machine])
def test_processes_stopped_beyond_all_leases_go_on_and_run_nothing_twice(
    tmp_path, who: Callable[[Site, Up], list[psutil.Process]]
):
    site = Site(tmp_path)
    site.env |= {f"ASYNSCHED_LEASE__{name}": text for name, text in LEASE.items()}
    marks = Path(tmp_path / "marks")
    marks.touch()
    site.env |= {"MARKS": str(marks), "GATE": str(tmp_path / "gate")}
    site.write("ledger.py", LEDGER)
    with site.up() as up:
        site.wait_for_dag("ledger")
        site.run("dags", "trigger", "ledger", "--run-id", "r")
        site.until(lambda: "begin" in marks.read_text(), "the task has begun")
        first = marks.read_text().split()[1]
        stopped = who(site, up)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        over = time.monotonic() + LONGER_THAN_ALL
        site.until(lambda: time.monotonic() > over, "all leases are over")
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        site.until(lambda: marks.read_text().count("begin") > 1, "the task has begun again")
        assert not Path(f"/proc/{first}").exists()
        Path(site.env["GATE"]).touch()
        site.until(lambda: site.json("runs", "show", "ledger", "r")["state"] == "success", "the run has succeeded")
    lines = [line.split()[0] for line in marks.read_text().splitlines()]
    assert "overlap" not in lines
    assert lines.count("end") == 1
    [task] = site.json("tasks", "list", "ledger", "r")
    assert task["try_number"] == lines.count("begin")
