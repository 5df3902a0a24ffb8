"""The messages to a user who asks for a missing log."""

from datetime import UTC, datetime

import msgspec
import pytest

from asynsched.cli.task_logs import why_no_log
from asynsched.store.schema import DagRunRow, TaskInstanceRow

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = msgspec.convert(
    dict.fromkeys(DagRunRow.__struct_fields__)
    | {"id": 1, "dag_id": "d", "run_id": "r", "run_type": "manual", "state": "running", "reason": "", "conf": {}}
    | {"run_after": AT, "queued_at": AT, "lease_epoch": 0},
    DagRunRow,
)
TASK = msgspec.convert(
    dict.fromkeys(TaskInstanceRow.__struct_fields__, 0)
    | dict.fromkeys(
        ("token", "executor", "rendered_map_index", "next_try_at", "state", "deferral", "ignored_dependencies")
    )
    | dict.fromkeys(("scheduled_at", "queued_at", "started_at", "ended_at"))
    | {"task_id": "t", "reason": "", "pool": "p", "queue": "q"},
    TaskInstanceRow,
)


@pytest.mark.parametrize(
    ("task", "wanted", "earlier", "says"),
    [
        ({"state": "skipped", "reason": "b chose c"}, None, (), "never started: it was skipped (b chose c)."),
        ({"state": "upstream_failed"}, None, (), "The task 't' never started: a task before it failed."),
        ({"state": "failed", "reason": "the run took too long"}, 1, (), "it failed (the run took too long)"),
        ({"state": "success", "try_number": 1, "reason": "an empty task"}, None, (), "nothing in it to run"),
        ({}, None, (), "The task 't' has not started yet: it waits for the tasks before it."),
        ({"state": "scheduled", "reason": "pool p is full"}, None, (), "for room within the limits (pool p is full"),
        ({"state": "queued", "try_number": 1}, 1, (), "The task 't' has not started yet: it is queued"),
        ({"state": "queued", "try_number": 2}, None, (1,), "Try 2 of the task 't' has not started yet: it is queued"),
        ({"state": "failed", "try_number": 3}, 5, (1, 2), "The task 't' has no try 5; it has the tries 1, 2 and 3."),
        ({"state": "running", "try_number": 1}, 2, (), "The task 't' has no try 2; it has try 1."),
        ({"state": "success", "try_number": 2}, 1, (1,), "has written nothing, or its log is not in the home /h."),
    ],
)
def test_it_says_what_became_of_the_task_or_which_tries_there_are(task, wanted, earlier, says):
    assert says in why_no_log(msgspec.structs.replace(TASK, **task), RUN, wanted, earlier, "the home /h")


def test_a_task_of_a_queued_run_waits_for_its_run():
    run = msgspec.structs.replace(RUN, state="queued", reason="somebody triggered it")
    said = why_no_log(TASK, run, None, (), "the home /h")
    assert said == "The task 't' has not started yet: its run is queued (somebody triggered it)."
