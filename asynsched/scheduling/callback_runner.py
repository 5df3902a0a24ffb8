"""Runs the callbacks of tasks and runs, and the calls of listeners that belong to no run.

They are durable rows. Each runs in a process of its own, at least once.
"""

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from asynsched.channels import NO_RUN, CallbackRequested, Channels, TaskReady, TriesStored, TryReported, TryUnwanted
from asynsched.clock import Clock
from asynsched.errors import DagError, NotFound
from asynsched.executors.base import Adopt, Held
from asynsched.executors.tokens import is_callback_token, new_callback_token
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Ended, Launch
from asynsched.scheduling.announcements import callback_launch, listener_launch
from asynsched.scheduling.loading import VersionCache, active_run
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.runs import callbacks
from asynsched.store.runs.callbacks import Callback
from asynsched.store.runs.deadlines import MISS_EVENT, list_deadlines
from asynsched.store.runs.queue import runs_by_id
from asynsched.store.schema import CallbackRequest, ListenerCall

log = get_logger(__name__)
_MOST_NAMED = 5
"""Assets or files that a line of the log names."""


class CallbackRunner(Service):
    """Launches callbacks, and stores their ends.

    Args:
        adopt: Takes over the tickets that other schedulers have left.
    """

    name = "callback runner"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        *,
        versions: VersionCache,
        scheduler_id: str,
        adopt: Adopt,
    ) -> None:
        super().__init__(clock)
        self._scheduler_id = scheduler_id
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._settings = settings.callbacks
        self._dags_folder = str(settings.dags_path)
        self._channels = channels
        self._database = database
        self._versions = versions
        self._adopt = adopt
        self._running: dict[str, Callback] = {}
        self._news: deque[CallbackRequested | TryReported] = deque()
        self._may_have_more = True
        self._is_stopping = False
        self._is_taking = False
        self._left_to_others: set[int] = set()
        """Callbacks whose code only a newer asynsched can read, by row id."""
        channels.callbacks.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether no callback runs or waits."""
        return not (self._running or self._may_have_more or self._news or self._channels.callbacks.qsize())

    @property
    def are_reports_stored(self) -> bool:
        """Whether all reports are stored."""
        return not (self._is_taking or self._news or self._channels.callbacks.qsize())

    @property
    def running(self) -> Collection[str]:
        """The tokens of the callbacks that run."""
        return self._running.keys()

    def stop_beginning(self) -> None:
        """Begin no callback from now on: the scheduler is stopping, and would interrupt it."""
        self._is_stopping = True

    async def recover(self, held: Held) -> None:
        """Resume an earlier scheduler's callbacks that the executor still holds; the others start again."""
        running = await self._database.read(callbacks.running_callbacks, self._scheduler_id)
        requests = {request.token: request for request in running}
        for token in sorted(held.known):
            request = requests.get(token)
            if request is None:
                if is_callback_token(token) and token not in held.ended:
                    self._channels.ready.put_nowait(TryUnwanted(token, "its callback is not wanted any more"))
                continue
            await self._resume(request, token)

    async def tick(self, now: datetime) -> None:
        """Store the ends of callbacks, and begin waiting ones."""
        self._news.extend(self._channels.callbacks.take())
        # Drop each message only after acting on it: the database may go away between two of them.
        while self._news:
            match self._news[0]:
                case CallbackRequested():
                    self._may_have_more = True
                case TryReported(Ended() as ended):
                    await self._finish(ended)
            self._news.popleft()
        room = self._settings.processes - len(self._running)
        if room <= 0 or self._is_stopping:
            return
        # Until the callbacks found below have begun, nothing else records that they wait.
        self._may_have_more = True
        ours = self._running.values()
        others = {request.id for request in ours if isinstance(request, CallbackRequest)} | self._left_to_others
        calls = {request.id for request in ours if isinstance(request, ListenerCall)}
        waiting = await self._database.read(callbacks.next_callbacks, self._scheduler_id, room, others, calls)
        for request in waiting:
            await self._begin(request)
        self._may_have_more = len(waiting) == room
        if self._may_have_more and len(self._running) < self._settings.processes:
            self.wake()

    async def _begin(self, request: Callback) -> None:
        if self._is_stopping or await self._take_over(request):
            return
        if request.attempts >= self._settings.attempts:
            await self._give_up(request, f"it was begun {request.attempts} times and never ended")
            return
        token = new_callback_token()
        try:
            launch = await self._prepare(request, token)
        except DagError as exc:
            self._left_to_others.add(request.id)
            log.warning("callback.left_to_others", **await self._about(request), reason=str(exc))
            return
        if launch is None:
            await self._give_up(request, "its run was deleted, or the code of its run is gone")
            return
        self._is_taking = True
        try:
            if not await self._database.write(callbacks.take_callback, request, token, self._scheduler_id):
                return
        finally:
            self._is_taking = False
        self._running[token] = request
        if self._is_stopping:
            # The scheduler was told to stop meanwhile: this attempt ends before it begins, and does not count.
            reason = "the scheduler is stopping"
            self._news.append(TryReported(Ended(token, "failed", self.clock.now(), reason=reason, cause="interrupted")))
            self.wake()
            return
        self._channels.ready.put_nowait(TaskReady(_run_of(request), launch))

    async def _take_over(self, request: Callback) -> bool:
        """Go on with an attempt on another machine whose scheduler is gone, unless a third one does.

        Returns False if there is no such attempt: the callback begins again.
        """
        if isinstance(request, ListenerCall) or request.token is None:
            return False
        # If it is this one's already, the database may have gone away just after that was stored.
        was_ours = request.scheduler_id == self._scheduler_id
        if not was_ours and not await self._database.write(callbacks.take_over_callback, request, self._scheduler_id):
            return True
        held = await self._adopt([request.dag_run_id])
        # An end of its own is stored before a callback begins again.
        if request.token not in (held.starting | held.running if was_ours else held.known):
            return False
        await self._resume(request, request.token)
        return True

    async def _resume(self, request: Callback, token: str) -> None:
        """Wait for the end of an attempt that an executor holds, and have its requests answered."""
        self._running[token] = request
        launch = None
        with suppress(DagError):  # it still runs, but its requests get no answer
            launch = await self._prepare(request, token)
        if launch is not None:
            # A token starts one process at most, so this starts none.
            self._channels.ready.put_nowait(TaskReady(_run_of(request), launch))

    async def _prepare(self, request: Callback, token: str) -> Launch | None:
        """Return the launch of a callback; None when its run was deleted, or its code.

        Raises:
            DagError: This asynsched cannot read the version of the callback's run: a newer asynsched wrote it.
        """
        if isinstance(request, ListenerCall):
            return listener_launch(request, self._dags_folder, token, self._settings.timeout, self.clock.now())
        rows = await self._database.read(runs_by_id, [request.dag_run_id])
        if not rows or rows[0].version_id is None:
            return None
        try:
            version = await self._versions.get(rows[0].version_id)
        except NotFound:
            return None
        is_miss = request.event == MISS_EVENT
        deadlines = await self._database.read(list_deadlines, request.dag_run_id) if is_miss else ()
        return callback_launch(request, active_run(rows[0], version), token, self._settings, deadlines)

    async def _give_up(self, request: Callback, reason: str) -> None:
        await self._database.write(callbacks.finish_callback, request, request.token, "failed")
        log.error("callback.given_up", **await self._about(request), reason=reason)

    async def _about(self, request: Callback) -> dict[str, Any]:
        """Return the fields that the log shows of a callback."""
        if isinstance(request, ListenerCall):
            return {
                "callback": request.event,
                "of": [subject.get("name") or subject.get("file") for subject in request.subjects[:_MOST_NAMED]],
            }
        rows = await self._database.read(runs_by_id, [request.dag_run_id])
        run = {"dag_id": rows[0].dag_id, "run_id": rows[0].run_id} if rows else {}
        task = {"task_id": request.task_id, "try_number": request.try_number} if request.task_id else {}
        return {"callback": request.event, **run, **task}

    async def _finish(self, ended: Ended) -> None:
        """Store an end, then forget the callback: the executor reports unacknowledged ends again."""
        request = self._running.get(ended.token)
        if request is not None and ended.cause == "interrupted":
            # As with tries: a callback that a stop interrupted, or the executor refused, is not an attempt.
            await self._database.write(callbacks.hand_back_callback, request, ended.token)
        elif request is not None and ended.cause == "task":
            succeeded = ended.state == "success"
            await self._database.write(
                callbacks.finish_callback, request, ended.token, "success" if succeeded else "failed"
            )
            if not succeeded:
                about = await self._about(request)
                self.metrics.count("dag.callback_exceptions", str(about.get("dag_id", "")))
                log.error("callback.failed", **about, reason=ended.reason)
        self._running.pop(ended.token, None)
        self._channels.ready.put_nowait(TriesStored((ended.token,)))
        self._may_have_more = True


def _run_of(request: Callback) -> int:
    """Return the row id of a callback's run; `NO_RUN` for a call of listeners."""
    return request.dag_run_id if isinstance(request, CallbackRequest) else NO_RUN
