"""Requests for running runs: the scheduler that owns a run does them, and no other."""

import pytest

from asynsched import DAG, BashOperator
from asynsched.bell import Hint
from asynsched.keys import DagRunKey
from asynsched.scheduling.requests import run_requests
from asynsched.scheduling.requests.run_requests import do_request, submit_request
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import MarkTasks, open_requests
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.lone_evaluator import run_on, serving
from tests.support.runs import NOON
from tests.support.stored import store_dag

RUN = DagRunKey("d", "r")


@pytest.mark.parametrize("is_owner", [False, True])
async def test_only_the_owner_of_a_run_does_a_request_and_others_hear_of_it(database, tmp_path, monkeypatch, is_owner):
    """Not by the last query of a dead scheduler. Runs of other schedulers may depend on the run's tasks."""
    hints: list[Hint] = []
    monkeypatch.setattr(run_requests, "notify", lambda _, *given: hints.extend(given))
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag)
    scheduler = await serving(database, tmp_path, "one")
    await run_on(scheduler, database, "r")
    await database.write(submit_request, RUN, MarkTasks(("t",), "success"), actor="ann", now=NOON)
    [wanted] = await database.read(open_requests, scheduler.epoch)
    epoch = scheduler.epoch if is_owner else scheduler.epoch - 1
    hints.clear()
    assert await database.write(do_request, wanted, epoch, NOON) is is_owner
    [row] = await database.read(load_task_instances, (await database.read(get_run, *RUN)).id)
    assert (row.state == "success") == (Hint("edit", *RUN) in hints) == is_owner
    assert await database.read(open_requests, scheduler.epoch) == ([] if is_owner else [wanted])
