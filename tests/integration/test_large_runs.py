"""A run of very many task instances holds up no other run: the work of the event loop per turn is counted."""

import asyncio
import sys
from collections import Counter

import anyio
import msgspec
import sqlalchemy as sa

from asynsched import Scheduler, assembly, slices
from asynsched.scheduling import evaluator, transfers
from asynsched.settings import Settings
from asynsched.store import rows
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from tests.support.instant_executor import InstantExecutor
from tests.support.waiting import eventually_true

AT_ONCE = 20
N = 150
LARGE = f"""
    from asynsched import DAG, BashOperator, task

    with DAG("wide"):
        @task
        def work():
            pass

        [work.override(task_id=f"task_{{k}}")() for k in range({N})]

    with DAG("mapped"):
        @task
        def source():
            pass

        @task
        def work(n):
            pass

        work.expand(n=source())

    with DAG("ranked", max_active_tasks={N}):
        [
            BashOperator(task_id=f"task_{{k}}", bash_command="true", priority_weight={N} - k, weight_rule="absolute")
            for k in range({N})
        ]
"""
BOUNDED = {"new_instance": "made", "examine": "examined", "_task_row": "made into rows"}
GRANTED = {"of_grant": "granted its slots", "task_launch": "launched"}


class MappingExecutor(InstantExecutor):
    """Has the task `source` return a long list."""

    def end_of(self, launch, now):
        ended = super().end_of(launch, now)
        if launch.task_id != "source":
            return ended
        return msgspec.structs.replace(ended, return_value=msgspec.Raw(b"[]"), result_length=N)


class Turns:
    """Counts how often functions run in one turn of the event loop, at most and together."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    def note(self, frame, event, _argument) -> None:
        if event == "call" and frame.f_code.co_name in BOUNDED | GRANTED:
            self._now[frame.f_code.co_name] += 1

    async def count(self) -> None:
        sys.setprofile(self.note)
        try:
            while True:
                await asyncio.sleep(0)
                self.most |= self._now
                self.total += self._now
                self._now.clear()
        finally:
            sys.setprofile(None)


async def test_thousands_of_instances_are_made_decided_and_stored_in_slices(program, url, monkeypatch):
    for module in (slices, assembly):
        monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(rows, "MOST_PARAMETERS", 40)
    database, scheduler = await _open(program, url, parallelism=4)
    found = {}
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        for dag_id in ("wide", "mapped"):
            found[dag_id] = Turns()
            async with anyio.create_task_group() as beside:
                beside.start_soon(found[dag_id].count)
                assert (await scheduler.run(dag_id)).state == "success"
                beside.cancel_scope.cancel()
        scheduler.request_stop()
    states = await database.read(_states)
    await database.close()
    assert states == {("wide", "success"): N, ("mapped", "success"): N + 1}
    for turns in found.values():
        assert all(turns.total[name] >= N for name in BOUNDED), turns.total
        # Instances that run at once, or have ended, come on top.
        assert all(turns.most[name] <= 2 * AT_ONCE for name in BOUNDED), turns.most


async def test_thousands_of_tasks_that_may_start_together_are_granted_in_slices_best_first(program, url, monkeypatch):
    monkeypatch.setattr(evaluator, "MOST_GRANTED", AT_ONCE)
    database, scheduler = await _open(program, url, parallelism=N)
    turns = Turns()
    async with scheduler, anyio.create_task_group() as beside:
        await scheduler.wait_idle()
        beside.start_soon(turns.count)
        assert (await scheduler.run("ranked")).state == "success"
        beside.cancel_scope.cancel()
    granted = await database.read(_granted)
    await database.close()
    assert granted == [f"task_{k}" for k in range(N)]
    assert all(turns.total[name] == N for name in GRANTED), turns.total
    assert all(turns.most[name] <= AT_ONCE for name in GRANTED), turns.most


class HoldingExecutor(MappingExecutor):
    """Ends nothing, as if its scheduler had been killed before it heard of any end."""

    async def launch(self, launches):
        pass


async def test_thousands_of_tries_of_a_run_that_is_taken_over_are_announced_in_slices(program, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'asynsched.db'}"
    monkeypatch.setattr(transfers, "AT_ONCE", AT_ONCE)
    database, scheduler = await _open(program, url, parallelism=N, executor=HoldingExecutor)
    async with scheduler:
        await scheduler.wait_idle()
        await scheduler.trigger("ranked")
        await eventually_true(
            database, lambda conn: len(_granted(conn)) == N and _states(conn) == {("ranked", "queued"): N}
        )
    await database.close()
    database, scheduler = await _open(program, url, parallelism=N)
    turns = Turns()
    async with anyio.create_task_group() as beside:
        beside.start_soon(turns.count)
        async with scheduler:
            await eventually_true(database, lambda conn: _states(conn) == {("ranked", "success"): N})
        beside.cancel_scope.cancel()
    await database.close()
    assert turns.total["task_launch"] == N
    assert turns.most["task_launch"] <= AT_ONCE


async def _open(program, url: str, *, parallelism: int, executor=MappingExecutor) -> tuple[Database, Scheduler]:
    program.write(LARGE)
    database = await open_database(url, synchronous="normal", default_pool_slots=N)
    settings = Settings(
        home=str(program.home), parallelism=parallelism, max_map_length=N, default_pool_slots=N, shutdown_grace=0
    )
    return database, Scheduler(dags=program.dags, database=database, executor=executor, settings=settings)


def _granted(conn):
    """Return the tasks of the DAG `ranked` in the order in which they were granted their slots."""
    found = sa.text(
        "SELECT t.task_id FROM task_instance AS t JOIN dag_run AS r ON r.id = t.dag_run_id"
        " WHERE r.dag_id = 'ranked' ORDER BY t.queued_at, t.priority_weight DESC"
    )
    return [row[0] for row in conn.execute(found)]


def _states(conn):
    counted = sa.text(
        "SELECT r.dag_id, t.state, count(*) FROM task_instance AS t JOIN dag_run AS r ON r.id = t.dag_run_id"
        " GROUP BY r.dag_id, t.state"
    )
    return {(row[0], row[1]): row[2] for row in conn.execute(counted)}
