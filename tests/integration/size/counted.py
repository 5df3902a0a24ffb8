"""The cost of queries for a database, counted instead of timed; and the services that query it on their own."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched.assembly import Foundation, make_evaluator
from asynsched.channels import Channels, LimitNews, TaskReady, TryReported
from asynsched.clock import VirtualClock
from asynsched.executors.base import Held, adopt_none
from asynsched.lease.expiry import Lease
from asynsched.lease.takeover import PeerWatch
from asynsched.protocol.messages import Ended
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.scheduling.loading import VersionCache
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database, open_inline
from asynsched.store.schedulers import register_scheduler
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON

STEPS_AT_ONCE = 100
"""Instructions of SQLite's virtual machine that are counted as one."""


@dataclass
class Cost:
    """The cost of some queries.

    Attributes:
        n_statements: How many were sent.
        n_rows: How many rows came back.
        n_bytes: How long the texts and JSON in them were.
        n_steps: Hundreds of instructions of SQLite's virtual machine: unreturned rows count, too.
    """

    n_statements: int = 0
    n_rows: int = 0
    n_bytes: int = 0
    n_steps: int = 0

    def is_like(self, other: "Cost") -> bool:
        """Whether both cost the same, but for names that are a little longer and trees that are a little deeper."""
        same = self.n_statements == other.n_statements and self.n_rows == other.n_rows
        return same and self.n_bytes <= other.n_bytes * 1.1 + 100 and self.n_steps <= other.n_steps * 1.3 + 10


class CountedDatabase(PassingDatabase):
    """Passes every query on, and counts its cost."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.cost = Cost()

    def take_cost(self) -> Cost:
        """Return the counts since the last call."""
        cost, self.cost = self.cost, Cost()
        return cost

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        return await call(self._counted, query, args, kwargs)

    def _counted(self, conn: sa.Connection, query: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with counting(conn, self.cost):
            return query(conn, *args, **kwargs)


@contextmanager
def counting(conn: sa.Connection, cost: Cost) -> Iterator[None]:
    """Count the cost of this connection's statements."""

    def step() -> int:
        cost.n_steps += 1
        return 0

    def note(_conn: Any, cursor: Any, _statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        cost.n_statements += 1
        context.cursor = _CountedCursor(cursor, cost)

    if conn.dialect.name == "sqlite":
        conn.connection.driver_connection.set_progress_handler(step, STEPS_AT_ONCE)
    sa.event.listen(conn, "after_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(conn, "after_cursor_execute", note)
        if conn.dialect.name == "sqlite":
            conn.connection.driver_connection.set_progress_handler(None, STEPS_AT_ONCE)


class _CountedCursor:
    def __init__(self, cursor: Any, cost: Cost) -> None:
        self._cursor, self._cost = cursor, cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def fetchone(self) -> Any:
        row = self._cursor.fetchone()
        self._take([] if row is None else [row])
        return row

    def fetchmany(self, *size: Any) -> Any:
        return self._take(self._cursor.fetchmany(*size))

    def fetchall(self) -> Any:
        return self._take(self._cursor.fetchall())

    def _take(self, rows: Any) -> Any:
        self._cost.n_rows += len(rows)
        self._cost.n_bytes += sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        return rows


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest) -> Callable[[], Awaitable[CountedDatabase]]:
    """A function that opens an empty database, of each kind."""

    async def open_empty() -> CountedDatabase:
        if request.param == "sqlite":
            return CountedDatabase(open_inline())
        return CountedDatabase(await open_database(request.getfixturevalue("new_postgres_database")()))

    return open_empty


class Site:
    """The services of one scheduler that look at the database by themselves; the executor is the test."""

    def __init__(self, database: CountedDatabase, folder: Path, epoch: int) -> None:
        self.database, self.channels, self.clock = database, Channels(), VirtualClock(NOON)
        settings = Settings(home=str(folder), dags_folder=str(folder), sweep_interval=60)
        lease = Lease("me", epoch)
        base = Foundation(
            settings=settings, channels=self.channels, clock=self.clock, database=database, database_url=None,
            lease=lease,
        )  # fmt: skip
        versions = VersionCache(database, folder, folder, in_thread=False)
        shared = {"channels": self.channels, "database": database, "clock": self.clock}
        self.evaluator = make_evaluator(base, versions, 9, {}, lambda: False)
        self.creator = DagRunCreator(settings=settings, **shared)
        self.others = (
            CallbackRunner(
                settings=settings, versions=versions, scheduler_id="me", adopt=adopt_none, **shared
            ),
            DeadlineWatcher(
                settings=settings, lease_epoch=epoch, reports_stored=self.evaluator.reports_stored, **shared
            ),
            PeerWatch(lease, **shared),
        )  # fmt: skip

    async def tick(self, *news: object) -> list[str]:
        """Run the services until they rest; return the tokens of the launches."""
        for message in news:
            channel = self.channels.limits if isinstance(message, LimitNews) else self.channels.runs
            channel.put_nowait(message)
        for _ in range(4):
            for service in (self.creator, self.evaluator, *self.others):
                await service.tick(self.clock.now())
        ready = (message for message in self.channels.ready.take() if isinstance(message, TaskReady))
        return [message.launch.token for message in ready]

    async def cost_of(self, *news: object, ended: str | None = None, after: float = 0.0) -> Cost:
        """Return the cost of one round, with this news, after these seconds; the first round was before."""
        self.clock.leap(after)
        if ended is not None:
            self.channels.reports.put_nowait(TryReported(Ended(ended, "success", self.clock.now())))
        self.database.take_cost()
        self.launched = await self.tick(*news)
        return self.database.take_cost()


async def serving(database: CountedDatabase, folder: Path) -> Site:
    """Return the services of a scheduler that has just started."""
    values = {"hostname": "h", "pid": 1, "home": str(folder), "version": "1", "now": NOON, "takeover_seconds": 30}
    epoch = await database.write(register_scheduler, scheduler_id="me", lease_until=NOON, **values)
    site = Site(database, folder, epoch)
    await site.evaluator.recover(Held(), NOON)
    return site
