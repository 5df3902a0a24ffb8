"""Several schedulers on one PostgreSQL database: what they share is never given twice, and nothing of it is left lying.

Two evaluators work at once on a real server and wake one another by its notifications; there are no sweeps, and the
executor is the test.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from asynsched import DAG, BashOperator
from asynsched.assembly.evaluating import make_evaluator
from asynsched.assembly.foundation import Foundation
from asynsched.bell import Hint, encode_hints
from asynsched.channels import Channels, SchedulersChanged, TaskFinished, TaskReady, TryUnwanted
from asynsched.clock import SystemClock
from asynsched.housekeeping.notification_listener import NotificationListener
from asynsched.housekeeping.peer_watch import enter, leave
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.scheduling.versions import VersionCache
from asynsched.settings import Settings
from asynsched.store.dag_runs import list_runs
from asynsched.store.database import Database
from asynsched.store.engines.async_database import open_database
from asynsched.store.engines.urls import parse_url
from asynsched.store.notifications import notify
from asynsched.store.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.pools import set_pool
from asynsched.store.run_requests import CancelRun
from asynsched.store.schedulers import register_scheduler
from asynsched.store.schema.tables import dag_run, dag_version, task_instance
from sandbox.protocol import Ended
from tests.support.simulated import report_of
from tests.support.waiting import eventually

N_RUNS = 8
STAMP = FileStamp("", 0, 0, "")
DEFAULTS = DagDefaults(max_active_runs=16, paused=False)
CLOCK = SystemClock()
Try = tuple[str, str]
"""run_id, task_id"""


class UninterruptedDatabase(Database):
    """A database whose queries are not broken off when a scheduler is: no connection is left half open."""

    is_shared = True

    def __init__(self, inner: Database) -> None:
        self.inner = inner

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await self.inner.read(query, *args, **kwargs)

    async def write(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        with anyio.CancelScope(shield=True):
            return await self.inner.write(query, *args, **kwargs)

    async def close(self) -> None:
        await self.inner.close()


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
            clock=CLOCK, database=database, database_url=url, scheduler_id=name, lease_epoch=epoch,
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
        """Let no more tasks run at once here."""
        self.evaluator._evaluation.queues.parallelism.capacity = parallelism

    def end(self, *tokens: str) -> None:
        """Let tries succeed."""
        for token in tokens:
            del self.running[token]
            self.channels.finished.put_nowait(TaskFinished(Ended(token, "success", CLOCK.now())))


class Peers:
    """Two schedulers, and what the database says of their work."""

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
        """Make runs of a DAG, as somebody does from another terminal."""

        def trigger(conn: sa.Connection) -> None:
            store_report(conn, report_of(dag), STAMP, now=CLOCK.now(), defaults=DEFAULTS)
            keys = [create_manual_run(conn, "d", now=CLOCK.now(), run_id=f"r{number}") for number in range(n)]
            notify(conn, encode_hints([Hint("run", *key) for key in keys]))

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
        """End `n` tries, one after another: the limit is always taken up, and never exceeded. Returns what has run."""
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
    """Make two schedulers that hear one another; what they are asked to do waits until they are served."""
    databases = [UninterruptedDatabase(await open_database(postgres_url)) for _ in range(3)]
    found = []
    for name, database in zip(("one", "other"), databases, strict=False):
        epoch = await database.write(
            enter, scheduler_id=name, hostname="h", pid=1, home=name, version="1", now=CLOCK.now(),
            lease_until=CLOCK.now(),
        )  # fmt: skip
        found.append(Peer(name, database, postgres_url, epoch, home / name, parallelism=2 * N_RUNS))
    async with anyio.create_task_group() as serving:

        def serve(peer: Peer) -> None:
            serving.start_soon(peer.evaluator.run)

        for peer in found:
            serving.start_soon(peer.listener.run)
        while not all(peer.channels.active_runs.qsize() for peer in found):  # until both listen
            await databases[2].write(notify, encode_hints([Hint("slots")]))
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
    """Let both serve, each as many runs at once as it has slots for their tasks."""
    for peer in peers.both:
        peer.limit_to(n_runs)
        peers.serve(peer)


async def test_each_run_is_started_by_one_and_max_active_runs_holds_for_all_together(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        serve_both(peers)
        await peers.trigger(dag_of(max_active_runs=3))
        await eventually(lambda: len(peers.running) == 3, "three runs are running")
        owners = await peers.owners()
        assert sum(owners.values()) == 3
        done = await peers.end_one_by_one(N_RUNS, limit=3)
        assert set(done.values()) == {1}
        assert len(done) == N_RUNS


@pytest.mark.parametrize("shared", ["pool", "max_active_tis_per_dag"])
async def test_what_tasks_share_is_never_given_twice_and_never_left_lying(postgres_url, tmp_path, shared):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        options = {"pool": "narrow"} if shared == "pool" else {"max_active_tis_per_dag": 3}
        await peers.database.write(set_pool, "narrow", 3)
        one, other = peers.both
        one.limit_to(3)
        other.limit_to(0)
        for peer in peers.both:
            peers.serve(peer)
        await peers.trigger(dag_of(task_options=options))
        await eventually(lambda: len(one.running) == 3, "one has all that there is")
        # What the other knows of that is older: only the database can refuse it.
        other.limit_to(N_RUNS)
        other.evaluator.wake()
        await eventually(lambda: other.evaluator.n_runs == N_RUNS - 3, "the other has the rest")
        done = await peers.end_one_by_one(N_RUNS, limit=3)
        assert set(done.values()) == {1}
        assert len(done) == N_RUNS


async def test_one_that_is_full_leaves_queued_runs_to_the_others(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        serve_both(peers, n_runs=N_RUNS // 2)
        await peers.trigger(dag_of(max_active_runs=100))
        await eventually(lambda: len(peers.running) == N_RUNS, "all runs are running")
        assert [len(peer.running) for peer in peers.both] == [N_RUNS // 2] * 2


async def test_a_task_that_depends_on_its_past_hears_of_that_from_another_scheduler(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        peers.serve(one)
        await peers.trigger(dag_of(2, task_options={"depends_on_past": True}), 1)
        await eventually(lambda: len(one.running) == 2, "the first run is running")
        one.limit_to(2)
        peers.serve(other)
        await peers.database.write(create_manual_run, "d", now=CLOCK.now(), run_id="later")
        await peers.database.write(notify, encode_hints([Hint("run", "d", "later")]))
        await eventually(lambda: other.evaluator.n_runs == 1, "the second run is the other's")
        assert not other.running
        token = next(iter(one.running))
        _, task_id = one.running[token]
        one.end(token)
        await eventually(lambda: list(other.running.values()) == [("later", task_id)], "its past has let it go")


async def test_a_request_reaches_the_scheduler_that_has_the_run(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        serve_both(peers, n_runs=1)
        await peers.trigger(dag_of(), 2)
        await eventually(lambda: len(peers.running) == 2, "both runs are running")
        for run_id in ("r0", "r1"):

            def cancel(conn: sa.Connection, run: DagRunKey) -> None:
                submit_request(conn, run, CancelRun(), actor="me", now=CLOCK.now())
                notify(conn, encode_hints([Hint("edit", *run)]))

            await peers.database.write(cancel, DagRunKey("d", run_id))
        await eventually(lambda: [len(peer.unwanted) for peer in peers.both] == [1, 1], "each is to kill its own try")
        assert all([*peer.running] == peer.unwanted for peer in peers.both)


@pytest.mark.parametrize("how", ["left", "next of its home"])
async def test_the_runs_of_one_that_is_gone_go_on_with_another(postgres_url, tmp_path, how):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        peers.serve(one)
        await peers.trigger(dag_of(2), 2)
        await eventually(lambda: len(one.running) == 4, "one runs all")
        lost = dict(one.running)
        peers.serve(other)
        if how == "next of its home":
            # Its keeper may still run its tries: nobody else may take them, not even for a moment.
            await peers.database.write(
                register_scheduler, scheduler_id="heir", hostname="h", pid=1, home="one", version="1", now=CLOCK.now(),
                lease_until=CLOCK.now(),
            )  # fmt: skip
            other.channels.active_runs.put_nowait(SchedulersChanged())
            await eventually(lambda: other.channels.active_runs.empty(), "the other has looked")
            assert await peers.owners() == {one.epoch: 2}
            return
        await peers.database.write(leave, "one", CLOCK.now())
        other.channels.active_runs.put_nowait(SchedulersChanged())
        # Whether it has begun them is not known: they are launched under their tokens, each of which starts once.
        await eventually(lambda: other.running == lost, "the other runs all")
        assert await peers.owners() == {other.epoch: 2}
        # The one that was taken for gone wakes up: nothing that it says counts any more.
        one.end(*lost)
        await eventually(lambda: one.evaluator.n_runs == 0, "it has let go of the runs")
        assert set((await peers.states()).values()) == {"running"}
        other.end(*lost)
        await peers.until_all_are("success")


async def test_a_run_that_waited_here_when_another_began_it_is_taken_over_once(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        one.limit_to(1)
        other.limit_to(0)
        for peer in peers.both:
            peers.serve(peer)
        await peers.trigger(dag_of(max_active_runs=100), 1)
        await eventually(lambda: one.running, "one runs it")
        await eventually(
            lambda: other.channels.active_runs.empty() and not other.evaluator.is_idle, "the other takes it for queued"
        )
        lost = dict(one.running)
        await peers.database.write(leave, "one", CLOCK.now())
        other.channels.active_runs.put_nowait(SchedulersChanged())
        await eventually(lambda: other.running == lost, "the other has it")
        other.limit_to(N_RUNS)
        await peers.database.write(create_manual_run, "d", now=CLOCK.now(), run_id="later")
        await peers.database.write(notify, encode_hints([Hint("run", "d", "later")]))
        await eventually(lambda: ("later", "t0") in other.running.values(), "what is queued has been looked at")
        assert [token for token, (run_id, _) in other.running.items() if run_id == "r0"] == [*lost]
        other.end(*other.running)
        await peers.until_all_are("success")


async def test_a_run_whose_code_only_a_newer_version_can_read_is_left_to_that_one(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        dag = dag_of()
        await peers.trigger(dag, 1)
        stored = await peers.database.read(lambda conn: conn.scalar(sa.select(dag_version.c.serialized)))
        newer = sa.update(dag_version).values(serialized=b'{"from": "tomorrow"}')
        await peers.database.write(lambda conn: conn.execute(newer))
        with capture_logs() as logs:
            serve_both(peers)
            await eventually(
                lambda: [line["event"] for line in logs].count("run.left_to_others") >= 2, "both have seen it"
            )
        assert await peers.states() == {"r0": "queued"}

        def can_be_read(conn: sa.Connection) -> None:
            conn.execute(sa.update(dag_version).values(serialized=stored))
            notify(conn, encode_hints([Hint("run", "d", "r0")]))

        await peers.database.write(can_be_read)
        await eventually(lambda: len(peers.running) == 1, "it starts with who can read it")
