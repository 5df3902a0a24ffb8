"""Two schedulers on one PostgreSQL database that wake one another by its notifications; the executor is the test."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.assembly import Foundation, make_evaluator
from asynsched.bell import Hint
from asynsched.channels import Channels, TaskReady, TryReported, TryUnwanted
from asynsched.clock import Clock
from asynsched.fernet_keys import keys_of
from asynsched.housekeeping.notification_listener import NotificationListener
from asynsched.lease.expiry import Lease
from asynsched.lease.held_lease import register
from asynsched.protocol.messages import Ended
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.loading import VersionCache
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.schedulers import notify
from asynsched.store.schema import dag_run, task_instance
from tests.support.passing_database import PassingDatabase
from tests.support.stored import store_dag
from tests.support.waiting import eventually

N_RUNS = 8
CLOCK = Clock()
Try = tuple[str, str]
"""run_id, task_id"""


class UninterruptedDatabase(PassingDatabase):
    """A database whose queries are not broken off when a scheduler is: no connection is left half open."""

    is_shared = True

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await super().pass_on(call, query, args, kwargs)


class Peer:
    """One scheduler, without sweeps; its launches are noted, and run until a test ends them."""

    def __init__(self, name: str, database: Database, url: str, epoch: int, home: Path, parallelism: int) -> None:
        self.name, self.epoch = name, epoch
        self.channels = Channels()
        self.running: dict[str, Try] = {}
        self.unwanted: list[str] = []
        self.most_at_once: Callable[[], None] = lambda: None
        base = Foundation(
            settings=Settings(home=str(home), dags_folder=str(home), sweep_interval=3600), channels=self.channels,
            clock=CLOCK, database=database, database_url=url, lease=Lease(name, epoch),
        )  # fmt: skip
        self.evaluator = make_evaluator(base, VersionCache(database, home, home), parallelism, {}, lambda: True)
        self.listener = NotificationListener(url=parse_url(url), channels=self.channels, clock=CLOCK, scheduler_id=name)
        self.channels.ready.wakes(self._take_launches)

    def _take_launches(self) -> None:
        for message in self.channels.ready.take():
            if isinstance(message, TaskReady):
                self.running[message.launch.token] = (message.launch.run.run_id, message.launch.task_id)
                self.most_at_once()
            elif isinstance(message, TryUnwanted):
                self.unwanted.append(message.token)

    def limit_to(self, parallelism: int) -> None:
        """Limit how many tasks run at once here."""
        self.evaluator.evaluation.ready.parallelism.capacity = parallelism

    def end(self, *tokens: str) -> None:
        """End tries with success."""
        for token in tokens:
            del self.running[token]
            self.channels.reports.put_nowait(TryReported(Ended(token, "success", CLOCK.now())))


class Peers:
    """Two schedulers, and the database's view of their work."""

    def __init__(self, one: Peer, other: Peer, database: Database, serve: Callable[[Peer], object]) -> None:
        self.both = (one, other)
        self.database = database
        self.serve = serve
        self.n_most = 0
        for peer in self.both:
            peer.most_at_once = self._count

    def _count(self) -> None:
        self.n_most = max(self.n_most, len(self.running))

    @property
    def running(self) -> list[Try]:
        return sorted(what for peer in self.both for what in peer.running.values())

    async def trigger(self, dag: DAG, n: int = N_RUNS) -> None:
        """Make runs of a DAG, as a user does from another terminal."""

        def trigger(conn: sa.Connection) -> None:
            store_dag(conn, dag, CLOCK.now())
            keys = [create_manual_run(conn, "d", Trigger(run_id=f"r{number}"), now=CLOCK.now()) for number in range(n)]
            notify(conn, *(Hint("run", *key) for key in keys))

        await self.database.write(trigger)

    async def until_all_are(self, state: str) -> None:
        """Wait until every run is in a state."""
        for _ in range(1_000):
            if set((states := await self.states()).values()) == {state}:
                return
            await anyio.sleep(0.03)
        raise AssertionError(states)

    async def states(self) -> dict[str, str]:
        return {row.run_id: row.state for row in await self.database.read(list_runs, dag_id="d")}

    async def owners(self) -> Counter[int]:
        """Return how many running runs each lease epoch has; every task instance has the epoch of its run."""
        epochs = sa.func.array_agg(task_instance.c.lease_epoch.distinct())
        statement = (
            sa.select(dag_run.c.lease_epoch, epochs)
            .join(task_instance, task_instance.c.dag_run_id == dag_run.c.id)
            .where(dag_run.c.state == "running")
            .group_by(dag_run.c.id)
        )
        rows = await self.database.read(lambda conn: conn.execute(statement).all())
        assert all([epoch] == of_tasks for epoch, of_tasks in rows)
        return Counter(epoch for epoch, _ in rows)

    async def end_one_by_one(self, n: int, limit: int) -> Counter[Try]:
        """End `n` tries, one after another: the limit is always used up, and never exceeded. Returns them."""
        done: Counter[Try] = Counter()
        for n_left in range(n, 0, -1):
            await eventually(lambda: len(self.running) >= min(limit, n_left), "all that is free is given away")  # noqa: B023 - awaited here
            peer = max(self.both, key=lambda peer: len(peer.running))
            token = next(iter(peer.running))
            done[peer.running[token]] += 1
            peer.end(token)
        assert self.n_most == limit
        assert not self.running
        return done


@asynccontextmanager
async def two_schedulers(postgres_url: str, home: Path) -> AsyncIterator[Peers]:
    """Make two schedulers that hear one another; their requests wait until they are served."""
    keys = keys_of(Settings(home=str(home)))
    databases = [UninterruptedDatabase(await open_database(postgres_url, keys=keys)) for _ in range(3)]
    found = []
    for name, database in zip(("one", "other"), databases, strict=False):
        epoch, _ = await database.write(
            register, scheduler_id=name, hostname="h", pid=1, home=name, version="1", now=CLOCK.now(),
            lease_until=CLOCK.now(), takeover_seconds=30,
        )  # fmt: skip
        found.append(Peer(name, database, postgres_url, epoch, home / name, parallelism=2 * N_RUNS))
    async with anyio.create_task_group() as serving:

        def serve(peer: Peer) -> None:
            serving.start_soon(peer.evaluator.run)

        for peer in found:
            serving.start_soon(peer.listener.run)
        while not all(peer.channels.limits.qsize() for peer in found):  # until both listen
            await databases[2].write(notify, Hint("slots"))
            await anyio.sleep(0.02)
        yield Peers(found[0], found[1], databases[2], serve)
        serving.cancel_scope.cancel()
    for database in databases:
        await database.close()


def dag_of(n_tasks: int = 1, *, task_options: dict | None = None, **options) -> DAG:
    with DAG("d", schedule=None, **options) as dag:
        for number in range(n_tasks):
            BashOperator(task_id=f"t{number}", bash_command="true", **(task_options or {}))
    return dag


def serve_both(peers: Peers, n_runs: int = 2 * N_RUNS) -> None:
    """Serve with both, each as many runs at once as it has slots for their tasks."""
    for peer in peers.both:
        peer.limit_to(n_runs)
        peers.serve(peer)
