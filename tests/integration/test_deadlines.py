"""Deadlines of runs in virtual time: missed at the very moment, or met, also when no scheduler served meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from asynsched import DAG, BashOperator, DeadlineAlert, DeadlineReference, SyncCallback, VariableInterval
from asynsched.channels import RunCreated
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.scheduling.storing import apply_and_pause
from asynsched.simulation.script import Outcome
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.deadlines import (
    PLACE_EVENT,
    decide_due_deadlines,
    list_deadlines,
    next_deadline_at,
    place_deadline,
)
from asynsched.store.runs.requests import ClearTasks
from asynsched.store.runs.transitions import Stale
from asynsched.store.schema import callback_request
from tests.support.flaky_database import FlakyDatabase
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
QUEUED, LOGICAL = DeadlineReference.DAGRUN_QUEUED_AT, DeadlineReference.DAGRUN_LOGICAL_DATE


def shout(reason):
    """Is called when a deadline is missed."""


def simulation(tmp_path, *alerts, ends_as="success", lasts=HOUR, **options) -> Simulated:
    """Return a simulation of one DAG with a task of an hour; `alerts` are its deadlines."""
    callback = SyncCallback(shout, {"reason": "late"})
    deadline = [DeadlineAlert(reference, interval, callback, str(number)) for number, (reference, interval) in alerts]
    with DAG("dag", deadline=deadline, **options) as dag:
        BashOperator(task_id="a", bash_command="true")

    def script(launch):
        return Outcome(duration=timedelta()) if launch.callback else Outcome(ends_as, lasts)

    return Simulated(tmp_path, [dag], script, START)


async def serve(simulated: Simulated, hours: float, *triggered_at: timedelta) -> None:
    async def act(channels):
        for at in triggered_at:
            await simulated.clock.sleep(START + at - simulated.clock.now())
            now = simulated.clock.now()
            key = await simulated.database.write(
                create_manual_run, "dag", Trigger(run_id=f"r{at // HOUR}", logical_date=now - 5 * MINUTE), now=now
            )
            await channels.runs.put(RunCreated(key))

    simulated.act = act
    await asyncio.to_thread(simulated.run_for, timedelta(hours=hours))


async def told(simulated: Simulated, run_id: str = "r0") -> list[tuple[str, timedelta, str]]:
    """Return the name, the time since the start and the state of each deadline of a run."""
    run = await simulated.database.read(get_run, "dag", run_id)
    deadlines = await simulated.database.read(list_deadlines, run.id)
    return [(deadline.name, deadline.due_at - START, deadline.state) for deadline in deadlines]


async def called_at(simulated: Simulated) -> list[timedelta]:
    """Return when each callback was requested, since the start; and see that each has run, once."""
    query = sa.select(callback_request).order_by(callback_request.c.created_at)
    rows = await simulated.database.read(lambda conn: conn.execute(query).all())
    assert {(row.state, row.event, row.attempts) for row in rows} <= {("success", "on_deadline_miss", 1)}
    launched = [launch.callback["deadline"] for launch in simulated.executor.launched if launch.callback]
    assert len(launched) == len(rows)
    return [row.created_at - START for row in rows]


@pytest.mark.parametrize(
    ("reference", "interval", "ends_as", "due_after", "state"),
    [
        (QUEUED, 30 * MINUTE, "success", 30 * MINUTE, "missed"),
        (QUEUED, 61 * MINUTE, "success", 61 * MINUTE, "met"),
        (QUEUED, 61 * MINUTE, "failed", 61 * MINUTE, "missed"),
        (QUEUED, -MINUTE, "success", -MINUTE, "missed"),
        (LOGICAL, 15 * MINUTE, "success", 10 * MINUTE, "missed"),
        (DeadlineReference.FIXED_DATETIME(datetime(2026, 1, 1)), 7 * MINUTE, "success", 7 * MINUTE, "missed"),
        (DeadlineReference.FIXED_DATETIME(START), 61 * MINUTE, "success", 61 * MINUTE, "met"),
        (DeadlineReference.FIXED_DATETIME(datetime(9999, 12, 31)), 24 * HOUR, "success", None, ""),
        (DeadlineReference.AVERAGE_RUNTIME(1), MINUTE, "success", None, ""),
    ],
)
async def test_a_run_that_has_not_succeeded_by_then_has_missed_its_deadline(
    tmp_path, reference, interval, ends_as, due_after, state
):
    simulated = simulation(tmp_path, (0, (reference, interval)), ends_as=ends_as)
    await serve(simulated, 3, timedelta())
    assert await told(simulated) == ([] if due_after is None else [("0", due_after, state)])
    assert await called_at(simulated) == ([max(due_after, timedelta())] if state == "missed" else [])


async def test_each_deadline_of_a_run_is_settled_on_its_own(tmp_path):
    alerts = [(QUEUED, 90 * MINUTE), (QUEUED, 10 * MINUTE), (LOGICAL, 25 * MINUTE)]
    simulated = simulation(tmp_path, *enumerate(alerts))
    await serve(simulated, 3, timedelta())
    assert await told(simulated) == [
        ("0", 90 * MINUTE, "met"),
        ("1", 10 * MINUTE, "missed"),
        ("2", 20 * MINUTE, "missed"),
    ]
    assert await called_at(simulated) == [10 * MINUTE, 20 * MINUTE]
    names = [launch.callback["deadline"]["name"] for launch in simulated.executor.launched if launch.callback]
    assert names == ["1", "2"]


async def test_a_new_run_takes_its_average_from_the_last_runs(tmp_path):
    average = DeadlineReference.AVERAGE_RUNTIME(max_runs=3, min_runs=2)
    simulated = simulation(tmp_path, (0, (average, 10 * MINUTE)))
    await serve(simulated, 10, *(hours * HOUR for hours in (0, 2, 4, 6)))
    assert [await told(simulated, f"r{hours}") for hours in (0, 2)] == [[], []]
    assert await told(simulated, "r4") == [("0", 4 * HOUR + 70 * MINUTE, "met")]


async def test_a_run_that_waits_to_start_misses_its_deadline_as_well(tmp_path):
    simulated = simulation(tmp_path, (0, (QUEUED, 30 * MINUTE)), is_paused_upon_creation=True)
    await serve(simulated, 1, timedelta())
    assert (await told(simulated), await called_at(simulated)) == ([("0", 30 * MINUTE, "missed")], [30 * MINUTE])


async def test_a_deadline_that_passed_without_a_scheduler_is_missed_afterwards(tmp_path):
    simulated = simulation(tmp_path, (0, (QUEUED, 30 * MINUTE)), (1, (QUEUED, 3 * HOUR)))
    await serve(simulated, 0.25, timedelta())
    assert await told(simulated) == [("0", 30 * MINUTE, "pending"), ("1", 3 * HOUR, "pending")]
    simulated.clock.leap(HOUR.total_seconds())
    await serve(simulated, 4)
    assert await told(simulated) == [("0", 30 * MINUTE, "missed"), ("1", 3 * HOUR, "met")]
    [called] = await called_at(simulated)
    assert 75 * MINUTE <= called < 76 * MINUTE


async def test_a_run_that_is_cleared_has_its_time_from_when_it_is_queued_again(tmp_path):
    alerts = [(QUEUED, 30 * MINUTE), (QUEUED, 150 * MINUTE), (LOGICAL, 2 * HOUR)]
    simulated = simulation(tmp_path, *enumerate(alerts), ends_as="failed")
    await serve(simulated, 1.5, timedelta())
    clear = (submit_request, DagRunKey("dag", "r0"), ClearTasks())
    await simulated.database.write(*clear, actor="somebody", now=START + 90 * MINUTE)
    await serve(simulated, 4)
    assert await told(simulated) == [
        ("0", 30 * MINUTE, "missed"),
        ("1", 4 * HOUR, "missed"),
        ("2", 115 * MINUTE, "missed"),
    ]


@pytest.mark.parametrize("lasts", [29 * MINUTE, 31 * MINUTE], ids=["just before it is away", "while it is away"])
async def test_a_success_that_came_in_time_counts_though_the_database_was_away(tmp_path, lasts):
    simulated = simulation(tmp_path, (0, (QUEUED, 32 * MINUTE)), lasts=lasts)
    database = simulated.database = FlakyDatabase(simulated.inline)

    def is_away(query: str) -> bool:
        """The evaluator finds the database again long after the deadline watcher."""
        minutes = (simulated.clock.now() - START) / MINUTE
        return 28.99 < minutes < (40 if query == "apply_and_pause" else 33)

    database.is_away = is_away
    await serve(simulated, 1, timedelta())
    assert await told(simulated) == [("0", 32 * MINUTE, "met")]
    run = await simulated.inline.read(get_run, "dag", "r0")
    assert run.ended_at - START == lasts


class Disputed(FlakyDatabase):
    """The first end of a try finds its run changed elsewhere: it must be decided once more, a little later."""

    is_disputed = False

    async def write(self, query, *args, **kwargs):
        if query is apply_and_pause and not self.is_disputed:
            run_ids = frozenset(row.dag_run_id for row in args[0].tasks if row.state == "success")
            if run_ids:
                self.is_disputed = True
                self.away.add("owned_runs")
                return Stale(run_ids, frozenset()), []
        return await super().write(query, *args, **kwargs)


async def test_a_success_exactly_at_its_deadline_counts_even_if_decided_twice(tmp_path):
    simulated = simulation(tmp_path, (0, (QUEUED, 32 * MINUTE)), lasts=32 * MINUTE)
    database = simulated.database = Disputed(simulated.inline)
    await serve(simulated, 1, timedelta())
    assert database.is_disputed
    assert await told(simulated) == [("0", 32 * MINUTE, "met")]


class Contended(FlakyDatabase):
    """Another scheduler has the rows of every deadline that is due."""

    n_looks = 0

    async def write(self, query, *args, **kwargs):
        if query is not decide_due_deadlines:
            return await super().write(query, *args, **kwargs)
        self.n_looks += 1
        assert self.n_looks < 100, "it looks again and again"
        return 0, []


async def test_deadlines_that_another_scheduler_settles_are_left_for_a_while(tmp_path):
    simulated = simulation(tmp_path, (0, (QUEUED, 30 * MINUTE)))
    database = simulated.database = Contended(simulated.inline)
    await serve(simulated, 30.1 / 60, timedelta())
    assert 5 <= database.n_looks <= 7


async def test_deadlines_of_a_run_are_settled_by_the_scheduler_that_runs_it(tmp_path):
    simulated = simulation(tmp_path, (0, (QUEUED, 30 * MINUTE)), (1, (QUEUED, 2 * HOUR)))
    await serve(simulated, 0.25, timedelta())
    run, late = await simulated.database.read(get_run, "dag", "r0"), START + 3 * HOUR
    for epoch, expected in ((run.lease_epoch + 1, 0), (run.lease_epoch, 2)):
        due_at = await simulated.database.read(next_deadline_at, epoch)
        assert due_at == (START + 30 * MINUTE if expected else None)
        assert (await simulated.database.write(decide_due_deadlines, epoch, late, 9))[0] == expected


async def test_user_code_says_when_a_deadline_is_due_and_again_when_the_run_is_cleared(tmp_path):
    """The simulated processes of callbacks run no code, so this test says what they would."""
    simulated = simulation(tmp_path, (0, (QUEUED, VariableInterval("patience"))), (1, (QUEUED, HOUR)), ends_as="failed")

    async def asked() -> int:
        requested = sa.select(sa.func.count()).where(callback_request.c.event == PLACE_EVENT)
        return await simulated.database.read(lambda conn: conn.scalar(requested))

    async def place(minutes: int) -> None:
        run = await simulated.database.read(get_run, "dag", "r0")
        seconds = minutes * 60.0
        for _ in "ab":  # as the process of an attempt that is repeated does
            await simulated.database.write(place_deadline, run.id, run, number=0, at=None, interval=seconds)

    await serve(simulated, 0.1, timedelta())
    assert (await told(simulated), await asked()) == ([("1", HOUR, "pending")], 1)
    await place(90)
    await serve(simulated, 1.3)
    assert await told(simulated) == [("0", 90 * MINUTE, "pending"), ("1", HOUR, "missed")]
    cleared_at = simulated.clock.now()
    await simulated.database.write(submit_request, DagRunKey("dag", "r0"), ClearTasks(), actor="a", now=cleared_at)
    assert await asked() == 2
    await place(30)
    [(_, due_after, state), _] = await told(simulated)
    assert (START + due_after, state) == (cleared_at + 30 * MINUTE, "pending")
    await serve(simulated, 1)
    assert [state for *_, state in await told(simulated)] == ["missed", "missed"]
    await place(45)
    assert [state for *_, state in await told(simulated)] == ["missed", "missed"], "a miss stays one"
