"""Backfills: what they leave to the schedule, and the order of their runs."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from asynsched import DAG, CronPartitionTimetable
from asynsched.scheduling.creation.backfills import BackfillPlan, create_backfill
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import insert_run, last_scheduled_interval, list_runs
from asynsched.store.runs.queue import first_queued
from asynsched.store.schema import DagRunRow
from tests.support.simulated import report_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = FIRST + 10 * DAY
LAST = FIRST + 3 * DAY


async def store_dag(database: Database, schedule: object) -> None:
    defaults = DagDefaults(max_active_runs=16, paused=False)
    report = report_of(DAG("d", schedule=schedule, start_date=FIRST))
    await database.write(store_report, report, FileStamp("", 0, 0, ""), now=NOW, defaults=defaults)


async def test_a_run_that_a_backfill_repeats_stays_the_newest_of_the_schedule(database: Database) -> None:
    await store_dag(database, "@daily")
    for number in range(4):
        date = FIRST + number * DAY
        run = DagRunRow(
            dag_id="d", run_id=f"r{number}", logical_date=date, data_interval_start=date, data_interval_end=date + DAY,
            run_after=date + DAY, queued_at=NOW, state=DagRunState.SUCCESS, conf={},
            run_type=DagRunType.MANUAL if number == 0 else DagRunType.SCHEDULED,
        )  # fmt: skip
        await database.write(insert_run, run)
    plan = BackfillPlan("d", FIRST, LAST, reprocess="completed")
    made = await database.write(create_backfill, plan, actor="me", now=NOW)
    types = {run.run_id: (run.run_type, run.backfill_id) for run in await database.read(list_runs, dag_id="d")}
    scheduled = {f"r{number}": ("scheduled", made.id) for number in (1, 2, 3)}
    assert types == {"r0": ("backfill", made.id), **scheduled}
    assert await database.read(last_scheduled_interval, "d") == (LAST, LAST + DAY)


@pytest.mark.parametrize("is_reverse", [False, True])
async def test_the_runs_of_a_backfill_of_partitions_wait_in_its_order(database: Database, *, is_reverse: bool) -> None:
    await store_dag(database, CronPartitionTimetable("@daily", timezone="UTC"))
    plan = BackfillPlan("d", FIRST, LAST, is_reverse=is_reverse)
    made = await database.write(create_backfill, plan, actor="me", now=NOW)

    def waiting(conn: sa.Connection) -> list[datetime | None]:
        [runs] = first_queued(conn, [(("d", made.id), 3)])
        return [run.partition_date for run in runs]

    dates = [FIRST + number * DAY for number in range(4)]
    assert await database.read(waiting) == sorted(dates, reverse=is_reverse)[:3]
