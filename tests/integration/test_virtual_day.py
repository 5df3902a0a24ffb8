"""A day of cron DAGs, run by the production services in virtual time: every run, at its instant, once."""

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from asynsched import DAG, BashOperator, CronTriggerTimetable
from asynsched.protocol.messages import Launch
from asynsched.simulation.script import Outcome
from tests.support.simulated import Simulated

MIDNIGHT = datetime(2026, 3, 28, 23, tzinfo=UTC)
"""In Berlin: the beginning of the day on which summer time begins, which has 23 hours."""


def dags() -> list[DAG]:
    with DAG("often", schedule="*/10 * * * *") as often:
        BashOperator(task_id="first", bash_command="true", retries=1, retry_delay=timedelta(minutes=5)) >> BashOperator(
            task_id="second", bash_command="true"
        )
    with DAG("berlin", schedule=CronTriggerTimetable("0 * * * *", timezone="Europe/Berlin")) as berlin:
        BashOperator(task_id="only", bash_command="true")
    with DAG("slow", schedule="0 * * * *", max_active_runs=1) as slow:
        BashOperator(task_id="two_hours", bash_command="true")
    return [often, berlin, slow]


def script(launch: Launch) -> Outcome:
    """Every third hour the first try of `often.first` fails; `slow` takes two hours; all else two minutes."""
    if launch.run.dag_id == "slow":
        return Outcome(duration=timedelta(hours=2))
    fails = launch.task_id == "first" and launch.try_number == 1 and launch.run.logical_date.hour % 3 == 0
    return Outcome("failed" if fails else "success", timedelta(minutes=2), "as scripted" if fails else "")


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> Simulated:
    simulated = Simulated(tmp_path_factory.mktemp("home"), dags(), script, MIDNIGHT - timedelta(seconds=1))
    simulated.run_for(timedelta(hours=24, minutes=59))
    return simulated


async def test_every_run_of_the_day_is_made_at_its_instant_and_succeeds(day):
    runs = sorted(await day.runs("often"), key=lambda run: run.logical_date)
    assert [run.logical_date for run in runs] == [MIDNIGHT + timedelta(minutes=10) * n for n in range(150)]
    assert {run.started_at - run.logical_date for run in runs} == {timedelta(0)}
    assert Counter(run.state for run in runs[:-2]) == {"success": 148}
    assert {(run.ended_at - run.started_at) for run in runs[:-2]} == {
        timedelta(minutes=4),
        timedelta(minutes=11),
    }


async def test_a_failed_try_is_retried_after_its_delay_and_only_then(day):
    tries = Counter(
        (launch.task_id, launch.try_number) for launch in day.executor.launched if launch.run.dag_id == "often"
    )
    n_failing = sum(run.logical_date.hour % 3 == 0 for run in await day.runs("often"))
    assert tries[("first", 1)] == 150
    assert tries[("first", 2)] == n_failing
    assert len({launch.token for launch in day.executor.launched}) == len(day.executor.launched)


async def test_the_hour_that_summer_time_skips_has_no_run(day):
    runs = sorted(await day.runs("berlin"), key=lambda run: run.logical_date)
    assert len(runs) == 25
    assert {later.logical_date - run.logical_date for run, later in itertools.pairwise(runs)} == {timedelta(hours=1)}


async def test_a_dag_with_one_active_run_has_one_at_a_time(day):
    runs = sorted((run for run in await day.runs("slow") if run.started_at), key=lambda run: run.started_at)
    assert len(runs) > 10
    assert all(run.ended_at <= later.started_at for run, later in itertools.pairwise(runs))
