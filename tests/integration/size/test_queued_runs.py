"""However many runs of a DAG wait, the services read few of them, keep few, and start them in their order."""

from contextlib import asynccontextmanager
from datetime import timedelta

import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.channels import BackfillChanged, DagChanged, RunCreated, RunEdited, RunsCreated
from asynsched.keys import DagRunKey
from asynsched.scheduling.admission import A_FEW
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.store.runs.retention import Bound, old_runs
from asynsched.store.schema import dag_run
from tests.integration.size.counted import opened, serving
from tests.support.history import copy_rows, fill, look_at_sizes, named, numbers
from tests.support.runs import NOON
from tests.support.stored import store_dag

FEW, MANY = 200, 20_000
"""Runs that wait."""
HOUR = timedelta(hours=1)
__all__ = ["opened"]


def let_wait(conn: sa.Connection, n: int) -> None:
    """Add queued runs of a DAG, q1 the first of them."""
    number = numbers(n)
    copy_rows(
        conn, dag_run, number,
        dag_id="d", run_id=named("q", number), run_type="manual", state="queued", reason="", run_after=NOON,
        queued_at=NOON, conf={"a": 1}, lease_epoch=0, logical_date=None,
    )  # fmt: skip
    look_at_sizes(conn)


@asynccontextmanager
async def backlog(opened, folder, n: int):
    """Serve a DAG with one active run, its limit, `n` ended runs, and `n` runs that wait without a message."""
    database = await opened()
    folder.mkdir()
    for dag_id in ("d", "other"):
        with DAG(dag_id, schedule="@hourly", start_date=NOON + HOUR / 2, catchup=True) as dag:
            BashOperator(task_id="t", bash_command="true")
        await database.write(store_dag, dag, max_active_runs=1 if dag_id == "d" else 16)
    site = await serving(database, folder)
    key = await database.write(create_manual_run, "d", Trigger(run_id="first"), now=NOON)
    [token] = await site.tick(RunCreated(key))
    await database.write(fill, n_runs=n, n_dags=0, dag_id="d", n_tasks=1)
    await database.write(let_wait, n)
    yield site, token
    await database.inner.close()


async def costs(opened, folder, n: int):
    """Return the costs of the services' own work, by its kind."""
    async with backlog(opened, folder, n) as (site, token):
        waiting = site.evaluator._intake.places.queue.waiting_of
        found = {"a sweep": await site.cost_of(after=61)}
        assert waiting(["d"]) == [], "nothing is read that has no room"
        found["an end"] = await site.cost_of(ended=token)
        assert [launched_run(site)] == ["q1"]
        assert len(waiting(["d"])) <= 1 + A_FEW
        found["another end"] = await site.cost_of(ended=site.launched[0])
        assert [launched_run(site)] == ["q2"]
        found["what falls due"] = await site.cost_of(after=3600)
        found["a new run"] = await site.cost_of(RunCreated(DagRunKey("d", f"q{n}")))
        found["its end from outside"] = await site.cost_of(RunEdited(DagRunKey("d", f"q{n}")))
        found["a change of the DAG"] = await site.cost_of(DagChanged("d"))
        found["a change of its backfills"] = await site.cost_of(BackfillChanged("d"), RunsCreated("d"))
        return found


def launched_run(site) -> str:
    [token] = site.launched
    return site.evaluator.evaluation.tries.awaited[token].run.key.run_id


async def test_what_runs_by_itself_costs_as_much_with_many_queued_runs_as_with_few(opened, tmp_path):
    few, many = await costs(opened, tmp_path / "few", FEW), await costs(opened, tmp_path / "many", MANY)
    for name, cost in many.items():
        assert cost.is_like(few[name]), (name, cost, few[name])
    assert max(cost.n_rows for cost in many.values()) < FEW / 2


async def old_runs_of(opened, folder, n: int):
    async with backlog(opened, folder, n) as (site, _):
        site.database.take_cost()
        found = await site.database.read(old_runs, Bound(before=NOON), limit=20)
        return len(found), site.database.take_cost()


async def test_finding_expired_rows_costs_the_same_with_few_and_many_queued_runs(opened, tmp_path):
    few, many = await old_runs_of(opened, tmp_path / "few", FEW), await old_runs_of(opened, tmp_path / "many", MANY)
    assert (few[0], many[0]) == (20, 20)
    assert many[1].is_like(few[1]), (many, few)
