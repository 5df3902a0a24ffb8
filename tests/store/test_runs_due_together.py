"""DAGs whose runs are due together: each gets its own, and all of them take as many statements as one."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import msgspec
import pytest
import sqlalchemy as sa

from asynsched import (
    DAG,
    BashOperator,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
)
from asynsched.errors import DagError, TimetableError
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.scheduled_runs import Examined, coming_runs, examine_dags
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.serialization.schema import ParsedDag, ParseReport
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dags.dags import get_dag, set_paused
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.dag_runs import AlreadyExists, insert_run, insert_runs, list_runs
from asynsched.store.runs.deadlines import list_deadlines
from asynsched.store.runs.queue import claim_runs, queued_runs
from asynsched.store.schedulers import register_scheduler
from asynsched.store.schema import dag_version
from asynsched.timetables import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan
from tests.store.test_runs import new_run
from tests.support.simulated import report_of
from tests.support.stored import store_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOW = START + HOUR / 2
AT_START = f"scheduled__{START.isoformat()}"
WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


def shout() -> None:
    """Is called when a deadline is missed."""


def hourly(dag_id: str, **options: Any) -> ParseReport:
    with DAG(dag_id, **({"schedule": "@hourly", "start_date": START, "catchup": True} | options)) as dag:
        BashOperator(task_id="a", bash_command="true")
    return report_of(dag)


def planned(dag_id: str) -> ParseReport:
    """Return a DAG whose own timetable has said that it runs each hour."""
    intervals = [PlannedInterval(START + n * HOUR, START + (n + 1) * HOUR) for n in range(20)]
    plan = TimetablePlan(START, runs=tuple(PlannedRun(each.start, each) for each in intervals))
    report = hourly(dag_id)
    [parsed] = report.dags
    dag = msgspec.structs.replace(parsed.dag, timetable=CustomTimetable("Mine", fields={}, summary="").serialize())
    return msgspec.structs.replace(report, dags=(ParsedDag(dag, parsed.version_hash, plan),))


def store(conn: sa.Connection, reports: Sequence[ParseReport]) -> None:
    for report in reports:
        store_dag(conn, report, START)


def counted(conn: sa.Connection, query: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Run a query; return its answer, and how many statements it took."""
    statements = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(conn, "before_cursor_execute", note)
    try:
        return query(conn, *args), len(statements)
    finally:
        sa.event.remove(conn, "before_cursor_execute", note)


def start(conn: sa.Connection, kind: str, n: int, epoch: int) -> list[int]:
    """Make and claim the due runs of DAGs of a kind; return how many statements each step takes."""
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, HOUR, SyncCallback(shout))
    ids = [f"{kind}_{n}_{k:02}" for k in range(n)]
    store(conn, [planned(each) if kind == "planned" else hourly(each, deadline=deadline) for each in ids])
    if kind == "ahead":
        for dag_id in ids:
            create_manual_run(conn, dag_id, Trigger(logical_date=START), now=NOW - HOUR)
    examined, n_to_create = counted(conn, examine_dags, ids, NOW + HOUR)
    keys = [DagRunKey(dag_id, found.created) for dag_id, found in examined.items() if found.created]
    assert len(keys) == n
    rows, n_to_read = counted(conn, queued_runs, keys)
    claims, n_to_claim = counted(conn, claim_runs, [row.id for row in rows], "me", epoch, NOW)
    assert len(claims.own) == n
    return [n_to_create, n_to_read, n_to_claim]


@pytest.mark.parametrize("kind", ["hourly", "ahead", "planned"])
async def test_many_runs_are_made_and_claimed_with_as_many_statements_as_two(database, kind):
    values = {"hostname": "h", "pid": 1, "home": "h", "version": "1", "now": NOW, "takeover_seconds": 30}
    epoch = await database.write(register_scheduler, scheduler_id="me", lease_until=NOW + HOUR, **values)
    assert await database.write(start, kind, 30, epoch) == await database.write(start, kind, 2, epoch)


async def test_what_is_odd_about_one_dag_is_its_own(database):
    def prepare(conn: sa.Connection) -> None:
        store(conn, [hourly(dag_id) for dag_id in ("ahead", "broken", "due", "no_version", "paused")])
        before_time = CronTriggerTimetable("@daily", timezone="America/New_York")
        store(conn, [hourly("out_of_time", schedule=before_time, start_date=datetime(1, 1, 1, tzinfo=UTC))])
        store(conn, [hourly("full", max_active_runs=1), hourly("later", start_date=START + HOUR), hourly("run_id")])
        create_manual_run(conn, "ahead", Trigger(logical_date=START), now=START)
        create_manual_run(conn, "full", Trigger(logical_date=START + 9 * HOUR), now=START)
        # A run of another date, such as an imported one, that has the name of the next run does not stand for it.
        insert_run(conn, new_run(AT_START, "run_id", logical_date=None, run_type=DagRunType.MANUAL))
        set_paused(conn, "paused", True, START)
        conn.execute(sa.update(dag_version).where(dag_version.c.dag_id == "broken").values(serialized=b"x"))
        conn.execute(sa.text("UPDATE dag SET version_id = NULL WHERE dag_id = 'no_version'"))

    await database.write(prepare)
    ids = ["ahead", "broken", "due", "full", "later", "no_version", "out_of_time", "paused", "run_id", "unknown"]
    found = await database.write(examine_dags, ids, NOW)
    assert list(found) == ids
    assert found.pop("broken").error.startswith("this is not a valid serialized DAG")
    assert (
        "leads out of the calendar, which has the years 1 to 9999, in the zone America/New_York"
        in found.pop("out_of_time").error
    )
    assert found == {
        "ahead": Examined(due_at=START + HOUR),
        "due": Examined(created=AT_START, due_at=START + HOUR),
        "full": Examined(is_held_back=True),
        "later": Examined(due_at=START + HOUR),
        "no_version": Examined(),
        "paused": Examined(),
        "run_id": Examined(created=f"{AT_START}_2", due_at=START + HOUR),
        "unknown": Examined(),
    }
    coming = {dag_id: (await database.read(get_dag, dag_id)).next_dagrun_create_after for dag_id in ids[:-1]}
    nexts = {"ahead": HOUR, "due": HOUR, "full": 0 * HOUR, "later": HOUR, "paused": 0 * HOUR, "run_id": HOUR}
    assert coming == dict.fromkeys(("broken", "no_version", "out_of_time")) | {
        dag_id: START + by for dag_id, by in nexts.items()
    }
    assert [run.dag_id for run in await database.read(list_runs, state="queued")] == [
        "run_id", "due", "run_id", "full", "ahead",
    ]  # fmt: skip
    with pytest.raises(DagError):
        await database.read(coming_runs, "broken", NOW, at_most=1)


async def test_a_manual_run_has_its_date_in_utc_to_the_microsecond(database):
    before_standard_time = timezone(timedelta(minutes=19, seconds=32))
    date = datetime(1930, 1, 1, microsecond=7, tzinfo=before_standard_time)
    after_all = datetime(9999, 12, 31, 23, tzinfo=timezone(-5 * HOUR))
    in_tokyo = CronDataIntervalTimetable("@hourly", "Asia/Tokyo")
    await database.write(store, [hourly("d"), hourly("tokyo", schedule=in_tokyo)])
    await database.write(create_manual_run, "d", Trigger(logical_date=date), now=NOW)
    for end in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)):
        with pytest.raises(TimetableError, match="leads out of the calendar"):
            await database.write(create_manual_run, "tokyo", Trigger(logical_date=end), now=NOW)
    with pytest.raises(DagError, match="leads out of the calendar, which has the years 1 to 9999, in the zone UTC"):
        await database.write(create_manual_run, "d", Trigger(logical_date=after_all), now=NOW)
    [run] = await database.read(list_runs)
    assert run.logical_date == date
    assert run.run_id == f"manual__{NOW.isoformat()}"


async def test_runs_are_made_together_but_for_those_that_there_are(database):
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, HOUR, SyncCallback(shout), name="soon")
    conf = {"b": 1e300, "a": [1.0, "€", "nul \0", "\\u0000"]}
    await database.write(store, [hourly("bounded", deadline=[deadline, deadline]), hourly("free")])
    date = await database.write(insert_run, new_run("by_date", "free"))
    runs = [
        new_run("r", "bounded", conf=conf), new_run("by_date", "free", logical_date=None), new_run("other", "free"),
        new_run("r", "free", logical_date=None), new_run("r", "unknown", state=DagRunState.RUNNING),
    ]  # fmt: skip
    made = await database.write(insert_runs, runs)
    assert made.keys() == {DagRunKey("bounded", "r"), DagRunKey("free", "r"), DagRunKey("unknown", "r")}
    assert await database.write(insert_runs, runs) == {}
    with pytest.raises(AlreadyExists):
        await database.write(insert_run, runs[1])
    stored = {run.id: run for run in await database.read(list_runs)}
    assert stored.keys() == {date, *made.values()}
    assert stored[made["bounded", "r"]].conf == conf
    assert stored[made["unknown", "r"]].state == "running"
    assert {run.lease_epoch for run in stored.values()} == {0}
    deadlines = {run: [row.due_at for row in await database.read(list_deadlines, run)] for run in stored}
    at = stored[date].queued_at + HOUR
    assert deadlines == {run: [] for run in stored} | {made["bounded", "r"]: [at, at]}


async def test_two_schedulers_that_examine_the_same_dags_make_each_run_once(postgres_url):
    """The second one waits for the first, and examines the first one's new runs once more."""
    database = await open_database(f"{postgres_url}&lock_timeout=60s&statement_timeout=60s")
    ids = [f"d{n}" for n in range(5)]
    await database.write(store, [hourly(dag_id) for dag_id in ids])
    holder = await asyncpg.connect(postgres_url)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        # A third transaction holds this row, so that neither ends before they meet.
        await holder.execute("SELECT 1 FROM dag WHERE dag_id = 'd0' FOR NO KEY UPDATE")
        one = tasks.create_task(database.write(examine_dags, ids, NOW))
        while await holder.fetchval(WAITING) < 1:
            pass
        other = tasks.create_task(database.write(examine_dags, ids[1:], NOW))
        while await holder.fetchval(WAITING) < 2:
            pass
    assert one.result() == dict.fromkeys(ids, Examined(created=AT_START, due_at=START + HOUR))
    assert other.result() == dict.fromkeys(ids[1:], Examined(due_at=NOW))
    assert await database.write(examine_dags, ids, NOW) == dict.fromkeys(ids, Examined(due_at=START + HOUR))
    await database.close()
    await holder.close()
