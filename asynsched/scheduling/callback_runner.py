"""Runs the callbacks of tasks and runs: durable rows, each in a process of its own, at least once."""

from datetime import datetime, timedelta

import structlog

from asynsched.channels import CallbackRequested, Channels, TaskFinished, TaskReady, TriesStored
from asynsched.clock import Clock, new_token
from asynsched.executors.log_paths import callback_log_path
from asynsched.keys import TaskInstanceKey
from asynsched.scheduling.launches import run_context
from asynsched.scheduling.run_loading import active_run
from asynsched.scheduling.versions import VersionCache
from asynsched.service import Service
from asynsched.store.callback_requests import CallbackRequest, finish_callback, next_callbacks, take_callback
from asynsched.store.database import Database
from asynsched.store.run_queue import runs_by_id
from sandbox.protocol import Ended, Launch

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 4
"""Callbacks that run at once, beside the parallelism of tasks."""
MAX_ATTEMPTS = 3
"""How often a callback is begun, when the machine or a scheduler dies under it."""
TIMEOUT_SECONDS = 300.0
"""Longest that a callback may take."""


class CallbackRunner(Service):
    """Launches callbacks, and notes their ends."""

    name = "callback runner"

    def __init__(
        self, *, channels: Channels, database: Database, clock: Clock, versions: VersionCache, sweep_interval: timedelta
    ) -> None:
        super().__init__(clock)
        self.interval = sweep_interval
        self._channels = channels
        self._database = database
        self._versions = versions
        self._running: dict[str, CallbackRequest] = {}
        self._may_have_more = True
        channels.callbacks.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether no callback runs or waits."""
        return not (self._running or self._may_have_more or self._channels.callbacks.qsize())

    async def tick(self, now: datetime) -> None:
        """Note what has ended, begin what waits."""
        for message in self._channels.callbacks.take():
            match message:
                case CallbackRequested():
                    self._may_have_more = True
                case TaskFinished(Ended() as ended):
                    await self._finish(ended)
        room = MAX_AT_ONCE - len(self._running)
        if room <= 0:
            return
        waiting = await self._database.read(next_callbacks, room, [r.id for r in self._running.values()])
        self._may_have_more = len(waiting) == room
        for request in waiting:
            await self._begin(request)

    async def _begin(self, request: CallbackRequest) -> None:
        if request.attempts >= MAX_ATTEMPTS:
            await self._database.write(finish_callback, request.id, "failed")
            log.error("callback.given_up", callback=request.event, task_id=request.task_id)
            return
        row = (await self._database.read(runs_by_id, [request.dag_run_id]))[0]
        if row.version_id is None:
            await self._database.write(finish_callback, request.id, "failed")
            return
        run = active_run(row, await self._versions.get(row.version_id))
        token = new_token()
        await self._database.write(take_callback, request.id, token)
        self._running[token] = request
        key = TaskInstanceKey(*run.key, request.task_id, request.map_index)
        launch = Launch(
            token=token,
            task_id=request.task_id,
            map_index=request.map_index,
            try_number=request.try_number,
            max_tries=request.try_number,
            run=run_context(run),
            code=run.code,
            log_path=callback_log_path(key, request.event, request.try_number),
            execution_timeout=TIMEOUT_SECONDS,
            callback={"event": request.event, "reason": request.reason},
        )
        self._channels.ready.put_nowait(TaskReady(run.id, launch))

    async def _finish(self, ended: Ended) -> None:
        request = self._running.pop(ended.token, None)
        self._channels.ready.put_nowait(TriesStored((ended.token,)))
        if request is None:
            return
        if ended.cause == "task":
            succeeded = ended.state == "success"
            await self._database.write(finish_callback, request.id, "success" if succeeded else "failed")
            if not succeeded:
                log.error("callback.failed", callback=request.event, task_id=request.task_id, reason=ended.reason)
        self._may_have_more = True
