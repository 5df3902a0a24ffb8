"""Runs that tasks trigger: `TriggerDagRunOperator`."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection

from asynsched.channels import Channels, RunCreated, RunEdited, TaskReady
from asynsched.clock import Clock
from asynsched.errors import AlreadyExists, DagError, NotFound, StoreError, StoreUnavailable
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import Launch, Reply, Request
from asynsched.scheduling.creation.triggering import ManualRuns
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.store.dags.dags import get_dag
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run, run_of_date
from asynsched.store.runs.requests import ClearTasks
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.schedulers.audit import acts_since, record_audit

OPERATION = "run_trigger"
RETRY_DELAY = timedelta(seconds=1)


class WantedRun(msgspec.Struct, frozen=True):
    """What a task asks for."""

    dag_id: str
    run_id: str | None = None
    conf: dict[str, Any] = {}
    logical_date: datetime | None = None
    has_logical_date: bool = True
    reset: bool = False
    fail_when_paused: bool = False


class RunsByTasks:
    """Creates runs for tasks, and tells the evaluator. While the database is away, a task waits."""

    def __init__(self, database: Database, channels: Channels, clock: Clock, runs: ManualRuns) -> None:
        self._database = database
        self._channels = channels
        self._clock = clock
        self._runs = runs

    async def answer(self, request: Request, ready: TaskReady) -> Reply:
        """Return what became of it: `status` is `created`, `exists` or `paused`."""
        while True:
            try:
                wanted = msgspec.convert(request.arguments, WantedRun)
                value = await self._trigger(wanted, ready.launch)
            except StoreUnavailable:
                await self._clock.sleep(RETRY_DELAY)
            except NotFound:
                return Reply(request.token, request.request_id, found=False)
            except (StoreError, DagError, msgspec.ValidationError) as exc:
                return Reply(request.token, request.request_id, error=str(exc))
            else:
                return Reply(request.token, request.request_id, value=value)

    async def _trigger(self, wanted: WantedRun, launch: Launch) -> dict[str, Any]:
        own = launch.run
        actor = f"task {own.dag_id} {own.run_id} {launch.task_id} {launch.token}"
        known = await self._database.read(_known, wanted, actor, own.started_at or own.run_after)
        if known is not None:
            return known
        try:
            key = await self._runs.create(
                wanted.dag_id,
                actor=actor,
                conf=wanted.conf,
                run_id=wanted.run_id,
                logical_date=wanted.logical_date,
                has_logical_date=wanted.has_logical_date,
                reason=f"the task {launch.task_id} of the DAG {own.dag_id} triggered it, in its run {own.run_id}",
            )
        except AlreadyExists as exc:
            if not wanted.reset:
                return {"status": "exists", "reason": str(exc)}
            key = await self._database.write(_clear, wanted, actor, self._clock.now())
            await self._channels.active_runs.put(RunEdited(key))
            return {"status": "created", "run_id": key.run_id}
        await self._channels.active_runs.put(RunCreated(key))
        return {"status": "created", "run_id": key.run_id}


def _known(conn: Connection, wanted: WantedRun, actor: str, since: datetime) -> dict[str, Any] | None:
    """Return an answer that needs no run: the DAG is paused, or the scheduler before this one has made it."""
    dag = get_dag(conn, wanted.dag_id)
    if wanted.fail_when_paused and dag is not None and dag.is_paused:
        return {"status": "paused"}
    for earlier in acts_since(conn, wanted.dag_id, since):
        if earlier.actor == actor and earlier.action in ("trigger", "clear"):
            return {"status": "created", "run_id": earlier.run_id}
    return None


def _clear(conn: Connection, wanted: WantedRun, actor: str, now: datetime) -> DagRunKey:
    """Let the run that is there already run again, and return which it is."""
    run = get_run(conn, wanted.dag_id, wanted.run_id) if wanted.run_id else None
    if run is None and wanted.logical_date is not None:
        run = run_of_date(conn, wanted.dag_id, wanted.logical_date)
    if run is None:
        raise NotFound("DAG run", wanted.run_id or wanted.dag_id)
    key = DagRunKey(run.dag_id, run.run_id)
    # One that has not begun runs for the first time anyway.
    if load_task_instances(conn, run.id):
        submit_request(conn, key, ClearTasks(), actor=actor, now=now)
    record_audit(conn, at=now, actor=actor, action="clear", dag_id=run.dag_id, run_id=run.run_id)
    return key
