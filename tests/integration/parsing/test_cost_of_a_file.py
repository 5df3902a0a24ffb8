"""The cost of a new file for the database, counted instead of timed."""

from collections import Counter
from datetime import timedelta
from typing import Any

import anyio
import pytest

from asynsched import Scheduler
from asynsched.parsing import dispatcher
from asynsched.parsing import dispatcher as jobs
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from tests.support.passing_database import PassingDatabase

N_FILES = 30
DAG_FILE = """
    from asynsched import DAG, EmptyOperator

    with DAG("dag_{number}"):
        EmptyOperator(task_id="only")
"""


class CountingDatabase(PassingDatabase):
    """Counts how often each query is asked, and how."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.asked: Counter[tuple[str, str]] = Counter()

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        self.asked[query.__name__, call.__name__] += 1
        return await super().pass_on(call, query, args, kwargs)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
async def test_of_many_new_files_none_has_a_statement_of_its_own(program, backend, request, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatcher, "BATCHING_DELAY", timedelta(minutes=1))  # however slow the machine is
    monkeypatch.setattr(jobs, "AHEAD_SECONDS", 60.0)
    url = f"sqlite:///{tmp_path / 'a.db'}" if backend == "sqlite" else request.getfixturevalue("postgres_url")
    for number in range(N_FILES):
        program.write(DAG_FILE.format(number=number), f"file_{number}.py")
    database = CountingDatabase(await open_database(url, synchronous="normal"))
    scheduler = Scheduler(database=database, **program.options())
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        asked = database.asked.copy()
        scheduler.request_stop()
    await database.close()
    assert {query: n for query, n in asked.items() if n > N_FILES / 2} == {}
    for query in ("claim_unclaimed", "get_files") if backend == "postgresql" else ():
        assert any(query == asked_query for asked_query, _ in asked)
