"""Explanations of task instances and runs in memory: true to the rules, and short enough to read."""

from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

from asynsched.explaining.explain import explain_run, explain_task
from asynsched.explaining.owners import Owners
from asynsched.explaining.snapshot import Snapshot
from asynsched.protocol.messages import Ended, Started
from asynsched.serialization.schema import MapLiteral
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.tickets import Whereabouts
from tests.support.runs import NOON, evaluation, run_of, started, task

SECOND = timedelta(seconds=1)


def seen(engine):
    return Snapshot(None, engine, None, now=NOON, unserved=None, owners=None)


def test_a_task_cleared_while_it_ran_will_run_again_after_its_process_ends():
    engine, run = evaluation(), run_of([task("a")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    cleared = run.instance("a")
    cleared.state = cleared.stored_state = TaskInstanceState.RESTARTING
    [reason] = explain_task(seen(engine), cleared).reasons
    assert reason.rule == "restarting"
    assert "cleared while try 1 was under way, whose process is being ended" in reason.text
    assert "runs again" in reason.release


def test_a_later_try_says_that_it_waits_for_the_process_of_an_earlier_one():
    engine, run = evaluation(), run_of([task("a")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    engine.pending.mark_stored()
    queued = run.instance("a")
    assert explain_task(seen(engine), queued).reasons[0].release == "it begins"
    queued.try_number = 2
    [reason] = explain_task(seen(engine), queued).reasons
    assert reason.line.startswith("try 2 was handed to the executor")
    assert reason.release == "it begins, once no process of an earlier try is left"


def test_of_a_try_on_another_machine_it_says_where_that_is():
    engine, run = evaluation(), run_of([task("a")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    engine.pending.mark_stored()
    queued = run.instance("a")
    snapshot, told = seen(engine), []
    for place in (
        Whereabouts("far", "submitted", False, "", ""),
        Whereabouts("far", "submitted", False, "queued: Connection refused", ""),
        Whereabouts("far", "submitted", True, "", ""),
        Whereabouts("far", "submitted", True, "unknown", ""),
        Whereabouts("far", "submitted", True, "queued: no worker listens on the queue gpu", ""),
        Whereabouts("far", "submitted", True, "running", ""),
        Whereabouts("far", "submitted", True, "gone: the node has failed", ""),
        Whereabouts("far", "claimed", True, "queued", "node-7"),
    ):
        snapshot.elsewhere = {queued.token: place}
        told.append(explain_task(snapshot, queued).reasons[0].text.partition(", and ")[2])
    assert told == [
        "the engine of executor far has not taken it yet",
        "the engine of executor far has not taken it: Connection refused",
        "the engine of executor far has taken it, but no worker has claimed it yet",
        "the engine of executor far has taken it, but does not say where it is; no worker has claimed it yet",
        "waits in the engine of executor far: no worker listens on the queue gpu",
        "its job runs, but no worker has claimed it yet",
        "the engine of executor far does not have it any more, and no worker has claimed it: the node has failed",
        "the worker node-7 prepares it",
    ]
    queued.state = queued.stored_state = TaskInstanceState.RUNNING
    assert "try 1 is running on the worker node-7" in explain_task(snapshot, queued).reasons[0].text


def explained(engine, run, state="running"):
    row = SimpleNamespace(run_id=run.key.run_id, dag_id=run.key.dag_id, state=state, reason="")
    return [reason.line for reason in explain_run(seen(engine), row, run).reasons]


def test_instances_with_one_reason_share_a_line_and_others_are_counted():
    engine, run = evaluation(parallelism=12), run_of([task("t", map_length=MapLiteral(300))])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    instances = run.instances["t"]
    for index, begun_at in [*((index, NOON) for index in range(4)), *((i, NOON + i * SECOND) for i in range(4, 12))]:
        engine.try_started(Started(instances[index].token, begun_at, 1), NOON)
    engine.pending.mark_stored()
    lines = explained(engine, run)
    assert len(lines) == 7
    assert lines[0].startswith("task t[0..3] (4 instances): try 1 is running since 2026")
    assert lines[5] == "task t[8..11] (4 instances): running, each in its own way; ask with --map-index"
    assert lines[6].startswith("task t[12..299] (288 instances): parallelism: 12 of 12 taken, 1 needed")
    assert explain_task(seen(engine), instances[299]).reasons[0].causes[-1].text == "and 7 more"


def test_what_holds_up_a_run_is_told_for_so_many_tasks_as_somebody_reads():
    engine, run = evaluation(), run_of([task(f"t{number}", pool=f"p{number}") for number in range(100)])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    assert explained(engine, run)[50:] == ["and 50 more: ask for a task"]


def test_a_missing_pool_is_told_once_for_all_tasks_that_name_it():
    run = run_of([*(task(f"t{n}", pool="big data") for n in range(20)), task("c", pool="closed")])
    engine = started(run, pools={"default_pool": 8, "closed": 0})
    assert explained(engine, run) == [
        (
            "tasks t0, t1, t2, t3, t4 and 15 more: there is no pool 'big data': `asynsched pools set 'big data' SLOTS`;"
            " until the pool is made"
        ),
        (
            "task c: the pool 'closed' has no slots: `asynsched pools set closed SLOTS`;"
            " until the pool is enlarged, or the executor is configured"
        ),
    ]


def test_what_is_behind_a_task_is_told_once_however_many_ways_lead_to_it():
    names = [[f"t{layer}_{number}" for number in range(5)] for layer in range(12)]
    tasks = [task(name, *after) for layer, after in pairwise([*names, ["last"]]) for name in layer]
    engine, run = evaluation(), run_of([*tasks, task("last")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    text = str(explain_task(seen(engine), run.instance("last")).reasons)
    assert text.count("try 1 was handed to the executor") == 5
    assert text.count("as above") == 11 * 5 * 4


def test_what_is_too_far_behind_on_one_way_is_told_on_a_shorter_one():
    chain = [f"c{number:02}" for number in range(12)]
    tasks = [task("y", "c00"), task("c00", "c01", "zz")]
    tasks += [task(name, after) for name, after in pairwise([*chain[1:], "last"])]
    tasks += [task("zz", "last"), task("last")]
    engine, run = evaluation(), run_of(tasks)
    engine.start_run(run, NOON)
    engine.grant(NOON)
    text = str(explain_task(seen(engine), run.instance("last")).reasons)
    assert text.count("try 1 was handed to the executor") == 1
    engine.try_ended(Ended(run.instance("y").token, "failed", NOON, NOON, reason="exit code 7"), NOON)
    text = str(explain_task(seen(engine), run.instance("last")).reasons)
    assert text.count("exit code 7") == 1


def test_of_many_failures_the_number_is_told():
    engine, run = evaluation(), run_of([task("t", map_length=MapLiteral(9))])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    for failed in list(run.instances["t"].values()):
        engine.try_ended(Ended(failed.token, "failed", NOON, NOON, reason="exit code 7"), NOON)
    assert explained(engine, run, "failed")[4:] == ["t[4]: failed", "and 4 more"]


async def test_a_run_that_waits_for_processes_says_so_and_names_a_lost_scheduler():
    engine, run = evaluation(), run_of([task("a")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON), NOON)
    engine.pending.mark_stored()
    run.stored_state = DagRunState.RUNNING
    nobody = Owners([], {}, now=NOON, is_shared=False)
    snapshot = Snapshot(None, engine, None, now=NOON, unserved=None, owners=nobody)
    row = SimpleNamespace(run_id=run.key.run_id, dag_id=run.key.dag_id, state="running", reason="")
    found = explain_run(snapshot, row, await snapshot.run(run.id, run.key))
    assert found.answer.startswith("No scheduler owns this run")
    assert found.reasons[1].line == (
        "all its tasks have ended: it ends once no process is left of tasks that were marked or removed while they ran"
    )


def test_of_slots_that_are_kept_it_names_the_task_that_they_are_kept_for():
    narrow = run_of([task(f"one{n}", pool="pool", priority_weight=2) for n in range(3)], dag_id="narrow")
    wide = run_of([task("all", pool="pool", pool_slots=2)], dag_id="wide")
    engine = started(narrow, wide, pools={"pool": 2}, keep_slots_after=timedelta(minutes=10))
    engine.grant(NOON)
    later = NOON + timedelta(minutes=10)
    engine.try_ended(Ended(narrow.instance("one0").token, "success", later, later), later)
    snapshot = Snapshot(None, engine, None, now=later, unserved=None, owners=None)
    [kept] = explain_task(snapshot, narrow.instance("one2")).reasons
    assert kept.line.startswith("free slots of the pool pool are kept for a task that waits for longer")
    assert [cause.about.dag_id for cause in kept.causes] == ["wide"]
