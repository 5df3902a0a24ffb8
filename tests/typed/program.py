"""A program that embeds a scheduler, as users write it: `mypy` checks it strictly."""

from typing import assert_type

from asynsched import Client, DagRunKey, Scheduler, TaskInstanceKey, TaskInstanceState


async def ask(scheduler: Scheduler, client: Client) -> None:
    """A run and a task instance are named by a key, by a plain tuple, or by a result about them."""
    key = await client.trigger("etl", {"day": "2026-01-31"})
    assert_type(key, DagRunKey)
    await client.get_run(key)
    await client.get_run(("etl", "first"))
    await client.cancel(await scheduler.run("etl"))
    for run in (await client.list_runs("etl")).items:
        await client.wait_run(run)
        await scheduler.clear_tasks(run)
    await client.get_task(TaskInstanceKey(*key, "load"))
    await client.get_xcom(("etl", "first", "load", 3))
    await client.note_task(("etl", "first", "load"), "Slow.")
    await client.clear(key, ["load"], downstream=True)
    await client.mark(key, ("load",), "success")
    for task in (await client.list_tasks(state=[TaskInstanceState.FAILED], order_by=["-started_at"])).items:
        await client.task_logs(task)
        await client.mark_run(task, "failed")

    await client.get_run("first")  # type: ignore[arg-type]
    await client.get_run(("etl", "first", "load"))  # type: ignore[arg-type]
    await client.clear(key, "load")  # type: ignore[arg-type]
    await client.get_task(key)  # type: ignore[arg-type]
    await client.cancel(await client.get_dag("etl"))  # type: ignore[arg-type]
