"""What is granted against limits that other schedulers share, and refused as it is stored."""

from asynsched.clock import VirtualClock
from asynsched.scheduling.shared_limits import SharedLimits
from asynsched.store.runs.changes import Stale
from asynsched.store.runs.slot_settlement import Settlement
from tests.support.runs import NOON, evaluation, run_of, task

NOTHING_STALE = Stale(frozenset(), frozenset())


class OthersHaveOne:
    """A database that refuses one task: another scheduler has as many of it as there may be."""

    is_shared = True

    def __init__(self, task_id):
        self.task_id = task_id

    async def write(self, query, batch, failed, claims, *rest):
        refused = frozenset(claim.key for claim in claims if claim.key[1] == self.task_id)
        tasks = {("dag", self.task_id): 1} if refused else {}
        return NOTHING_STALE, [], Settlement(refused=refused, tasks=tasks)


async def store(engine, limits):
    engine.grant(NOON)
    await limits.store([], tell=True)
    granted = [found.task_id for found in engine.pending.granted]
    engine.pending.mark_stored()
    engine.pending.clear()
    return granted


async def test_the_slot_of_a_refused_task_is_to_be_offered_to_others_at_once():
    engine = evaluation(pools={"default_pool": 1})
    limits = SharedLimits(engine, OthersHaveOne("a"), VirtualClock(NOON), ("scheduler", 1))
    engine.start_run(run_of([task("a", max_active_tis_per_dag=1), task("b")]), NOON)
    assert await store(engine, limits) == []
    assert limits.has_refused
    assert await store(engine, limits) == ["b"]
    assert not limits.has_refused
