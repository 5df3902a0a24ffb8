"""A row that was changed elsewhere has its own run read again, and none of the other active ones."""

import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.channels import RunCreated
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.store.schema import task_instance
from tests.integration.size.counted import Cost, opened, serving
from tests.support.runs import NOON
from tests.support.stored import store_dag

__all__ = ["opened"]


async def cost_of_a_stale_row(opened, folder, n: int) -> Cost:
    """Return the cost of a task instance that is marked beside its scheduler, while `n` runs are active."""
    database = await opened()
    folder.mkdir()
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag, max_active_runs=1000)
    site = await serving(database, folder)
    tokens = []
    for number in range(n):
        key = await database.write(create_manual_run, "d", Trigger(run_id=f"r{number}"), now=NOON)
        tokens += await site.tick(RunCreated(key))
    assert len(site.evaluator.evaluation.runs) == n
    marked = sa.update(task_instance).where(task_instance.c.token == tokens[0]).values(state="skipped")
    await database.write(lambda conn: conn.execute(marked).rowcount)
    cost = await site.cost_of(ended=tokens[0])
    assert len(site.evaluator.evaluation.runs) == n - 1, "the marked task has ended"
    await database.inner.close()
    return cost


async def test_one_stale_row_has_one_run_read_however_many_are_active(opened, tmp_path):
    few = await cost_of_a_stale_row(opened, tmp_path / "few", 3)
    many = await cost_of_a_stale_row(opened, tmp_path / "many", 9)
    assert many.is_like(few), (many, few)
