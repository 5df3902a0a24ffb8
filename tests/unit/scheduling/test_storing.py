"""Grants against limits that other schedulers share, which are refused as they are stored."""

from asynsched.bell import Hint
from asynsched.clock import VirtualClock
from asynsched.protocol.messages import Deferral, Ended
from asynsched.scheduling.storing import Storing
from asynsched.store.runs.pools import Settlement
from asynsched.store.runs.transitions import Stale
from tests.support.runs import NOON, evaluation, run_of, task

NOTHING_STALE = Stale(frozenset(), frozenset())


class OthersHaveOne:
    """A database that refuses one task: another scheduler has as many of it as there may be."""

    is_shared = True

    def __init__(self, task_id):
        self.task_id = task_id

    async def write(self, _query, *_args, grants, **_kwargs):
        refused = frozenset(grant.key for grant in grants if grant.key[1] == self.task_id)
        tasks = {("dag", self.task_id): 1} if refused else {}
        return NOTHING_STALE, [], Settlement(refused=refused, tasks=tasks)


async def granted_by_storing(engine, storing):
    engine.grant(NOON)
    stored = await storing.store(engine.pending, tell=True)
    engine.batch_stored(stored.settled, stored.retry_at, NOON)
    granted = [found.task_id for found in engine.pending.granted]
    engine.pending.mark_stored()
    engine.pending.clear()
    return granted


async def test_the_slot_of_a_refused_task_is_to_be_offered_to_others_at_once():
    engine = evaluation(pools={"default_pool": 1})
    storing = Storing(OthersHaveOne("a"), VirtualClock(NOON), engine.ready, max_failed_runs=0)
    run = run_of([task("a", max_active_tis_per_dag=1), task("b")])
    engine.start_run(run, NOON)
    assert await granted_by_storing(engine, storing) == []
    assert (run.instance("a").state, run.instance("a").try_number, run.instance("a").token) == ("scheduled", 0, None)
    assert await granted_by_storing(engine, storing) == ["b"]


class Listening:
    """A database that stores everything, and keeps the hints for other schedulers."""

    is_shared = True

    def __init__(self):
        self.hints = []

    async def write(self, _query, *_args, hints, **_kwargs):
        self.hints += hints
        return NOTHING_STALE, [], Settlement()


async def test_other_schedulers_hear_that_a_deferred_task_has_given_back_its_slots():
    engine, database = evaluation(pools={"default_pool": 1}), Listening()
    storing = Storing(database, VirtualClock(NOON), engine.ready, max_failed_runs=0)
    run = run_of([task("a")])
    engine.start_run(run, NOON)
    assert await granted_by_storing(engine, storing) == ["a"]
    deferral = Deferral("module.Trigger", {}, "resume")
    engine.try_ended(Ended(run.instance("a").token, "deferred", NOON, NOON, deferral=deferral), NOON)
    await granted_by_storing(engine, storing)
    assert database.hints == [Hint("slots", origin="scheduler")]
