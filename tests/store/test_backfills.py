"""Backfills: what they leave to the schedule, and the order of their runs."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from asynsched import DAG, CronDataIntervalTimetable, CronPartitionTimetable
from asynsched.scheduling.creation.backfills import BackfillPlan, create_backfill
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dags.dags import get_dag
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import insert_run, last_scheduled_run, list_runs
from asynsched.store.runs.queue import first_queued
from asynsched.store.runs.task_instances import read_past
from asynsched.store.schema import DagRunRow
from tests.support.simulated import report_of
from tests.support.stored import store_dag

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = FIRST + 10 * DAY
LAST = FIRST + 3 * DAY


def new_run(run_id: str, date: datetime, **fields: Any) -> DagRunRow:
    values = {"run_type": DagRunType.SCHEDULED, "state": DagRunState.SUCCESS, "conf": {}, "queued_at": NOW, **fields}
    return DagRunRow(
        dag_id="d", run_id=run_id, logical_date=date, data_interval_start=date, data_interval_end=date + DAY,
        run_after=date + DAY, **values,
    )  # fmt: skip


async def store_schedule(database: Database, schedule: Any, version: str = "1") -> None:
    report = report_of(DAG("d", schedule=schedule, start_date=FIRST))
    report = replace(report, dags=(replace(report.dags[0], version_hash=version * 64),))
    await database.write(store_dag, report, NOW)


async def test_a_run_that_a_backfill_repeats_stays_the_newest_of_the_schedule(database: Database) -> None:
    await store_schedule(database, "@daily")
    for number in range(4):
        run_type = DagRunType.MANUAL if number == 0 else DagRunType.SCHEDULED
        await database.write(insert_run, new_run(f"r{number}", FIRST + number * DAY, run_type=run_type))
    plan = BackfillPlan("d", FIRST, LAST, reprocess="completed")
    made = await database.write(create_backfill, plan, actor="me", now=NOW)
    types = {run.run_id: (run.run_type, run.backfill_id) for run in await database.read(list_runs, dag_id="d")}
    scheduled = {f"r{number}": ("scheduled", made.id) for number in (1, 2, 3)}
    assert types == {"r0": ("backfill", made.id), **scheduled}
    assert (await database.read(last_scheduled_run, "d")).data_interval == (LAST, LAST + DAY)


@pytest.mark.parametrize("is_reverse", [False, True])
async def test_the_runs_of_a_backfill_of_partitions_wait_in_its_order(database: Database, *, is_reverse: bool) -> None:
    await store_schedule(database, CronPartitionTimetable("@daily", timezone="UTC"))
    plan = BackfillPlan("d", FIRST, LAST, is_reverse=is_reverse)
    made = await database.write(create_backfill, plan, actor="me", now=NOW)

    def waiting(conn: sa.Connection) -> list[datetime | None]:
        [runs] = first_queued(conn, [(("d", made.id), 3)])
        return [run.partition_date for run in runs]

    dates = [FIRST + number * DAY for number in range(4)]
    assert await database.read(waiting) == sorted(dates, reverse=is_reverse)[:3]


@pytest.mark.parametrize("keeps_version", [False, True])
async def test_a_repeated_run_moves_to_the_newest_version_unless_it_is_to_keep_its_own(
    database: Database, *, keeps_version: bool
) -> None:
    await store_schedule(database, "@daily")
    before = (await database.read(get_dag, "d")).version_id
    await database.write(insert_run, new_run("old", FIRST, version_id=before))
    await store_schedule(database, "@daily", "2")
    after = (await database.read(get_dag, "d")).version_id
    plan = BackfillPlan("d", FIRST, FIRST, reprocess="completed", keeps_version=keeps_version)
    await database.write(create_backfill, plan, actor="me", now=NOW)
    [run] = await database.read(list_runs, dag_id="d")
    assert (run.run_id, run.state, run.version_id) == ("old", "queued", before if keeps_version else after)
    assert before != after


async def test_the_run_of_a_date_whose_name_an_imported_run_has_gets_another_one(database: Database) -> None:
    await store_schedule(database, CronDataIntervalTimetable("@daily", timezone="UTC"))
    name = f"backfill__{(FIRST + DAY).isoformat()}"
    await database.write(insert_run, new_run(name, FIRST - DAY))
    await database.write(create_backfill, BackfillPlan("d", FIRST, FIRST), actor="me", now=NOW)
    runs = {run.logical_date: run.run_id for run in await database.read(list_runs, dag_id="d")}
    assert runs == {FIRST - DAY: name, FIRST: f"{name}_2"}, "runs have the names of their ends, as in Airflow"


async def test_the_first_run_of_a_backfill_does_not_depend_on_the_past(database: Database) -> None:
    await store_schedule(database, "@daily")
    await database.write(insert_run, new_run("failed", FIRST, state=DagRunState.FAILED))
    plan = BackfillPlan("d", FIRST + DAY, FIRST + 2 * DAY)
    await database.write(create_backfill, plan, actor="me", now=NOW)
    runs = {run.logical_date: run for run in await database.read(list_runs, dag_id="d")}
    before = {}
    for date in (FIRST + DAY, FIRST + 2 * DAY):
        past = partial(read_past, catchup=False, of_backfill=runs[date].id)
        found = await database.read(past, "d", date, {"a": ()})
        before[date] = None if found is None else found.key.run_id
    assert before == {FIRST + DAY: None, FIRST + 2 * DAY: runs[FIRST + DAY].run_id}
