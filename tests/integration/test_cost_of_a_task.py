"""The cost of a hop for the database, counted instead of timed. The cost of a try: `tries/test_cost_of_a_try.py`."""

from collections import Counter
from contextlib import asynccontextmanager

import anyio
import msgspec
import sqlalchemy as sa

from asynsched import DAG, BashOperator, Scheduler
from asynsched.channels import RunCreated
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from tests.support import lone_evaluator
from tests.support.instant_executor import InstantExecutor
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON
from tests.support.stored import store_dag

CHAINS = """
    from asynsched import DAG, chain, task

    @task
    def work():
        return 1

    for n in (10, 30):
        with DAG(f"chain_{n}"):
            chain(*[work.override(task_id=f"step_{k:02}")() for k in range(n)])
        with DAG(f"values_{n}"):
            chain(*[work.override(task_id=f"value_{k:02}")() for k in range(n)])
        with DAG(f"wide_{n}", max_active_tasks=100):
            [work.override(task_id=f"task_{k:02}")() for k in range(n)]
"""
TIMED = {
    "renew", "next_callbacks", "running_callbacks", "owned_runs", "pool_capacities", "queued_runs",
    "pools_including_deferred", "pool_use_elsewhere", "unended_schedulers",
}  # fmt: skip
"""Queries that time causes, not tasks."""
STORING = {"apply_and_pause", "_store", "apply_at_once"}
"""Queries that store changes of state. Where schedulers may share a database, the second one settles slots first; the
last one is of one statement, and needs no transaction around it."""
BEFORE_TABLE = {"SELECT": "FROM", "INSERT": "INTO", "DELETE": "FROM", "UPDATE": "UPDATE", "WITH": "WITH"}


class ValuesExecutor(InstantExecutor):
    """Has some tasks return a value."""

    def end_of(self, launch, now):
        ended = super().end_of(launch, now)
        if not launch.task_id.startswith("value"):
            return ended
        return msgspec.structs.replace(ended, return_value=msgspec.Raw(b"1"), result_length=-1)


class CountingDatabase(PassingDatabase):
    """Passes everything on. Counts the queries by name, and the statements of those that store changes of state."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    async def read(self, query, *args, **kwargs):
        self.counts[query.__name__] += 1
        return await super().read(query, *args, **kwargs)

    async def read_at_once(self, query, *args, **kwargs):
        self.counts[f"{query.__name__} at once"] += 1
        return await super().read_at_once(query, *args, **kwargs)

    async def write(self, query, *args, **kwargs):
        self.counts[query.__name__] += 1
        return await super().write(self._counted, query, args, kwargs)

    async def write_at_once(self, query, *args, **kwargs):
        self.counts[query.__name__] += 1
        return await super().write_at_once(self._counted, query, args, kwargs)

    def _counted(self, conn, query, args, kwargs):
        def note(_conn, _cursor, statement, *_):
            words = statement.split()
            table = words[words.index(BEFORE_TABLE[words[0]]) + 1]
            self.counts[f"{query.__name__}: {words[0]} {table}"] += 1

        if query.__name__ not in STORING:
            return query(conn, *args, **kwargs)
        sa.event.listen(conn, "before_cursor_execute", note)
        try:
            return query(conn, *args, **kwargs)
        finally:
            sa.event.remove(conn, "before_cursor_execute", note)


@asynccontextmanager
async def serving(program, url):
    program.write(CHAINS)
    database = CountingDatabase(await open_database(url, synchronous="normal"))
    settings = Settings(home=str(program.home), parallelism=100, sweep_interval=3600)
    scheduler = Scheduler(dags=program.dags, database=database, executor=ValuesExecutor, settings=settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        yield scheduler, database
        scheduler.request_stop()
    await database.close()


async def cost_of(scheduler, database, dag_id: str) -> Counter[str]:
    """Return the database's work for one run of a DAG, except for periodic work."""
    database.counts.clear()
    run = await scheduler.run(dag_id)
    assert run.state == "success"
    return Counter({name: n for name, n in database.counts.items() if name not in TIMED})


async def test_a_hop_is_one_transaction_of_one_statement_and_a_value_is_one_more(program, url):
    """Where the database may be shared, a scheduler that is alone counts no slots, and needs no other statement."""
    async with serving(program, url) as (scheduler, database):
        costs = {dag_id: await cost_of(scheduler, database, dag_id) for dag_id in (
            "chain_10", "chain_30", "values_10", "values_30", "wide_10", "wide_30",
        )}  # fmt: skip
    twenty_hops = {"apply_and_pause": 20, "apply_and_pause: UPDATE task_instance": 20}
    twenty_values = twenty_hops | {"apply_and_pause: INSERT xcom": 20}
    if database.is_shared:
        twenty_hops = {"apply_at_once": 20, "apply_at_once: WITH signed": 20}
        twenty_values = {"_store": 20} | {
            f"_store: {what}": 20 for what in ("SELECT pool", "UPDATE task_instance", "INSERT xcom")
        }
        # The last end of a run is one with the end of the run.
        assert costs["chain_10"]["apply_at_once"] == costs["chain_10"]["apply_at_once: WITH signed"] == 10
    assert costs["chain_30"] - costs["chain_10"] == twenty_hops
    assert costs["values_30"] - costs["values_10"] == twenty_values
    assert costs["wide_30"] == costs["wide_10"], "simultaneous changes are stored together, however many they are"


async def test_runs_of_many_dags_start_with_as_many_transactions_as_those_of_two(tmp_path, url):
    database = CountingDatabase(await open_database(url, synchronous="normal"))
    scheduler = await lone_evaluator.serving(database, tmp_path, "one")
    costs = {}
    for n in (1, 2, 8):  # the first one signs its pool
        created = []
        for number in range(n):
            with DAG(f"of_{n}_{number}") as dag:
                BashOperator(task_id="a", bash_command="true")
            await database.write(store_dag, dag)
            created.append(RunCreated(await database.write(create_manual_run, dag.dag_id, Trigger(), now=NOON)))
        database.counts.clear()
        launched = await scheduler.tick(*created)
        costs[n] = database.counts.copy()
        assert len(launched) == n
        scheduler.end(*launched)
        await scheduler.tick()
    assert costs[2] == costs[8]
    assert costs[8]["queued_runs at once"] == 1, "which runs wait is asked without a transaction around it"
    await database.close()
