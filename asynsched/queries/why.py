"""Why a DAG, run or task waits, down to the root cause, and what will release it.

The answer comes from the decisions that a scheduler would make now, so it takes up every active run. A thread does
that, with an event loop of its own: the scheduler's loop only runs the queries.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import msgspec
from anyio import to_thread
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import is_serving
from asynsched.explaining.explain import explain_dag, explain_run, explain_task, with_requests
from asynsched.explaining.owners import Owners, no_scheduler
from asynsched.explaining.reason import Explanation, Reason, visible
from asynsched.explaining.snapshot import take_snapshot
from asynsched.keys import DagRunKey, TaskInstanceKey, instance_name
from asynsched.queries.context import QueryContext
from asynsched.queries.runs import no_such_run
from asynsched.queries.serving import long_parses, owners_of
from asynsched.queries.task_instances import absence, get_task_instance
from asynsched.queries.turns import turns
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.rules.try_end import was_interrupted
from asynsched.settings import Settings
from asynsched.states import TaskInstanceState
from asynsched.store.dags.dags import DagRow, find_dag, get_dag
from asynsched.store.database import Database, Query
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import waiting_requests
from asynsched.store.runs.task_instances import list_task_instances
from asynsched.store.schedulers import known_schedulers, last_served_at
from asynsched.store.schema import DagRunRow, TaskInstanceRow

P = ParamSpec("P")
T = TypeVar("T")

MOST_AT_ONCE = 2
"""Explanations that are made at once; others wait."""


async def why(
    context: QueryContext,
    dag_id: str,
    run_id: str | None = None,
    task_id: str | None = None,
    map_index: int = -1,
    seen_dags: frozenset[str] | None = None,
) -> Explanation:
    """Explain why a DAG has no run, why a run does not go on, or why a task does not start; or why it ended as it did.

    Args:
        run_id: The run; None asks about the DAG.
        task_id: A task of the run; None asks about the run.
        map_index: Which instance of a mapped task; -1 for other tasks.
        seen_dags: The DAGs whose task instances may be named; None: all.

    Raises:
        NotFound: There is no such DAG, run or task; carries the nearest names. A DAG whose file is gone keeps its runs.
        AsynschedError: The task has no instance of that map index.
    """
    settings, now = context.settings, context.clock.now()
    found = await in_thread(
        context, lambda database: explain(database, settings, now, dag_id, run_id, task_id, map_index)
    )
    return msgspec.structs.replace(found, reasons=visible(found.reasons, seen_dags))


class Dependency(Struct, frozen=True):
    """What a task instance waits for."""

    name: str
    reason: str


async def list_dependencies(context: QueryContext, key: TaskInstanceKey) -> tuple[Dependency, ...]:
    """Return the reasons why a task instance is not queued yet; none once it is. Raises NotFound."""
    info = await context.ask(get_task_instance, key)
    if info.state not in (None, TaskInstanceState.SCHEDULED):
        return ()
    settings, now = context.settings, context.clock.now()
    return await in_thread(context, lambda database: _dependencies(database, settings, now, key))


async def _dependencies(
    database: Database, settings: Settings, now: datetime, key: TaskInstanceKey
) -> tuple[Dependency, ...]:
    row = await database.read(_known_run, key.dag_id, key.run_id)
    snapshot = await take_snapshot(database, settings, now)
    run = await snapshot.run(row.id, key.run)
    if run is None:
        return (Dependency("dag_run", "its run does not start now"),)
    task = _task(run, key.task_id, key.map_index)
    reasons = () if task is None else explain_task(snapshot, task).reasons
    return tuple(Dependency(reason.rule, reason.line) for reason in reasons)


def _task(run: ActiveRun, task_id: str, map_index: int) -> ActiveTask | None:
    """Return a task instance of a snapshot; None if it would be replaced there, such as by those that it expands to."""
    return run.instances.get(task_id, {}).get(map_index)


async def in_thread(context: QueryContext, explain: Callable[[Database], Coroutine[Any, Any, T]]) -> T:
    """Run what takes a snapshot in a thread, on an event loop of its own, with the database of this one.

    Raises AsynschedError if many wait for their turn already.
    """
    database = _OtherLoop(context.database, asyncio.get_running_loop())
    return await to_thread.run_sync(lambda: asyncio.run(explain(database)), limiter=turns("explanations", MOST_AT_ONCE))


async def explain(
    database: Database, settings: Settings, now: datetime, dag_id: str, run_id: str | None, task_id: str | None,
    map_index: int,
) -> Explanation:  # fmt: skip
    """Answer `why` on the running event loop, which it may block for long."""
    dag = await database.read(_known_dag, dag_id)
    row = None if run_id is None else await database.read(_known_run, dag_id, run_id)
    asked: Sequence[TaskInstanceRow] = ()
    if row is not None:
        asked = await database.read(list_task_instances, row.id)
        if task_id is not None:
            asked = [_instance(row, asked, task_id, map_index)]
    unserved, owners = await look_for_schedulers(database, settings, now)
    if row is None:
        parses = () if unserved else long_parses(settings.home_path)
        return await explain_dag(database, dag, now=now, unserved=unserved, parses=parses)
    snapshot = await take_snapshot(database, settings, now, unserved=unserved, owners=owners)
    run = await snapshot.run(row.id, DagRunKey(row.dag_id, row.run_id))
    task = None if task_id is None or run is None else _task(run, task_id, map_index)
    found = explain_run(snapshot, row, run) if task is None else explain_task(snapshot, task)
    found = with_requests(found, await database.read(waiting_requests, row.id), is_served=unserved is None)
    return _with_interruptions(found, [one for one in asked if was_interrupted(one.state, one.reason)])


def _known_dag(conn: Connection, dag_id: str) -> DagRow:
    return get_dag(conn, dag_id) or find_dag(conn, dag_id)


def _known_run(conn: Connection, dag_id: str, run_id: str) -> DagRunRow:
    run = get_run(conn, dag_id, run_id)
    if run is None:
        raise no_such_run(conn, dag_id, run_id)
    return run


def _instance(run: DagRunRow, instances: Sequence[TaskInstanceRow], task_id: str, map_index: int) -> TaskInstanceRow:
    for instance in instances:
        if instance.task_id == task_id and instance.map_index == map_index:
            return instance
    known = [(instance.task_id, instance.map_index) for instance in instances]
    raise absence(run.run_id, run.state, known, task_id, map_index)


async def look_for_schedulers(database: Database, settings: Settings, now: datetime) -> tuple[Reason | None, Owners]:
    """Return why no scheduler works, None if one does, and which one owns which run, as of one moment. Blocks."""
    serves_home = is_serving(settings.home_path)
    owners = owners_of(await database.read(known_schedulers), now, is_shared=database.is_shared)
    if serves_home or (database.is_shared and owners.are_serving):
        return None, owners
    return no_scheduler(await database.read(last_served_at), owners.stopping), owners


def _with_interruptions(found: Explanation, interrupted: Sequence[TaskInstanceRow]) -> Explanation:
    """Add to the answer which tries were interrupted: that holds nothing up, but explains why a task begins again."""
    if not interrupted:
        return found
    row = interrupted[0]
    more = f" (and {len(interrupted) - 1} more)" if len(interrupted) > 1 else ""
    answer = f"{found.answer} Task {instance_name(row.task_id, row.map_index)}: {row.reason}{more}."
    return msgspec.structs.replace(found, answer=answer)


class _OtherLoop(Database):
    """The database of another thread's event loop, which runs the queries."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self.is_shared = database.is_shared

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._there(self._database.read(query, *args, **kwargs))

    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._there(self._database.write(query, *args, **kwargs))

    async def close(self) -> None:
        """Leave the database open: it belongs to the other loop."""

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
