"""Actions on runs: trigger, mark, clear, delete, note, and waiting for their ends.

A run that a scheduler owns is changed by that scheduler: the action stores a request, and waits a while for the
scheduler to do it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import Connection

from asynsched.errors import NotFound, StoreUnavailable
from asynsched.executors.log_removal import remove_logs
from asynsched.keys import DagRunKey
from asynsched.queries import deletions, run_edits
from asynsched.queries.context import QueryContext
from asynsched.queries.own_timetables import ask_timetable
from asynsched.queries.run_edits import Clear, MarkedAs, find_run
from asynsched.queries.runs import RunInfo, get_state
from asynsched.scheduling.creation.triggering import check_conf
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import ChangedTask, Submitted, preview_request
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import AnswersForRun
from asynsched.states import FINISHED_RUN_STATES
from asynsched.store.dags.dags import file_to_ask, latest_version
from asynsched.store.runs.requests import CancelRun, ClearTasks, is_open
from asynsched.store.runs.task_instances import load_task_instances

if TYPE_CHECKING:
    from asynsched.clock import Clock

LONGEST_WAIT = timedelta(seconds=5)
"""How long an action waits for the scheduler that owns a run: a task that is killed has some time to end.

A command waits longer (`cli/runs.py`): a person who sees that it waits can interrupt it.
"""
LOOK_INTERVAL = timedelta(seconds=1)
"""Time between two looks at a run for which somebody waits in a process that reads no changes."""
_OVER = object()
"""Stands for a step after the last: the scheduler stops."""


async def trigger_run(context: QueryContext, actor: str, dag_id: str, wanted: Trigger) -> RunInfo:
    """Create a run of a DAG, and return it.

    Raises the errors of `create_manual_run`.
    """
    now, answers = context.clock.now(), AnswersForRun()
    question = wanted.question(now)
    file = await context.ask(file_to_ask, dag_id, question)
    if file is not None:
        answers = (await ask_timetable(context, file, dag_id, question, wanted.date(now) or now)).for_run
    checked = await check_conf(context.database, dag_id, wanted.conf)
    return await context.act(actor, run_edits.store_trigger, dag_id, wanted, answers, actor, now, checked)


async def mark_run(context: QueryContext, actor: str, key: DagRunKey, state: MarkedAs) -> Submitted:
    """End a run as `success` or `failed`, with its tasks; or queue an ended one again, with its tasks as they are.

    Raises NotFound.
    """
    return await change_run(
        context, key, partial(context.act, actor, run_edits.store_mark, key, state, actor, context.clock.now())
    )


async def cancel_run(context: QueryContext, actor: str, key: DagRunKey) -> Submitted:
    """End a run that is queued or running: its tries are killed, waiting tasks are skipped, and the run fails.

    Raises NotFound, and AsynschedError if it has ended already.
    """
    return await change_run(
        context, key, partial(context.act, actor, run_edits.edit_run, key, CancelRun(), actor, context.clock.now())
    )


async def note_run(context: QueryContext, actor: str, key: DagRunKey, text: str) -> None:
    """Note something about a run, in place of an earlier note; an empty text removes it. Raises NotFound."""
    await context.act(actor, run_edits.store_run_note, key, text, actor, context.clock.now())


async def clear_tasks(context: QueryContext, actor: str, key: DagRunKey, wanted: Clear) -> Submitted:
    """Run tasks of a run again. One that has ended without task instances is queued again, as a whole.

    Raises NotFound, and AsynschedError.
    """
    now = context.clock.now()
    return await change_run(context, key, partial(context.act, actor, run_edits.store_clear, key, wanted, actor, now))


def preview_clear(conn: Connection, key: DagRunKey, request: ClearTasks, *, now: datetime) -> tuple[ChangedTask, ...]:
    """Return the task instances that `clear_tasks` would concern: none without task instances. Raises NotFound."""
    run = find_run(conn, key)
    return preview_request(conn, key, request, now=now) if load_task_instances(conn, run.id) else ()


def new_tasks(conn: Connection, key: DagRunKey) -> tuple[str, ...]:
    """Return the tasks of a DAG's newest version that have no instances in a run. Raises NotFound."""
    run, version = find_run(conn, key), latest_version(conn, key.dag_id)
    if version is None:
        raise NotFound("DAG", key.dag_id)
    known = {row.task_id for row in load_task_instances(conn, run.id)}
    return tuple(sorted({task.task_id for task in decode_dag(version.serialized).tasks} - known))


async def delete_run(context: QueryContext, actor: str, key: DagRunKey) -> None:
    """Delete a run that has ended, or has not begun, with its rows and logs.

    A large run goes in several transactions. Raises NotFound, and AsynschedError while the run is running.
    """
    while not await context.database.write(deletions.delete_part, key):
        pass
    await context.act(actor, deletions.delete_run_row, key)
    await run_sync(partial(remove_logs, are_archived=bool(context.settings.log.store)), context.home, [key])


async def delete_dag(context: QueryContext, actor: str, dag_id: str) -> None:
    """Delete a DAG that has left its file, with its runs and their logs.

    Raises NotFound, and AsynschedError while its file has it, or one of its runs is running.
    """
    while run_ids := await context.ask(deletions.runs_to_delete, dag_id):
        for run_id in run_ids:
            await delete_run(context, actor, DagRunKey(dag_id, run_id))
    await context.act(actor, deletions.delete_dag_row, dag_id)


async def wait_for_run(
    context: QueryContext, key: DagRunKey, *, interval: timedelta = timedelta(seconds=60)
) -> AsyncGenerator[str, None]:
    """Yield the state of a run now, after each change, and after each interval without one, until it has ended.

    A process that reads no changes looks at the run each second. Raises NotFound.
    """
    told = await context.ask(get_state, *key)
    if told in FINISHED_RUN_STATES:
        yield told
        return
    async with _changes_of(context, key) as changes:
        told_at: float | None = None
        while True:
            state, now = await context.ask(get_state, *key), context.clock.monotonic()
            if told_at is None or state != told or now >= told_at + interval.total_seconds():
                told, told_at = state, now
                yield state
            if state in FINISHED_RUN_STATES:
                return
            with anyio.move_on_after(told_at + interval.total_seconds() - now):
                if await anext(changes, _OVER) is _OVER:
                    return


@asynccontextmanager
async def _changes_of(context: QueryContext, key: DagRunKey) -> AsyncIterator[AsyncIterator[object]]:
    """Yield an iterator with a step for each moment at which a run may have changed."""
    if context.feed is None:
        yield _Looks(context.clock)
    else:
        async with context.following(key) as changes:
            yield changes


class _Looks(AsyncIterator[None]):
    """A step each second. It bears that a wait for a step is cancelled, which a generator does not."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock

    async def __anext__(self) -> None:
        await self._clock.sleep(LOOK_INTERVAL)


async def change_run(context: QueryContext, key: DagRunKey, act: Callable[[], Awaitable[Submitted]]) -> Submitted:
    """Do an action on a run, and wait a while until the scheduler that owns the run has done it, if one does."""
    if context.feed is None:
        return await act()
    async with context.following(key) as changes:
        done = await act()
        if done.request_id is None:
            return done
        # The request is stored. After an error, its caller would repeat it.
        with anyio.move_on_after(LONGEST_WAIT.total_seconds()), suppress(StoreUnavailable):
            while await context.ask(is_open, done.request_id):
                if await anext(changes, _OVER) is _OVER:
                    return done
            return Submitted(done.instances)
        return done


def names_of(instances: Iterable[ChangedTask]) -> list[tuple[str, int]]:
    """Return the task_ids and map indexes of task instances, each once. For thousands, call it in a thread."""
    return list(dict.fromkeys((one.task_id, one.map_index) for one in instances))
