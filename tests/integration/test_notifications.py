"""Schedulers on PostgreSQL hear of changes on other machines, which cannot ring the bell of their home."""

import textwrap

import anyio
import pytest

from asynsched import Scheduler
from asynsched.bell import Hint
from asynsched.settings import Settings
from asynsched.store.dags.dags import set_paused
from asynsched.store.engines.opening import open_database
from asynsched.store.schedulers import notify

DAG = """
    from asynsched import DAG, EmptyOperator

    with DAG("once", schedule="@once", is_paused_upon_creation=True):
        EmptyOperator(task_id="only")
"""


@pytest.mark.parametrize("is_open", [False, True], ids=["url", "open database"])
async def test_a_dag_unpaused_from_another_machine_runs_at_once(tmp_path, postgres_url, is_open):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "once.py").write_text(textwrap.dedent(DAG))
    settings = Settings(home=str(tmp_path / "home"), sweep_interval=3600)
    given = await open_database(postgres_url) if is_open else postgres_url
    scheduler = Scheduler(dags=tmp_path / "dags", database=given, settings=settings)
    elsewhere = await open_database(postgres_url)

    def unpause(conn):
        set_paused(conn, "once", False, scheduler.clock.now())
        notify(conn, Hint("dag", dag_id="once"))

    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        await elsewhere.write(unpause)
        with anyio.fail_after(20):
            await scheduler.wait_runs(1)
        scheduler.request_stop()
    await elsewhere.close()
    if not isinstance(given, str):
        await given.close()
