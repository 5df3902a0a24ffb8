"""What a new file costs the database, counted instead of timed."""

from collections import Counter
from datetime import timedelta
from typing import Any

import anyio
import pytest

from asynsched import Scheduler
from asynsched.parsing import outcome_batch
from asynsched.store.database import Database
from asynsched.store.engines.async_database import open_database
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
        self.is_shared = inner.is_shared
        self.asked: Counter[tuple[str, str]] = Counter()

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        self.asked[query.__name__, call.__name__] += 1
        return await super().pass_on(call, query, args, kwargs)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
async def test_a_new_file_has_no_transaction_of_its_own(program, backend, request, tmp_path, monkeypatch):
    """What is asked for each file is one statement, which PostgreSQL takes as one message; the rest is shared."""
    monkeypatch.setattr(outcome_batch, "COMPANY", timedelta(minutes=1))  # however slow the machine is
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
    claims = {("claim_unclaimed", "write_at_once"): N_FILES, ("get_file", "read_at_once"): N_FILES}
    expected = {("before_parse", "read_at_once"): N_FILES} | (claims if backend == "postgresql" else {})
    assert {query: n for query, n in asked.items() if n >= N_FILES} == expected
