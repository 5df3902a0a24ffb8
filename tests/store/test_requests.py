"""Requests for running runs: the scheduler that owns a run does them, and no other."""

import pytest

from asynsched import DAG, BashOperator
from asynsched.keys import DagRunKey
from asynsched.scheduling.requests.run_requests import do_request, submit_request
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import MarkTasks, open_requests
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.lone_evaluator import run_on, serving, store_dag
from tests.support.runs import NOON

RUN = DagRunKey("d", "r")


@pytest.mark.parametrize("is_owner", [False, True])
async def test_the_last_query_of_a_dead_scheduler_edits_no_run_that_another_one_has(database, tmp_path, is_owner):
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    await store_dag(database, dag)
    scheduler = await serving(database, tmp_path, "one")
    await run_on(scheduler, database, "r")
    await database.write(submit_request, RUN, MarkTasks(("t",), "success"), actor="ann", now=NOON)
    [wanted] = await database.read(open_requests, scheduler.epoch)
    epoch = scheduler.epoch if is_owner else scheduler.epoch - 1
    assert await database.write(do_request, wanted, epoch, NOON) is is_owner
    [row] = await database.read(load_task_instances, (await database.read(get_run, *RUN)).id)
    assert (row.state == "success") == is_owner
    assert await database.read(open_requests, scheduler.epoch) == ([] if is_owner else [wanted])
