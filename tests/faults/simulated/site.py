"""One simulated machine: the schedulers that are started on it one after another, and their keepers."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from asynsched.assembly import Foundation, Services, assemble
from asynsched.bell import Hint
from asynsched.errors import ExecutorError, HomeInUse, LeaseLost, StoreUnavailable
from asynsched.executors.local import LocalExecutor
from asynsched.housekeeping.bell_listener import hand_out
from asynsched.housekeeping.notification_listener import NotificationListener
from asynsched.lease.expiry import takeover_seconds
from asynsched.scheduler import Scheduler
from asynsched.service import Service
from tests.faults.simulated.dag_folder import DagFolder, ScriptedWatcher
from tests.faults.simulated.faulty_database import FaultyDatabase
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.loop import PROCESS, Process
from tests.faults.simulated.machine import SHARE_OF_CANCELLATIONS, Machine
from tests.faults.simulated.notifications import URL
from tests.faults.simulated.worlds import inline_database

LONG_PAUSES = 0.5
"""Share of pauses that outlast leases, where there are other schedulers."""


class ServicesWithoutOthers(Services):
    """The production services, except those that hear other terminals, and the parser if no files are edited."""

    @property
    def producers(self) -> tuple[Service, ...]:
        parsing = (self.file_watcher, self.dispatcher) if isinstance(self.file_watcher, ScriptedWatcher) else ()
        listeners = (part for part in self.listeners if isinstance(part, NotificationListener))
        return (*parsing, self.creator, *listeners)


class SimulatedScheduler(Scheduler):
    """The production scheduler, with these services.

    Attributes:
        services: Its parts, once they are made.
        folder: The DAG folder, if its files are parsed.
    """

    services: Services | None = None
    folder: DagFolder | None = None

    def made(self, base: Foundation, **options: Any) -> Services:
        PROCESS.get().lease_epoch = base.lease.epoch
        services = assemble(base, **options)
        parts = {part.name: getattr(services, part.name) for part in fields(services)}
        if base.database.is_shared:
            listener = NotificationListener(
                url=URL, channels=base.channels, clock=base.clock, scheduler_id=base.lease.scheduler_id
            )
            parts["listeners"] = (listener,)
        if self.folder is not None:
            parts["file_watcher"] = ScriptedWatcher(self.folder, base.channels, base.clock, PROCESS.get())
        self.services = ServicesWithoutOthers(**parts)
        return self.services


class Site(Machine):
    """A machine with the home of schedulers.

    Attributes:
        scheduler: The scheduler of now, None while none is started.
        serving: The task that serves.
        is_right_since: When the wall clock has last jumped, or was corrected, in the world's seconds.
        n_seconds_off: How far the wall clock has jumped in all. Stamps from meanwhile are off by that at most.
    """

    expected_ends = (StoreUnavailable, LeaseLost, ExecutorError, asyncio.CancelledError, HomeInUse)

    def __init__(self, world: Any, home: Path) -> None:
        super().__init__(world, home, replace(world.settings, home=str(home), dags_folder=str(home.parent)))
        self.database: FaultyDatabase | None = None
        self.scheduler: SimulatedScheduler | None = None
        self.serving: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self.n_seconds_off = 0.0
        self.is_right_since = -self.settings.sweep_interval
        self.has_missed_hint_at = -self.settings.sweep_interval

    @property
    def takeover_seconds(self) -> float:
        """The seconds after the last renewal until others take over the scheduler's runs, if there are others."""
        return takeover_seconds(self.settings.lease, is_alone=False)

    @property
    def is_serving(self) -> bool:
        """Whether a scheduler serves here that is not stopped."""
        serves = self.scheduler is not None and self.scheduler.started.is_set()
        return serves and self.process is not None and not self.process.is_stopped and not self.process.is_dead

    @property
    def has_right_clock(self) -> bool:
        """Whether the wall clock is right, and has been since the last sweep: who waits for a due time may find it so
        only then.
        """
        n_seconds_right = self.world.clock.monotonic() - self.is_right_since
        return not self.clock.offset and n_seconds_right >= self.settings.sweep_interval

    @property
    def hears_others(self) -> bool:
        """Whether it has heard all that was said since the last sweep."""
        return self.world.clock.monotonic() - self.has_missed_hint_at >= self.settings.sweep_interval

    @property
    def is_stopping(self) -> bool:
        """Whether the scheduler was asked to stop, or cancelled."""
        if self.scheduler is None:
            return False
        return self.scheduler.stopping.is_set() or self._is_cancelled

    @property
    def n_in_executor(self) -> int:
        """How many tries the executor of the scheduler still knows."""
        executor = self.scheduler.services.executor
        if isinstance(executor, LocalExecutor):
            return len(executor._launched)
        far, local = executor._executors["far"], executor._executors["local"]
        return len(local._launched) + sum(map(len, (far._tries, far._new, far._reported, far._to_kill, far._to_forget)))

    async def keep_serving(self) -> None:
        """Start a scheduler, and another one when that is gone."""
        while True:
            await self._serve()
            if self.world.is_over:
                return
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return how long no scheduler serves here: beside others, even long enough that they take everything."""
        chance = self.world.chance
        if len(self.world.sites) > 1 and not chance.is_calm and chance.random.random() < LONG_PAUSES:
            return chance.between(0.85 * self.takeover_seconds, 2 * self.takeover_seconds)
        return chance.between(0.1, 20 if self.world.climate.slow else 3)

    async def _serve(self) -> None:
        world = self.world
        self.n_starts += 1
        process = self.process = Process(f"{self.name} {self.n_starts}", self.crash)
        self.database = FaultyDatabase(world, process, inline_database())
        self.scheduler = scheduler = process.context.run(self._make)
        world.say(process.name, "starts")
        self._is_cancelled = False
        self.serving = task = process.start(scheduler.serve(), "serve")
        await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        world.say(process.name, "is gone" if error is None else f"is gone: {error!r}")
        if error is not None and not process.is_dead and not self._is_expected(error):
            raise Violation(f"a scheduler failed by a bug: {error!r}") from error
        self.scheduler = None
        self._hang_up("its scheduler is gone")

    def _make(self) -> SimulatedScheduler:
        elsewhere = self.world.elsewhere
        executor = LocalExecutor if elsewhere is None else elsewhere.executors
        made = SimulatedScheduler(settings=self.settings, database=self.database, executor=executor, clock=self.clock)
        made.folder = self.world.folder
        # Without the number of this process, which is another one when a seed is replayed.
        made.scheduler_id = f"{self.name}:{self.n_starts}"
        return made

    def crash(self, when: str) -> None:
        assert self.process is not None
        self.world.say("fault", f"{self.process.name} is killed {when}")
        self.process.kill()
        self._hang_up("its scheduler is killed")

    def ask_to_stop(self) -> None:
        """Ask the scheduler to stop, as Ctrl-C does, or cancel it, as the program does that embeds it."""
        assert self.process is not None
        assert self.scheduler is not None
        assert self.serving is not None
        if self.world.chance.ways.random() < SHARE_OF_CANCELLATIONS:
            self.world.say("people", f"cancel {self.process.name}")
            self._is_cancelled = True
            self.process.context.run(self.serving.cancel)
        else:
            self.world.say("people", f"ask {self.process.name} to stop")
            self.process.context.run(self.scheduler.request_stop)

    def stop_process(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        process = self.process
        assert process is not None
        self.world.say("fault", f"{process.name} is stopped for {seconds:.1f} s")
        process.is_stopped = True

        def go_on() -> None:
            if process.is_stopped:
                self.world.say("world", f"{process.name} goes on")
                process.is_stopped = False
            self.world.loop.resume_stopped()

        self.world.later(seconds, go_on)

    def jump_clock(self, length: timedelta) -> None:
        """Make the wall clock jump, and correct it later."""
        self.world.say("fault", f"the clock of {self.name} jumps by {length}")
        self.clock.offset += length
        self.is_right_since = self.world.clock.monotonic()
        self.n_seconds_off += abs(length.total_seconds())

        def correct() -> None:
            self.clock.offset -= length
            self.is_right_since = self.world.clock.monotonic()

        self.world.later(self.world.chance.between(1, 30), correct)

    def ring(self, hints: Sequence[Hint]) -> None:
        """Ring the bell, as the command line does: a scheduler hears it if one serves."""
        process = self.process
        if process is None or process.is_dead or self.scheduler is None or not self.scheduler.started.is_set():
            return
        process.start(hand_out(hints, self.scheduler.channels), "bell listener")
