"""Several schedulers on one PostgreSQL database: shared slots are never given twice, and none are left unused.

Two evaluators work at once on a real server and wake one another by its notifications; there are no sweeps, and the
executor is the test.
"""

from functools import partial

import pytest

from asynsched.bell import Hint
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.store.runs.pools import set_pool
from asynsched.store.runs.requests import CancelRun
from asynsched.store.schedulers import notify
from tests.support.peers import CLOCK, N_RUNS, dag_of, serve_both, two_schedulers
from tests.support.waiting import eventually


async def test_each_run_starts_once_and_schedulers_share_max_active_runs(postgres_url, tmp_path):
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
        # The other one's knowledge is older: only the database can refuse it.
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


async def test_a_task_that_depends_on_the_past_hears_from_another_scheduler(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        peers.serve(one)
        await peers.trigger(dag_of(2, task_options={"depends_on_past": True}), 1)
        await eventually(lambda: len(one.running) == 2, "the first run is running")
        one.limit_to(2)
        peers.serve(other)
        await peers.database.write(create_manual_run, "d", Trigger(run_id="later"), now=CLOCK.now())
        await peers.database.write(notify, Hint("run", "d", "later"))
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
            cancel = partial(submit_request, key=DagRunKey("d", run_id), request=CancelRun())
            await peers.database.write(cancel, actor="me", now=CLOCK.now())
        await eventually(lambda: [len(peer.unwanted) for peer in peers.both] == [1, 1], "each is to kill its own try")
        assert all([*peer.running] == peer.unwanted for peer in peers.both)
