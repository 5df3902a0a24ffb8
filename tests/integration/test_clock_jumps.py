"""The wall clock is set while the scheduler serves, by an hour either way: nothing is lost, doubled or held up."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.simulation.script import Outcome
from asynsched.store.schema import task_instance
from tests.support.set_clock import SetVirtualClock
from tests.support.simulated import Simulated

START = datetime(2026, 3, 28, 12, tzinfo=UTC)
SPAN = timedelta(hours=3)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def a_dag() -> DAG:
    with DAG("often", schedule="*/10 * * * *", start_date=START, catchup=True) as often:
        first = BashOperator(task_id="first", bash_command="true", retries=1, retry_delay=MINUTE)
        first >> BashOperator(task_id="second", bash_command="true")
    return often


def script(launch) -> Outcome:
    """Each first try of `first` fails; every try takes two minutes."""
    fails = launch.task_id == "first" and launch.try_number == 1
    return Outcome("failed" if fails else "success", 2 * MINUTE)


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
@pytest.mark.parametrize(
    "after", [60 * MINUTE + SECOND / 100, 62.5 * MINUTE], ids=["as a try begins", "before a retry"]
)
async def test_every_run_is_made_once_and_every_try_is_run_once(tmp_path, by, after):
    simulated = Simulated(tmp_path, [a_dag()], script, START)
    clock = simulated.clock = SetVirtualClock(START)
    seen = []

    async def act(channels):
        await clock.sleep(after)
        clock.off_by = by
        await clock.sleep(40 * SECOND)
        query = sa.select(task_instance.c.state).where(task_instance.c.state == "running")
        seen.extend(await simulated.database.read(lambda conn: conn.scalars(query).all()))

    simulated.act = act
    await asyncio.to_thread(simulated.run_for, SPAN)
    runs = {run.logical_date: run.state for run in await simulated.runs("often")}
    dates = sorted(runs)
    assert dates == [START + 10 * MINUTE * number for number in range(len(dates))]
    assert abs(len(dates) - (SPAN + by) / (10 * MINUTE)) <= 1
    assert {runs[date] for date in dates[:-2]} == {"success"}
    launched = Counter((one.run.run_id, one.task_id, one.try_number) for one in simulated.executor.launched)
    assert set(launched.values()) == {1}
    assert "running" in seen or after > 61 * MINUTE, "that a try has begun is stored"
