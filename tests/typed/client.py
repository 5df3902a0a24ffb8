"""Programs as users write them. `mypy` checks them strictly: what they get from a scheduler and a client has types."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

from asynsched import Client, DagRunKey, DagRunState, Scheduler, TaskInstanceKey, TaskInstanceState
from asynsched.client.client import LocalClient
from asynsched.health import Health
from asynsched.queries.assets import EventInfo, QueuedInfo
from asynsched.queries.backfills import BackfillDateInfo, BackfillInfo
from asynsched.queries.dag_details import DagDetails
from asynsched.queries.dags import DagInfo
from asynsched.queries.events import Change, EventReader, Missed
from asynsched.queries.late import Late
from asynsched.queries.paging import Page
from asynsched.queries.pools import PoolInfo
from asynsched.queries.runs import CallbackInfo, RunInfo
from asynsched.queries.secrets import VariableInfo
from asynsched.queries.task_instances import TaskInstanceInfo
from asynsched.queries.try_logs import LogPart
from asynsched.queries.upcoming import UpcomingRun
from asynsched.queries.users import NewToken
from asynsched.queries.xcoms import XComValue
from asynsched.results import FinishedRun
from asynsched.scheduling.requests.run_requests import ChangedTask
from asynsched.simulation.summary import Simulated

DAY = datetime(2026, 1, 1, tzinfo=UTC)


async def embeds(dags: Path) -> None:
    async with Scheduler(dags=dags, parallelism=4) as scheduler:
        assert_type(scheduler, Scheduler)
        finished = await scheduler.run("etl", conf={"day": "2026-01-01"})
        assert_type(finished, FinishedRun)
        assert_type(finished.results, dict[str, Any])
        key = await scheduler.trigger("etl", logical_date=DAY)
        assert_type(key, DagRunKey)
        assert_type(await scheduler.clear_tasks(key, ["load"], downstream=True), list[TaskInstanceKey])
        await scheduler.cancel_run(key)
        assert_type(scheduler.health(), Health)
        assert_type(scheduler.events(dag_id="etl"), EventReader)
        assert_type(scheduler.client(), LocalClient)
        await uses(scheduler.client())


async def elsewhere() -> None:
    async with Client("https://scheduler.example.com", token="secret") as client:
        assert_type(client, Client)
        await uses(client)


async def uses(client: Client) -> None:
    """Ask and act, in the same way here and elsewhere."""
    assert_type(await client.list_dags(tags=("sales",), paused=False, limit=10), Page[DagInfo])
    assert_type(await client.get_dag_details("etl"), DagDetails)
    assert_type(await client.upcoming("etl", 3, now=DAY), tuple[UpcomingRun, ...])
    assert_type(await client.pause("etl"), DagInfo)
    key = await client.trigger("etl", {"day": "2026-01-01"}, run_after=DAY, note="by hand")
    assert_type(key, DagRunKey)
    run = await client.wait_run(key)
    assert_type(run, RunInfo)
    assert_type(run.started_at, datetime | None)
    assert_type(run.conf, dict[str, Any] | None)
    assert_type(await client.get_results(run.key), dict[str, Any])
    assert_type(await client.clear(run.key, ("load",), dry_run=True), tuple[ChangedTask, ...])
    assert_type(await client.mark(run.key, ("load",), "success", downstream=True), tuple[ChangedTask, ...])
    assert_type(await client.list_callbacks(run.key), Page[CallbackInfo])
    assert_type(await client.list_runs(state=(DagRunState.FAILED, "running"), run_type=("manual",)), Page[RunInfo])
    await all_pages(client)
    task = TaskInstanceKey(*run.key, "load")
    assert_type(await client.get_task(task), TaskInstanceInfo)
    assert_type(await client.task_logs(task, start=100), LogPart)
    assert_type(await client.get_xcom(task), XComValue)
    assert_type(await client.delete_run(run.key), None)


async def names(scheduler: Scheduler, client: Client, key: DagRunKey) -> None:
    """Name a run and a task instance by a key, by a plain tuple, or by a result about them."""
    await client.get_run(("etl", "first"))
    await client.cancel(await scheduler.run("etl"))
    for run in (await client.list_runs("etl")).items:
        await client.wait_run(run)
        await scheduler.clear_tasks(run)
    await client.get_xcom(("etl", "first", "load", 3))
    await client.note_task(("etl", "first", "load"), "Slow.")
    await client.clear(key, ["load"], downstream=True)
    for task in (await client.list_tasks(state=[TaskInstanceState.FAILED], order_by=["-started_at"])).items:
        await client.task_logs(task)
        await client.mark_run(task, "failed")


async def all_pages(client: Client) -> int:
    """Read a list page after page."""
    n, after = 0, None
    while True:
        page = await client.list_tasks("etl", state=("failed",), after=after)
        assert_type(page.items, tuple[TaskInstanceInfo, ...])
        assert_type(page.after, str | None)
        n += len(page.items)
        if page.after is None:
            return n
        after = page.after


async def runs_a_scheduler(client: Client) -> None:
    assert_type(await client.backfill("etl", DAY, DAY, reprocess="failed"), BackfillInfo)
    assert_type(await client.list_backfill_dates("etl", 3), Page[BackfillDateInfo])
    assert_type(await client.asset_changed(7, {"rows": 5}), EventInfo)
    assert_type(await client.list_queued_events("etl"), Page[QueuedInfo])
    assert_type(await client.set_pool("db", 4, description="Few."), PoolInfo)
    assert_type(await client.set_variable("region", "eu"), VariableInfo)
    assert_type(await client.create_token("report", scope="view", days=30), NewToken)
    assert_type(await client.simulate(DAY, DAY + timedelta(days=1), pools={"db": 2}), Simulated)
    assert_type(await client.list_late(), Late)
    assert_type(await client.health(), Health)
    events = client.events(since=0, dag_id="etl")
    assert_type(events, AsyncIterator[Change | Missed])
    async for event in events:
        print(event.go_on_at if isinstance(event, Missed) else event.state)


async def is_wrong(client: Client, key: DagRunKey, dags: Path) -> None:
    """What is wrong is an error: mypy complains if one of these comments is not needed."""
    Scheduler(dag=dags)  # type: ignore[arg-type]
    Scheduler(dags=dags, parallelism="four")  # type: ignore[arg-type]
    Client()  # type: ignore[call-arg]
    Client("https://scheduler.example.com", "secret")  # type: ignore[call-arg]
    await client.trigger()  # type: ignore[call-arg]
    await client.trigger("etl", run_after="tomorrow")  # type: ignore[arg-type]
    await client.list_runs(state=("done",))  # type: ignore[arg-type]
    await client.list_runs(dag="etl")  # type: ignore[call-arg]
    await client.mark(key, ("load",), "done")  # type: ignore[arg-type]
    await client.mark_run(key, "skipped")  # type: ignore[arg-type]
    await client.create_token(scope="all")  # type: ignore[arg-type]
    print((await client.get_run(key)).finished_at)  # type: ignore[attr-defined]
    print(client.get_dag("etl").dag_id)  # type: ignore[attr-defined]
    await client.get_run("first")  # type: ignore[arg-type]
    await client.get_run(("etl", "first", "load"))  # type: ignore[arg-type]
    await client.clear(key, "load")  # type: ignore[arg-type]
    await client.get_task(key)  # type: ignore[arg-type]
    await client.cancel(await client.get_dag("etl"))  # type: ignore[arg-type]
