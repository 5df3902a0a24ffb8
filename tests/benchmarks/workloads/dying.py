"""A task that dies without a word: how soon that is known."""

import time
from typing import Any

from asynsched.keys import DagRunKey
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.task_instances import load_task_instances
from tests.benchmarks.measuring import Sheet, at_most
from tests.benchmarks.systems import Ours

DIES = """
import os
import signal
import time

from {sdk} import DAG, task

with DAG("dies", schedule=None):
    @task
    def dies(ti=None):
        if ti.try_number > 1:
            return
        marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        died_at = time.time_ns()
        os.write(marks, f"dies {died_at} {died_at}\\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    dies()
"""
N_DEATHS = 21
"""The first, which starts the template, does not count."""
LOOK_SECONDS = 0.002


def dead_without_a_word(system: Ours, sheet: Sheet) -> None:
    """From the moment in which a task kills itself with SIGKILL until that is stored, signal and all."""
    system.write("dies.py", DIES)
    known_at = []
    with system.serving() as client:
        client.wait_for_dags("dies")
        for _ in range(N_DEATHS):
            key, _ = client.trigger("dies")
            known_at.append(_known_at(client, key))
            client.wait_for_success(key)
    died_at = sorted(mark[2] for mark in system.read_marks())
    times = [(known - died) / 1e9 for known, died in zip(known_at, died_at, strict=True)]
    sheet.spread("dead without a word", times[1:], None, at_most(0.1))


def _known_at(client: Any, key: DagRunKey) -> int:
    """Return when it was seen that a try of a run has been killed, in nanoseconds since 1970."""
    deadline = time.monotonic() + 60
    run = client.database.read(get_run, *key)
    while True:
        tasks = client.database.read(load_task_instances, run.id)
        seen_at = time.time_ns()
        if any("SIGKILL" in task.reason for task in tasks):
            return seen_at
        assert time.monotonic() < deadline, client.story()
        time.sleep(LOOK_SECONDS)
