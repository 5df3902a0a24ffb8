"""Large numbers of stored things cost a sweep nothing: history, errors, variables, assets, tags, params."""

import pytest
import sqlalchemy as sa

from asynsched import DAG, BashOperator, Param
from asynsched.channels import RunCreated
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.store.schema import asset, import_error, variable
from tests.integration.size.counted import Cost, opened, serving
from tests.support.history import copy_rows, fill, look_at_sizes, named, numbers
from tests.support.runs import NOON
from tests.support.stored import store_dag

FEW, MANY = 20, 5_000
__all__ = ["opened"]


def finished_runs(conn: sa.Connection, n: int) -> None:
    fill(conn, n_runs=n, n_dags=0, dag_id="d", n_tasks=2)


def import_errors(conn: sa.Connection, n: int) -> None:
    number = numbers(n)
    text = {"kind": "exception", "message": "m", "traceback": "", "output": ""}
    copy_rows(conn, import_error, number, file_path=named("f", number), is_warning=False, created_at=NOON, **text)


def variables(conn: sa.Connection, n: int) -> None:
    number = numbers(n)
    copy_rows(conn, variable, number, key=named("v", number), value="secret", description="")


def assets(conn: sa.Connection, n: int) -> None:
    number = numbers(n)
    name = named("a", number)
    copy_rows(conn, asset, number, digest=name, name=name, uri=name, group_name="asset", extra=b"{}", created_at=NOON)


async def cost_of_a_sweep(opened, folder, fill_in, n: int) -> Cost:
    """Return the cost of a sweep while a run is active, with `n` of something in the database."""
    database = await opened()
    folder.mkdir()
    is_described = fill_in is None
    params = {f"p{number}": Param(number) for number in range(n if is_described else 1)}
    with DAG("d", tags=[f"t{number}" for number in range(n if is_described else 1)], params=params) as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag)
    site = await serving(database, folder)
    key = await database.write(create_manual_run, "d", Trigger(run_id="r"), now=NOON)
    assert len(await site.tick(RunCreated(key))) == 1
    if fill_in is not None:
        await database.write(fill_in, n)
    await database.write(look_at_sizes)
    cost = await site.cost_of(after=61)
    await database.inner.close()
    return cost


@pytest.mark.parametrize(
    "fill_in", [finished_runs, import_errors, variables, assets, None], ids=lambda f: f and f.__name__
)
async def test_a_sweep_costs_the_same_however_much_is_stored(opened, tmp_path, fill_in):
    """`None`: the tags and params of a DAG whose run is active."""
    few = await cost_of_a_sweep(opened, tmp_path / "few", fill_in, FEW)
    many = await cost_of_a_sweep(opened, tmp_path / "many", fill_in, MANY)
    assert many.is_like(few), (many, few)
    assert few.n_statements
