"""The executor of tries on other machines, on a real database: what it submits, keeps, ends and reports."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote.engine import Accepted, Engine, Job, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.protocol.messages import Ended, Started
from asynsched.settings import Settings, WorkersSettings
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.transitions import Batch, apply
from asynsched.store.schema import dag_run, ticket
from asynsched.store.tickets import claim_ticket, report_end, report_start, request_kill
from tests.store.test_runs import NOW, new_run, task
from tests.store.test_tickets import LIFE, launch_of
from tests.support.passing_database import PassingDatabase
from tests.support.waiting import eventually


class Disturbed(PassingDatabase):
    """A database that a test disturbs: `before` is called before a query of a name, `after` after it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        await self.before.get(query.__name__, nothing)()
        answer = await super().pass_on(call, query, args, kwargs)
        await self.after.get(query.__name__, nothing)()
        return answer


async def nothing() -> None:
    pass


class NotedEngine(Engine):
    """Notes its jobs."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self.n_failures = 0

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected]:
        if self.n_failures:
            self.n_failures -= 1
            raise OSError("the broker is away")
        self.jobs += jobs
        return [Accepted(f"job-{len(self.jobs)}") for _ in jobs]

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        self.cancelled += engine_ids

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        return {}


class NotedExecutor(RemoteExecutor):
    engine_class = NotedEngine


@pytest.fixture
async def far(tmp_path):
    """A started executor of the scheduler `me`, with a run whose task instance awaits the try `one`."""
    database = Disturbed(open_inline())

    def prepare(conn: sa.Connection) -> None:
        run = insert_run(conn, new_run(logical_date=None))
        conn.execute(sa.update(dag_run).values(scheduler_id="me", lease_epoch=1, state="running"))
        apply(conn, Batch(1, new_tasks=[task(run, "a", "running", try_number=1, token="one")]))

    await database.write(prepare)
    reports: list[Started | Ended] = []
    executors = []

    async def start():
        workers = WorkersSettings(addresses=("http://here:1",), renew_interval=0.02)
        context = ExecutorContext(
            home=tmp_path, settings=Settings(workers=workers), clock=Clock(), scheduler_id="me", report=reports.append,
            answer=None, database=database,
        )  # fmt: skip
        executor = NotedExecutor(context)
        executors.append(executor)
        return executor, await executor.start(1)

    executor, _ = await start()
    yield SimpleNamespace(executor=executor, engine=executor.engine, database=database, reports=reports, start=start)
    for one in executors:
        await one.close()


async def states(database) -> list[str]:
    return list(await database.read(lambda conn: conn.scalars(sa.select(ticket.c.state)).all()))


async def test_a_try_whose_ticket_is_just_being_stored_is_kept_by_a_stop(far):
    async def stop() -> None:
        far.database.after.clear()
        await far.executor.drain(NOW)

    far.database.after["add_tickets"] = stop
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    assert (far.reports, far.executor.kept) == ([], {"one"})
    await far.executor.launch([launch_of("two")])
    assert [(end.token, end.cause) for end in far.reports] == [("two", "interrupted")]


async def test_a_try_is_killed_wherever_it_is(far):
    await far.executor.launch([launch_of("one")])
    await far.executor.kill("one", "a user")
    await eventually(lambda: far.reports, "it has ended")
    assert (far.reports[0].reason, far.engine.jobs) == ("a user", []), "it was not stored yet"
    # The answer to the commit is lost: whether it is stored is found out before it is ended.
    far.reports.clear()

    async def lose() -> None:
        far.database.after.clear()
        raise StoreUnavailable("the answer is lost")

    far.database.after["add_tickets"] = lose
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: not far.database.after, "it is stored")
    await far.executor.kill("two", "a user")
    await eventually(lambda: far.reports, "it has ended")
    assert await states(far.database) == ["ended"]
    assert far.engine.cancelled == ["job-1"]


async def test_an_engine_that_is_away_gets_the_same_tickets_later(far):
    far.engine.n_failures = 2
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    (job,) = far.engine.jobs
    await far.database.write(claim_ticket, job.ticket.proof, **LIFE)


async def test_the_next_scheduler_goes_on_with_tickets_as_they_are(far):
    await far.executor.launch([launch_of(token) for token in ("one", "two", "three")])
    await eventually(lambda: len(far.engine.jobs) == 3, "they were submitted")
    one, two, three = (job.ticket for job in far.engine.jobs)
    await far.executor.close()
    far.reports.clear()

    def live(conn: sa.Connection) -> None:
        claim_ticket(conn, one.proof, **LIFE)
        report_start(conn, one.proof, Started("one", NOW, 1))
        report_end(conn, one.proof, Ended("one", "success", NOW, NOW))
        claim_ticket(conn, two.proof, **LIFE)
        request_kill(conn, "two", "a user")
        conn.execute(sa.update(ticket).where(ticket.c.token == "three").values(engine_id=""))

    await far.database.write(live)
    executor, held = await far.start()
    assert (held.ended, held.starting, held.running) == ({"one"}, {"two", "three"}, set())
    assert [type(event) for event in far.reports] == [Ended]
    # It may not have been submitted: another ticket is, and the first one is void.
    await eventually(lambda: executor.engine.jobs, "it is submitted again")
    (again,) = executor.engine.jobs
    assert again.ticket.token == "three"
    assert again.ticket.secret != three.secret
    # An end that is acknowledged stays while a task instance waits for it: a run may be taken up again.
    await executor.acknowledge(["one"])
    await executor.kill("three", "a user")
    await eventually(lambda: len(far.reports) == 2, "three has ended")
    await executor.acknowledge(["three"])
    await eventually(lambda: not executor._to_forget, "they were to be forgotten")
    assert (await executor.adopt([1])).known == {"one", "two"}


async def test_a_try_whose_run_another_scheduler_has_taken_over_is_not_submitted(far):
    async def lose_the_run() -> None:
        far.database.before.clear()
        owner = {"scheduler_id": "other", "lease_epoch": 2}
        await far.database.inner.write(lambda conn: conn.execute(sa.update(dag_run).values(**owner)))

    far.database.before["add_tickets"] = lose_the_run
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.reports, "it is over here")
    assert [(end.token, end.cause) for end in far.reports] == [("one", "interrupted")]
    assert (far.engine.jobs, await states(far.database), far.executor.kept) == ([], [], frozenset())
