"""The scheduler dies at any call to its database, before or after it was done, and the next one goes on from there."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest
import sqlalchemy as sa
from anyio.lowlevel import checkpoint

from asynsched import DAG, BashOperator, assembly, slices
from asynsched.airflow import installation
from asynsched.airflow.policies import Policies
from asynsched.channels import Channels, RunCreated, RunEdited
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import Launch
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.simulation.script import Outcome
from asynsched.simulation.simulation import MOMENT
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkTasks, add_request, open_requests
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.schema import callback_request
from tests.support.crashing import Crash, CrashingSimulated

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RUN = DagRunKey("dag", "r")


def script(launch: Launch) -> Outcome:
    """The task `fails` fails after 40 s; every other takes two minutes."""
    if launch.task_id == "fails":
        return Outcome("failed", MINUTE * 2 / 3, "no luck")
    return Outcome(duration=2 * MINUTE)


def simulation(tmp_path, *requests, options, fails=False, **crash) -> CrashingSimulated:
    """Return a simulation of a run about which people make these requests after half a minute."""
    with DAG("dag", **options) as dag:
        first = BashOperator(task_id="first", bash_command="true", retries=2, retry_delay=timedelta())
        first >> BashOperator(task_id="last", bash_command="true")
        if fails:
            BashOperator(task_id="fails", bash_command="true")
    simulated = CrashingSimulated(tmp_path, [dag], script, START, **crash)
    simulated.settings = msgspec.structs.replace(simulated.settings, sweep_interval=86_400.0)
    database = simulated.inline

    async def act(channels):
        await database.write(create_manual_run, RUN.dag_id, Trigger(run_id=RUN.run_id), now=START)
        await channels.runs.put(RunCreated(RUN))
        await simulated.clock.sleep(MINUTE / 2)
        run = await database.read(get_run, *RUN)
        for request in requests:
            await database.write(add_request, run.id, request, actor="ann", now=simulated.clock.now())
        simulated.crashing.arm()
        await channels.runs.put(RunEdited(RUN))

    simulated.act = act
    return simulated


async def story(simulated: CrashingSimulated):
    """Serve, and return how the run and its tasks ended, how and when each try, and the remaining work."""
    await asyncio.to_thread(simulated.run_for, 15 * MINUTE)
    run = await simulated.inline.read(get_run, *RUN)
    tasks = {row.task_id: (row.state, row.reason) for row in await simulated.inline.read(load_task_instances, run.id)}
    left = await simulated.inline.read(open_requests, run.lease_epoch), simulated.executor.running
    return run.state, run.reason, tasks, simulated.executor.ends, left


CASES = {
    "nothing wanted": ([], {}),
    "mark": ([MarkTasks(("first",), "success")], {}),
    "clear": ([ClearTasks(("first",))], {}),
    "cancel": ([CancelRun()], {}),
    "fail fast": ([], {"options": {"fail_fast": True}, "fails": True}),
    "timeout": ([], {"options": {"dagrun_timeout": MINUTE}}),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", CASES)
async def test_the_next_scheduler_carries_on_wherever_the_last_one_died(tmp_path, case, after):
    requests, options = CASES[case]
    options = {"options": {}} | options
    undisturbed = simulation(tmp_path, *requests, **options)
    expected = await story(undisturbed)
    assert expected[4] == ([], {})
    for n in range(undisturbed.crashing.n_calls):
        assert await story(simulation(tmp_path, *requests, **options, crashes_at=n, after=after)) == expected, (
            f"call {n}"
        )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_listeners_hear_of_a_runs_begin_and_end_wherever_the_scheduler_died(tmp_path, monkeypatch, after):
    """The calls are at least once: a process that was begun and whose end is not stored is begun again."""
    events = ("on_dag_run_running", "on_dag_run_success")
    plugins = SimpleNamespace(links_of=lambda _: ())
    loaded = SimpleNamespace(events=events, digest="1", plugins=plugins, policies=Policies())
    monkeypatch.setattr(installation, "loaded", loaded)

    async def heard(**crash) -> tuple[CrashingSimulated, Counter[str]]:
        simulated = simulation(tmp_path, options={}, **crash)

        async def act(channels):
            await simulated.inline.write(create_manual_run, RUN.dag_id, Trigger(run_id=RUN.run_id), now=START)
            simulated.crashing.arm()
            await channels.runs.put(RunCreated(RUN))

        simulated.act = act
        assert (await story(simulated))[0] == "success"
        requests = await simulated.inline.read(lambda conn: conn.execute(sa.select(callback_request)).all())
        assert sorted((one.event, one.state) for one in requests) == [(event, "success") for event in events]
        return simulated, Counter(one.callback["event"] for one in simulated.executor.launched if one.callback)

    undisturbed, launched = await heard()
    assert launched == dict.fromkeys(events, 1)
    for n in range(undisturbed.crashing.n_calls):
        _, launched = await heard(crashes_at=n, after=after)
        assert launched.keys() == set(events), f"call {n}"


async def test_a_scheduler_that_dies_between_two_slices_leaves_nothing_half_done(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "AT_ONCE", 3)
    monkeypatch.setattr(assembly, "AT_ONCE", 3)
    pauses: list[int] = []

    def sliced(crashes_at: int | None = None) -> CrashingSimulated:
        with DAG("dag") as dag:
            source = BashOperator(task_id="source", bash_command="true")
            mapped = BashOperator.partial(task_id="mapped").expand(bash_command=source.output)
            mapped >> BashOperator(task_id="last", bash_command="true")
        simulated = CrashingSimulated(tmp_path, [dag], returns_seven, START)
        pauses.clear()

        async def pause() -> None:
            pauses.append(len(pauses))
            if pauses[-1] == crashes_at:
                raise Crash
            await checkpoint()

        async def act(channels: Channels) -> None:
            await simulated.inline.write(create_manual_run, RUN.dag_id, Trigger(run_id=RUN.run_id), now=START)
            await channels.runs.put(RunCreated(RUN))

        monkeypatch.setattr(slices, "checkpoint", pause)
        simulated.act = act
        return simulated

    expected = await story(sliced())
    n_pauses = len(pauses)
    assert expected[0] == "success"
    assert Counter(end[0] for end in expected[3]) == {"source": 1, "mapped": 7, "last": 1}
    assert n_pauses > 5
    for n in range(n_pauses):
        assert await story(sliced(crashes_at=n)) == expected, f"pause {n}"


def returns_seven(launch: Launch) -> Outcome:
    """Every task takes a minute; `source` returns seven values."""
    return Outcome(duration=MINUTE, return_value=["true"] * 7 if launch.task_id == "source" else None)


async def test_a_run_is_not_stuck_between_its_takeover_and_the_look_at_its_tasks(tmp_path, monkeypatch):
    evaluators: list[DependencyEvaluator] = []
    recover = DependencyEvaluator.recover

    async def noted(evaluator: DependencyEvaluator, held: Held, now: datetime) -> None:
        await recover(evaluator, held, now)
        evaluators.append(evaluator)

    monkeypatch.setattr(DependencyEvaluator, "recover", noted)
    simulated = simulation(tmp_path, options={})
    # The first task ends while its scheduler stops, which starts no other any more.
    await asyncio.to_thread(simulated.run_for, 2 * MINUTE - MOMENT / 2)
    assert [launch.task_id for launch in simulated.executor.launched] == ["first"]
    seen: list[bool] = []
    simulated.crashing.watch = lambda: seen.append(evaluators[-1].is_at_a_standstill)
    simulated.act = None
    assert (await story(simulated))[0] == "success"
    assert not any(seen)
