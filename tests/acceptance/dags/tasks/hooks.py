"""Callbacks of tasks and of a run, and pools: each leaves a line in the file that MARKS names."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from asynsched import (
    DAG,
    AsyncCallback,
    BaseDeadlineReference,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
    VariableInterval,
    deadline_reference,
    task,
)


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


def too_late(word, context):
    run, deadline = context["dag_run"], context["deadline"]
    assert (run["dag_run_id"], run["dag_id"], run["run_after"][-1]) == (run.run_id, run.dag_id, "Z")
    assert json.loads(json.dumps(run))["logical_date"][:19] == run.logical_date.isoformat()[:19]
    assert UUID(deadline["id"]).int > 0
    mark(f"deadline {word} {deadline['name']} {run.run_type}")


async def too_late_for_long(word, context):
    too_late(word, context)


@deadline_reference()
class Opening(BaseDeadlineReference):
    required_kwargs = ("dag_run", "dag_id")

    def _evaluate_with(self, *, session, dag_id, dag_run):
        assert dag_id == dag_run.dag_id == "late"
        return dag_run.queued_at


LONG_AGO = DeadlineReference.FIXED_DATETIME(datetime(2020, 1, 1))
DEADLINES = [
    DeadlineAlert(LONG_AGO, timedelta(0), SyncCallback(too_late, {"word": "missed"}), name="first"),
    DeadlineAlert(LONG_AGO, timedelta(hours=1), AsyncCallback(too_late_for_long, {"word": "awaited"}), name="second"),
    DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(days=1), SyncCallback(too_late, {"word": "never"})),
    DeadlineAlert(DeadlineReference.Opening, timedelta(0), SyncCallback(too_late, {"word": "own"}), name="own"),
    DeadlineAlert(DeadlineReference.Opening, VariableInterval("patience"), SyncCallback(too_late, {"word": "never"})),
    DeadlineAlert(LONG_AGO, VariableInterval("a_variable"), SyncCallback(too_late, {"word": "never"})),
]

with DAG("late", schedule="@once", deadline=DEADLINES):

    @task
    def in_time():
        mark("late but done")

    in_time()

with DAG("pooled", schedule="@once"):

    @task(pool="single")
    def alone(name):
        mark(f"enter {name}")
        mark(f"leave {name}")

    for name in "abcd":
        alone.override(task_id=f"alone_{name}")(name)
