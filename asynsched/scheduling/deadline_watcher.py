"""The deadline watcher: decides each deadline at the moment at which it is due.

The database's index of pending deadlines serves as its heap of timers: the watcher sleeps until the earliest deadline,
however many there are. At its start it decides the deadlines that came due while no scheduler served.

Each scheduler decides the deadlines of the runs that it owns: a success in time may not be stored yet, as while the
database is away, and only the run's own scheduler knows of it. The deadlines of runs that no scheduler owns are decided
by the scheduler that locks them.

When a deadline with a user's reference is due, or one whose interval is a variable, only user code can say. A new run
requests that as it requests a callback: a process of its own runs the code, and says when the deadline is due.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import anyio
import msgspec
from msgspec import Meta

from asynsched.channels import CallbackRequested, Channels, RunCreated, TaskReady
from asynsched.clock import Clock
from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Reply, Request
from asynsched.serialization.schema import LONGEST_SECONDS
from asynsched.service import Service, until_available
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.runs.deadlines import decide_due_deadlines, next_deadline_at, place_deadline

log = get_logger(__name__)

MAX_AT_ONCE = 200
"""How many deadlines one transaction decides at most."""
PAUSE = timedelta(seconds=1)
"""How long to wait when another scheduler is deciding the deadlines that are due."""


class Placing(msgspec.Struct, frozen=True):
    """A process says when a deadline of its run is due; see `place_deadline`."""

    number: int
    at: Annotated[datetime, Meta(tz=True)] | None
    interval: Annotated[float, Meta(ge=-LONGEST_SECONDS, le=LONGEST_SECONDS)]


@dataclass(frozen=True, slots=True)
class PlacedDeadlines:
    """Stores the deadlines that user code determines, and wakes the watcher."""

    database: Database
    channels: Channels
    clock: Clock

    async def answer(self, request: Request, ready: TaskReady) -> Reply:
        """Return nothing, or an error in one line. While the database is away, the process waits."""
        run = ready.launch.run
        try:
            given = msgspec.structs.asdict(msgspec.convert(request.arguments, Placing))
            write = partial(self.database.write, place_deadline, ready.dag_run_id, run, **given)
            await until_available(self.clock, write)
        except (AsynschedError, msgspec.ValidationError, OverflowError) as exc:
            return Reply(request.token, request.request_id, error=f"{request.operation}: {exc}")
        self.channels.deadlines.offer(RunCreated(DagRunKey(run.dag_id, run.run_id)))
        return Reply(request.token, request.request_id)


class DeadlineWatcher(Service):
    """Decides deadlines, and requests the callbacks of missed ones.

    Args:
        lease_epoch: Lease epoch of this scheduler's runs.
        reports_stored: Waits until all reports on these runs are stored.
    """

    name = "deadline watcher"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        *,
        lease_epoch: int,
        reports_stored: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels
        self._database = database
        self._lease_epoch = lease_epoch
        self._reports_stored = reports_stored
        self._longest_wait_seconds = settings.monitor.longest_step / 2
        channels.deadlines.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether every deadline that is due is decided."""
        return not self._channels.deadlines.qsize() and (self.due_at is None or self.due_at > self.clock.now())

    async def tick(self, now: datetime) -> None:
        """Decide the deadlines that are due, and find the next one."""
        self._channels.deadlines.take()
        self.due_at = await self._database.read(next_deadline_at, self._lease_epoch)
        if self.due_at is None or self.due_at > now:
            return
        with anyio.move_on_after(self._longest_wait_seconds) as wait:
            await self._reports_stored()
        if wait.cancelled_caught:
            # While the database comes and goes, that may take long, but the step must not seem stuck. Try again.
            return
        n_decided, missed = await self._database.write(decide_due_deadlines, self._lease_epoch, now, MAX_AT_ONCE)
        for miss in missed:
            due_at = miss.due_at.isoformat()
            log.warning("deadline.missed", dag_id=miss.dag_id, run_id=miss.run_id, deadline=miss.name, due_at=due_at)
        if missed:
            self._channels.callbacks.put_nowait(CallbackRequested())
        if n_decided:
            self.wake()
        else:
            self.due_at = now + PAUSE
