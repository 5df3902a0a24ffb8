"""Callbacks of tasks and of a run, and pools: each leaves a line in the file that MARKS names."""

import os
from pathlib import Path

from asynsched import DAG, task


def mark(line):
    with Path(os.environ["MARKS"]).open("a") as marks:
        marks.write(line + "\n")


def called(event):
    def callback(context):
        ti = context.get("ti")
        mark(f"{event} {ti.task_id if ti and event.startswith('task') else context['dag'].dag_id}")

    return callback


with DAG("callbacks", schedule="@once", on_failure_callback=called("run failed")):

    @task(retries=1, retry_delay=0, on_retry_callback=called("task retries"), on_failure_callback=called("task failed"))
    def fails():
        raise RuntimeError("no")

    @task(on_success_callback=called("task succeeded"))
    def succeeds():
        return 1

    fails()
    succeeds()

with DAG("pooled", schedule="@once"):

    @task(pool="single")
    def alone(name):
        mark(f"enter {name}")
        mark(f"leave {name}")

    for name in "abcd":
        alone.override(task_id=f"alone_{name}")(name)
