"""Which runs a scheduler makes that was away, whose clock jumps, or whose runs fail; on a real database, no sleep."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from asynsched import DAG, Asset, AssetOrTimeSchedule, BashOperator
from asynsched.scheduling.creation import scheduled_runs
from asynsched.scheduling.creation.scheduled_runs import Examined, coming_runs, foresee_dag
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.serialization.schema import TimetableQuestion
from asynsched.simulation.script import Outcome
from asynsched.store.dags.dags import get_dag, set_paused
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.schema import dag_run
from asynsched.timetables import (
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
)
from tests.support.simulated import Simulated, report_of
from tests.support.stored import examine_dag, list_audit, store_dag
from tests.unit.timetables.test_own_timetables import Workdays, asked

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Folder:
    """A database with one DAG, looked at whenever a test wants."""

    def __init__(self, **options) -> None:
        with DAG("d", **({"start_date": START} | options)) as self.dag:
            BashOperator(task_id="a", bash_command="true")
        self.database = open_inline()

    async def store(self, **changes) -> None:
        report = report_of(self.dag)
        parsed = [type(dag)(dag.dag, dag.version_hash, **changes) for dag in report.dags]
        report = type(report)(report.schema_version, report.path, tuple(parsed))
        await self.database.write(store_dag, report, START)

    async def examined(self, now) -> Examined:
        """Create the due runs, and require that they were foreseen."""
        foreseen = await self.database.read(foresee_dag, "d", now)
        examined = await self.database.write(examine_dag, "d", now)
        assert (foreseen.created, foreseen.is_held_back) == (examined.created, examined.is_held_back)
        assert examined.created is not None or foreseen == examined
        return examined

    async def made_at(self, hours: float) -> list[float]:
        """Create all runs that are due at an hour; return their dates, in hours since the start."""
        now, made = START + hours * HOUR, []
        while (examined := await self.examined(now)).created is not None:
            made.append(examined.created)
        dates = {run.run_id: run.logical_date for run in await self.database.read(list_runs, limit=1000)}
        return [(dates[run_id] - START) / HOUR for run_id in made]


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({"schedule": "@hourly", "catchup": True}, [[0, 1, 2], [3, 4, 5, 6, 7], [8]]),
        ({"schedule": "@hourly", "catchup": False}, [[2], [7], [8]]),
        ({"schedule": "@hourly", "catchup": "latest"}, [[2], [7], [8]]),
        ({"schedule": CronDataIntervalTimetable("@hourly", "UTC"), "catchup": True}, [[0, 1], [2, 3, 4, 5, 6], [7]]),
        ({"schedule": CronDataIntervalTimetable("@hourly", "UTC"), "catchup": False}, [[1], [6], [7]]),
        ({"schedule": EventsTimetable([START + n * HOUR for n in (1, 4, 6)]), "catchup": False}, [[], [], []]),
        ({"schedule": EventsTimetable([START + n * HOUR for n in (1, 4, 6)]), "catchup": "latest"}, [[1], [6], []]),
        ({"schedule": "@hourly", "catchup": True, "end_date": START + 5 * HOUR}, [[0, 1, 2], [3, 4, 5], []]),
        ({"schedule": "@once"}, [[0], [], []]),
        ({"schedule": "@hourly", "catchup": True, "max_active_runs": 2}, [[0, 1], [], []]),
    ],
)  # fmt: skip
async def test_a_scheduler_that_was_away_makes_up_for_what_catchup_says(options, made):
    folder = Folder(**options)
    await folder.store()
    found = [await folder.made_at(2.5), await folder.made_at(7.5), await folder.made_at(8.5)]
    assert found == made


MOMENT = timedelta(milliseconds=20)
AT_ONCE = CronTriggerTimetable("30 * * * *", timezone="UTC", run_immediately=timedelta())
TWO_CRONS = MultipleCronTriggerTimetable("0 */3 * * *", "0 1-23/3 * * *", timezone="UTC", interval=6 * HOUR)


@pytest.mark.parametrize(
    ("options", "hours"),
    [
        ({"schedule": EventsTimetable([START + n * HOUR for n in (1, 4, 6)])}, [1, 4, 6]),
        ({"schedule": timedelta(hours=2)}, [2, 4, 6]),
        ({"schedule": timedelta(hours=2), "end_date": START + 6 * HOUR}, [2, 4, 6]),
        ({"schedule": AT_ONCE, "start_date": None}, [0.5, 1.5, 2.5]),
        ({"schedule": TWO_CRONS}, [1, 3, 4]),
    ],
)
async def test_a_run_that_is_announced_is_made_as_it_is_although_a_moment_late(options, hours):
    folder = Folder(**options)
    await folder.store()
    await folder.made_at(0)
    for _ in hours:
        due = (await folder.database.read(get_dag, "d")).next_dagrun_create_after
        assert (await folder.examined(due + MOMENT)).created is not None
    runs = await folder.database.read(list_runs, limit=3)
    assert sorted((run.run_after - START) / HOUR for run in runs) == hours


async def test_the_schedule_goes_on_after_dates_that_have_runs_already(monkeypatch):
    monkeypatch.setattr(scheduled_runs, "MANY_DATES", 7)
    folder = Folder(schedule="@hourly", catchup=True, max_active_runs=200)
    await folder.store()
    for number in range(1, 40):
        await folder.database.write(create_manual_run, "d", Trigger(logical_date=START + number * HOUR), now=START)
    assert await folder.made_at(41.5) == [0, 40, 41]
    monkeypatch.setattr(scheduled_runs, "MAX_EXISTING", 20)
    for number in range(30):
        between = START + 41 * HOUR + timedelta(minutes=number + 1)
        await folder.database.write(create_manual_run, "d", Trigger(logical_date=between), now=START)
    for number in range(42, 90):
        await folder.database.write(create_manual_run, "d", Trigger(logical_date=START + number * HOUR), now=START)
    assert "its next 20 dates have runs already" in (await folder.examined(START + 91 * HOUR)).error


async def test_a_clock_that_goes_back_makes_no_run_twice():
    folder = Folder(schedule="@hourly", catchup=True)
    await folder.store()
    assert await folder.made_at(3.5) == [0, 1, 2, 3]
    assert await folder.made_at(1.5) == []
    assert await folder.made_at(4.5) == [4]


async def test_a_continuous_schedule_waits_for_its_only_run_and_leaves_no_gap():
    folder = Folder(schedule=ContinuousTimetable())
    await folder.store()
    assert len(await folder.made_at(1)) == 1
    assert (await folder.examined(START + 2 * HOUR)).is_held_back
    await folder.database.write(_end_all)
    for seconds in (10, 20):
        now = START + 2 * HOUR + timedelta(seconds=seconds)
        assert (await folder.examined(now)).created is not None
        await folder.database.write(_end_all)
    runs = sorted(await folder.database.read(list_runs), key=lambda run: run.data_interval_end)
    assert [run.data_interval_end for run in runs[1:]] == [START + 2 * HOUR + timedelta(seconds=n) for n in (10, 20)]
    assert [run.data_interval_start for run in runs[1:]] == [run.data_interval_end for run in runs[:-1]]


def _end_all(conn):
    conn.execute(sa.update(dag_run).values(state="success"))


async def test_runs_for_a_later_time_hold_up_no_scheduled_run():
    folder = Folder(schedule="@hourly", catchup=True, max_active_runs=1)
    await folder.store()
    await folder.database.write(
        create_manual_run, "d", Trigger(has_logical_date=False, run_after=START + 99 * HOUR), now=START
    )
    assert await folder.made_at(1) == [0]


async def test_a_type_of_runs_that_is_not_allowed_beside_assets_is_not_created():
    schedule = AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 * * * *", timezone="UTC"), assets=[Asset("a")])
    folder = Folder(schedule=schedule, catchup=True, allowed_run_types=["asset_triggered"])
    await folder.store()
    assert await folder.made_at(2) == []


async def test_what_is_about_to_be_created_is_what_is_created():
    folder = Folder(schedule="@hourly", catchup=True)
    await folder.store()
    await folder.database.write(set_paused, "d", True, START)
    await folder.database.write(create_manual_run, "d", Trigger(logical_date=START + HOUR), now=START)
    coming = await folder.database.read(coming_runs, "d", START + 3.5 * HOUR, at_most=100)
    assert [(info.logical_date - START) / HOUR for info in coming] == [0, 2, 3, 4]
    await folder.database.write(set_paused, "d", False, START)
    assert await folder.made_at(3.5) == [0, 2, 3]


async def test_planned_runs_of_a_custom_timetable_are_used_until_few_are_left():
    folder = Folder(schedule=Workdays(), catchup=True)
    question, _ = asked(folder.dag.schedule, now=START)
    await folder.store(plan=question.plan(TimetableQuestion(n_runs=12)))
    first = await folder.database.write(examine_dag, "d", START + 10_000 * HOUR)
    later = [await folder.database.write(examine_dag, "d", START + 10_000 * HOUR) for _ in range(2)]
    assert [bool(examined.asks) for examined in (first, *later)] == [False, False, True]
    while (examined := await folder.database.write(examine_dag, "d", START + 10_000 * HOUR)).created:
        pass
    assert examined.asks == "d.py"
    assert len(await folder.database.read(list_runs, limit=1000)) == 12


def failing(*failed):
    """Return a script in which the runs of these hours fail."""

    def script(launch):
        return Outcome("failed" if launch.run.logical_date in {START + n * HOUR for n in failed} else "success")

    return script


@pytest.mark.parametrize(
    ("failed", "hours", "n_runs"),
    [
        ((1, 2, 3), 12, 4),  # the third failure in a row pauses: no fifth run
        ((0, 1, 3, 4, 6, 7), 9, 9),  # never three in a row
    ],
)
async def test_a_dag_is_paused_after_so_many_failed_runs_in_a_row(tmp_path, failed, hours, n_runs):
    with DAG("d", schedule="@hourly", start_date=START, max_consecutive_failed_dag_runs=3) as dag:
        BashOperator(task_id="a", bash_command="true")
    simulation = Simulated(tmp_path, [dag], failing(*failed), START)
    await asyncio.to_thread(simulation.run_for, hours * HOUR - timedelta(minutes=1))
    assert len(await simulation.runs("d")) == n_runs
    paused = (await simulation.database.read(get_dag, "d")).is_paused
    notes = [(row.actor, row.action, row.detail) for row in await simulation.database.read(list_audit, dag_id="d")]
    assert paused == bool(notes) == (n_runs == 4)
    assert notes in ([], [("scheduler", "dag.pause", {"consecutive_failed_dag_runs": 3})])
