"""Ready tasks wait per limit: the best goes first, and nothing hides behind something else."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched.protocol.messages import AwaitedInput, Deferral, Ended, TriggerOutcome
from asynsched.scheduling.announcements import task_launch
from asynsched.scheduling.evaluation.ready import Pool
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.rules.run_end import cancelled
from asynsched.serialization.schema import MapLiteral, SerializedRoute
from asynsched.states import PARKED_TASK_STATES
from asynsched.store.runs.pools import Settlement
from tests.support.runs import NOON, evaluation, run_of, started, task


def granted_keys(engine):
    engine.pending.clear()
    engine.grant(NOON)
    return [ready.key for ready in engine.pending.granted]


def test_a_full_pool_with_thousands_of_urgent_tasks_holds_up_no_other_pool():
    urgent = [task(f"urgent{n}", pool="small", priority_weight=1000) for n in range(3000)]
    engine = started(run_of([*urgent, task("modest", pool="free")]), pools={"small": 1, "free": 1})
    assert [key.task_id for key in granted_keys(engine)] == ["urgent0", "modest"]


def test_a_dag_with_a_thousand_ready_tasks_holds_up_no_other_dag():
    big = run_of([task(f"t{n}") for n in range(1000)], "big")
    engine = started(big, pools={"default_pool": 20}, max_active_tasks=16)
    engine.start_run(run_of([task("only")], "small"), NOON + timedelta(hours=1))
    keys = granted_keys(engine)
    assert [key.dag_id for key in keys].count("big") == 16
    assert ("small", "only") in [(key.dag_id, key.task_id) for key in keys]


def test_a_task_that_needs_many_slots_waits_until_they_are_free_together():
    run = run_of(
        [task(f"one{n}", pool="pool", priority_weight=2) for n in range(2)] + [task("all", pool="pool", pool_slots=8)]
    )
    engine = started(run, pools={"pool": 8})
    assert [key.task_id for key in granted_keys(engine)] == ["one0", "one1"]
    engine.try_ended(Ended(run.instance("one0").token, "success", NOON, NOON), NOON)
    assert granted_keys(engine) == []
    engine.try_ended(Ended(run.instance("one1").token, "success", NOON, NOON), NOON)
    assert [key.task_id for key in granted_keys(engine)] == ["all"]


@pytest.mark.parametrize(("keep_after", "wide_starts_at"), [(None, None), (timedelta(minutes=10), 12)])
def test_narrow_tasks_cannot_keep_a_wide_one_waiting_for_ever(keep_after, wide_starts_at):
    narrow = run_of([task(f"one{n:03}", pool="pool", priority_weight=2) for n in range(100)])
    wide = run_of([task("all", pool="pool", pool_slots=8)])
    engine = started(narrow, wide, pools={"pool": 8}, keep_slots_after=keep_after)
    running, started_at = [], None
    for minute in range(30):
        now = NOON + timedelta(minutes=minute)
        for ended in running[:3]:
            engine.try_ended(Ended(ended.token, "success", now, now), now)
        engine.pending.granted.clear()
        engine.grant(now)
        running = [*running[3:], *engine.pending.granted]
        if started_at is None and wide.instance("all") in running:
            started_at = minute
        used = sum(found.task.pool_slots for found in running)
        assert used <= 8
    assert started_at == wide_starts_at


def test_a_task_whose_pool_cannot_fit_it_says_so_until_the_pool_is_made():
    run = run_of([task("lost", pool="nowhere"), task("wide", pool="small", pool_slots=2)])
    engine = started(run, pools={"small": 1})
    assert granted_keys(engine) == []
    assert "asynsched pools set nowhere" in run.instance("lost").reason
    assert run.instance("wide").reason == "it needs 2 slots, and its pool 'small' has 1"
    engine.ready.resize_pools({"small": 2, "nowhere": 1})
    assert [key.task_id for key in granted_keys(engine)] == ["lost", "wide"]
    assert run.instance("lost").reason == ""


def test_a_paused_dag_starts_nothing_until_it_is_unpaused():
    engine = evaluation()
    engine.ready.pause("dag", paused=True)
    engine.start_run(run_of([task("a")]), NOON)
    assert granted_keys(engine) == []
    engine.ready.pause("dag", paused=False)
    assert [key.task_id for key in granted_keys(engine)] == ["a"]


def test_weight_goes_before_age_and_age_before_name():
    young = run_of([task("b"), task("a")], "young", run_after=NOON + timedelta(hours=1))
    heavy = run_of([task("heavy", priority_weight=9)], "young")
    engine = started(young, run_of([task("z")], "old"), heavy, parallelism=1)
    order = []
    while keys := granted_keys(engine):
        order.extend(key.task_id for key in keys)
        ready = engine.pending.granted[0]
        engine.try_ended(Ended(ready.token, "success", NOON, NOON), NOON)
    assert order == ["heavy", "z", "a", "b"]


def test_a_strategy_s_weight_of_the_next_try_decides_who_goes_first():
    falling = task("falling", pool="pool", try_weights=(5, 1), retries=1, retry_delay=0.0)
    run = run_of([falling, task("steady", pool="pool", priority_weight=3)])
    engine = started(run, pools={"pool": 1})
    assert [key.task_id for key in granted_keys(engine)] == ["falling"]
    assert run.instance("falling").route.priority_weight == 5
    engine.try_ended(Ended(run.instance("falling").token, "failed", NOON, NOON), NOON)
    engine.time_passed(NOON)
    assert [key.task_id for key in granted_keys(engine)] == ["steady"]
    assert run.instance("falling").route.priority_weight == 1


def routed(*routes, **fields):
    return task("routed", retries=3, retry_delay=0.0, routes=tuple(SerializedRoute(**one) for one in routes), **fields)


def test_a_retry_waits_for_the_pool_of_its_route_and_gives_its_slots_back_there():
    run = run_of([routed({"pool": "first"}, {"pool": "again", "pool_slots": 3}), task("beside", pool="again")])
    engine = started(run, pools={"first": 1, "again": 3})
    found, pools = run.instance("routed"), engine.ready.pools
    assert [key.task_id for key in granted_keys(engine)] == ["beside", "routed"]
    assert (pools["first"].used, pools["again"].used) == (1, 1)
    engine.try_ended(Ended(found.token, "failed", NOON, NOON), NOON)
    engine.time_passed(NOON)
    assert (granted_keys(engine), found.state, found.route.pool) == ([], "scheduled", "again")
    assert (pools["first"].used, pools["again"].used) == (0, 1)
    engine.try_ended(Ended(run.instance("beside").token, "success", NOON, NOON), NOON)
    assert [key.task_id for key in granted_keys(engine)] == ["routed"]
    assert (pools["first"].used, pools["again"].used) == (0, 3)
    engine.try_ended(Ended(found.token, "failed", NOON, NOON), NOON)
    engine.time_passed(NOON)
    assert [key.task_id for key in granted_keys(engine)] == ["routed"], "later tries have the last route"
    engine.try_ended(Ended(found.token, "success", NOON, NOON), NOON)
    assert (pools["first"].used, pools["again"].used) == (0, 0)


def test_an_interrupted_or_deferred_try_goes_on_in_its_own_pool():
    run = run_of([routed({"pool": "first"}, {"pool": "again"})])
    engine = started(run, pools={"first": 1, "again": 1})
    found, pools = run.instance("routed"), engine.ready.pools
    granted_keys(engine)
    engine.try_ended(Ended(found.token, "failed", NOON, NOON, cause="interrupted"), NOON)
    assert granted_keys(engine)
    assert found.route.pool == "first"
    deferral = Deferral("module.Trigger", {}, "go_on")
    engine.try_ended(Ended(found.token, "deferred", NOON, NOON, deferral=deferral), NOON)
    engine.trigger_fired(TriggerOutcome(found.token, "event"), NOON)
    assert granted_keys(engine)
    assert (found.route.pool, pools["first"].used, pools["again"].used) == ("first", 1, 0)


def test_a_retry_whose_route_names_no_pool_says_so():
    run = run_of([routed({"pool": "first"}, {"pool": "nowhere"})])
    engine = started(run, pools={"first": 1})
    granted_keys(engine)
    engine.try_ended(Ended(run.instance("routed").token, "failed", NOON, NOON), NOON)
    engine.time_passed(NOON)
    assert granted_keys(engine) == []
    assert "there is no pool 'nowhere'" in run.instance("routed").reason


def test_a_retry_is_launched_and_stored_by_its_route_with_its_earlier_try():
    config = {"mem": "4G"}
    slow = {"queue": "slow", "pool_slots": 2, "executor": "other", "executor_config": config, "priority_weight": 40}
    run = run_of([routed({}, slow, priority_weight=2)])
    engine = started(run, executors={"local": 9, "other": 1})
    found = run.instance("routed")
    granted_keys(engine)
    engine.try_ended(Ended(found.token, "failed", NOON, NOON), NOON)
    engine.time_passed(NOON)
    [earlier] = engine.pending.history
    assert (earlier.queue, earlier.executor, earlier.priority_weight) == ("default", None, 2)
    assert granted_keys(engine)
    launch = task_launch(found, 1)
    assert (launch.queue, launch.pool_slots, launch.executor, launch.priority_weight) == ("slow", 2, "other", 40)
    assert launch.executor_config == config
    assert [limit.name for limit in engine.ready.limits_of(found) if limit.used and "other" in limit.name]
    [(_, row)] = engine.pending.task_rows()
    assert (row.queue, row.executor, row.priority_weight) == ("slow", "other", 40)


@pytest.mark.parametrize(
    ("state", "try_number", "pool"),
    [
        (None, 0, "first"), ("scheduled", 0, "first"), ("queued", 1, "first"), ("running", 1, "first"),
        ("restarting", 1, "first"), ("deferred", 0, "first"), ("up_for_retry", 1, "first"), ("failed", 1, "first"),
        ("scheduled", 1, "again"), ("running", 2, "again"), ("up_for_reschedule", 1, "again"), ("success", 3, "again"),
    ],
)  # fmt: skip
def test_a_stored_task_instance_holds_slots_where_its_try_has_taken_them(state, try_number, pool):
    run = run_of([routed({"pool": "first"}, {"pool": "again"})])
    found = ActiveTask(run, run.structure.tasks["routed"], state=state, try_number=try_number)
    assert found.route.pool == pool


def test_a_cancelled_run_leaves_nothing_in_the_queues():
    run = run_of([task(f"t{n}") for n in range(10)])
    engine = started(run, parallelism=1)
    granted_keys(engine)
    engine.stop_run(run.key, cancelled("no longer wanted"), NOON)
    engine.try_ended(Ended(run.instance("t0").token, "failed", NOON, NOON, "killed"), NOON)
    assert run.state == "failed"
    assert not engine.ready._lanes
    assert granted_keys(engine) == []


@st.composite
def workloads(draw):
    pools = {f"pool{n}": draw(st.integers(1, 3)) for n in range(draw(st.integers(1, 3)))}
    runs = [
        [
            task(
                f"t{number}",
                pool=draw(st.sampled_from([*pools, "missing"])),
                pool_slots=draw(st.integers(1, 2)),
                priority_weight=draw(st.integers(0, 3)),
                max_active_tis_per_dag=draw(st.sampled_from([None, 1])),
            )
            for number in range(draw(st.integers(1, 6)))
        ]
        for _ in range(draw(st.integers(1, 3)))
    ]
    return pools, runs, draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.randoms(use_true_random=False))


@given(workloads())
def test_a_ready_task_starts_if_all_limits_have_room_and_exceeds_none(workload):
    pools, runs, parallelism, per_run, random = workload
    engine = evaluation(parallelism=parallelism, pools=pools, max_active_tasks=per_run)
    active = [run_of(tasks, f"dag{number % 2}") for number, tasks in enumerate(runs)]
    for run in active:
        engine.start_run(run, NOON)
    while True:
        granted_keys(engine)
        tasks = [found for run in active for found in run.all_instances()]
        busy = [found for found in tasks if found.state == "queued"]
        parked = [found for found in tasks if found.state in PARKED_TASK_STATES]
        assert fits(busy, parked, pools, parallelism, per_run)
        for waiting in (found for found in tasks if found.state == "scheduled"):
            assert not fits([*busy, waiting], parked, pools, parallelism, per_run), f"{waiting.key} could start"
        if not busy and not parked:
            break
        chosen = random.choice([*busy, *parked])
        if chosen in parked:
            engine.trigger_fired(TriggerOutcome(chosen.token, "event"), NOON)
        elif chosen.deferral is None and random.random() < 0.5:
            asked = random.choice([None, AwaitedInput("Go on?")])
            deferral = Deferral("module.Trigger", {}, "go_on", input=asked)
            engine.try_ended(Ended(chosen.token, "deferred", NOON, NOON, deferral=deferral), NOON)
        else:
            engine.try_ended(Ended(chosen.token, "success", NOON, NOON), NOON)


def fits(busy, parked, pools, parallelism, per_run):
    """Count every limit from the tasks alone."""
    slots = {}
    runs = {}
    for found in busy:
        slots[found.task.pool] = slots.get(found.task.pool, 0) + found.task.pool_slots
        runs[found.run.key] = runs.get(found.run.key, 0) + 1
    single = [found for found in (*busy, *parked) if found.task.max_active_tis_per_dag]
    singles = [(found.run.key.dag_id, found.task_id) for found in single]
    return (
        len(busy) <= parallelism
        and all(used <= pools.get(name, 0) for name, used in slots.items())
        and all(used <= per_run for used in runs.values())
        and len(set(singles)) == len(singles)
    )


def test_an_end_is_news_only_for_those_who_waited_for_what_it_gives_back(monkeypatch):
    offers = []
    offer = Pool.offer
    monkeypatch.setattr(Pool, "offer", lambda pool, lane: offers.append(lane) or offer(pool, lane))
    engine = evaluation(pools={"default_pool": 1})
    runs = [run_of([task("a")]) for _ in range(100)]
    for run in runs:
        engine.start_run(run, NOON)
    for run in runs:
        engine.grant(NOON)
        engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON), NOON)
    assert {run.state for run in runs} == {"success"}
    assert len(offers) < 1000


def test_a_pool_that_does_not_exist_is_told_apart_from_one_without_slots():
    run = run_of([task("a", pool="closed"), task("b", pool="none")])
    started(run, pools={"default_pool": 1, "closed": 0})
    assert "the pool 'closed' has no slots:" in run.instance("a").reason
    assert "there is no pool 'none':" in run.instance("b").reason


def test_a_newer_version_that_allows_more_of_a_task_lets_older_runs_go_on():
    older = run_of([task("limited", max_active_tis_per_dag=1, map_length=MapLiteral(3))])
    engine = started(older)
    assert len(granted_keys(engine)) == 1
    newer = run_of([task("limited", max_active_tis_per_dag=4)])
    newer.version_id = 2
    engine.start_run(newer, NOON)
    assert len(granted_keys(engine)) == 3


def test_a_limit_of_which_others_are_found_to_use_less_lets_its_tasks_go():
    run = run_of([task("limited", max_active_tis_per_dag=2, map_length=MapLiteral(4))])
    engine = started(run)
    of_task = (run.key.dag_id, "limited")
    engine.ready.note_settled(Settlement(tasks={of_task: 1}), None)
    assert len(granted_keys(engine)) == 1
    engine.ready.note_settled(Settlement(tasks={of_task: 0}), None)
    assert len(granted_keys(engine)) == 1
    for found in run.instances["limited"].values():
        if found.token is not None:
            engine.try_ended(Ended(found.token, "success", NOON, NOON), NOON)
    assert len(granted_keys(engine)) == 2


def test_tasks_of_a_pool_that_was_deleted_unheard_are_refused_once():
    engine = started(run_of([task("a", pool="pool"), task("b", pool="pool", pool_slots=2)]), pools={"pool": 4})
    assert len(granted_keys(engine)) == 2
    refused = frozenset((ready.run.id, ready.task_id, ready.map_index) for ready in engine.pending.granted)
    engine.batch_stored(Settlement(refused=refused, capacities={"pool": 0}), None, NOON)
    assert granted_keys(engine) == []
    engine.ready.note_settled(Settlement(capacities={"pool": 2}), None)
    assert len(granted_keys(engine)) == 1
    engine.ready.note_settled(Settlement(capacities={"pool": -1}), None)
    assert len(granted_keys(engine)) == 1


@pytest.mark.parametrize("step", [timedelta(seconds=1), -timedelta(hours=1)], ids=["goes on", "is set back"])
def test_a_pool_that_another_scheduler_settles_is_tried_again_soon_though_the_clock(step):
    engine = started(run_of([task("a", pool="pool")]), pools={"pool": 1})
    engine.ready.note_settled(Settlement(busy_pools=frozenset({"pool"})), NOON + timedelta(milliseconds=5))
    assert granted_keys(engine) == []
    engine.ready.try_again(NOON + step)
    engine.grant(NOON + step)
    assert [ready.task_id for ready in engine.pending.granted] == ["a"]
