"""Explores one seed: schedulers, their keepers, faults, and the actions of people meanwhile."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from asynsched.clock import VirtualClock
from asynsched.protocol.messages import Launch
from asynsched.settings import LeaseSettings, Settings
from tests.faults.simulated.chance import Chance
from tests.faults.simulated.conditions import AS_THE_SEED_SAYS, Conditions
from tests.faults.simulated.dag_folder import DagFolder
from tests.faults.simulated.elsewhere import MACHINES, Elsewhere, is_remote, settings_elsewhere
from tests.faults.simulated.invariants import Invariants
from tests.faults.simulated.ledger import Ledger, Violation
from tests.faults.simulated.loop import NOBODY, Process, ShuffledLoop
from tests.faults.simulated.notifications import Notifications
from tests.faults.simulated.people import FILE_EDITS, People
from tests.faults.simulated.site import Site
from tests.faults.simulated.stand_ins import exchanged
from tests.faults.simulated.user_code import Plan, draw_plan
from tests.faults.simulated.worker_machines import WorkerMachine
from tests.faults.simulated.worlds import START, world

CALM_AFTER = 60.0
"""Virtual seconds after which nothing fails any more."""
MOST_ROUNDS = 10
"""Of ending the tasks of processes that are gone."""
LONGEST = 900.0
"""Virtual seconds after which everything must have ended."""
SHARE_OF_TWO = 0.4
"""Of the seeds, those in which two schedulers work on one database."""
LONGEST_STEPS = 30_000
"""Steps of the event loop after which something turns in circles: usual are some hundreds."""
STEPS_A_SECOND = 15
"""Steps of an idle machine in a virtual second, with room: while one waits for a wrong clock's time, they add up."""
SETTINGS = Settings(
    parallelism=5,
    shutdown_grace=2.0,  # below the time of some tries: a stop interrupts them
    lease=LeaseSettings(duration=30.0, renew_interval=10.0, grace=10.0, kill_time=5.0, outage=0.0, shared_outage=0.0),
)
SHARE_OF_PARSED = 0.25
"""Of the seeds, those in which DAG files are parsed, and people edit them."""
SHARE_OF_DEFAULT_LEASES = 0.25
"""Of the seeds, those in which tries outlast outages, as by default, and takeovers wait for that."""


class Exploration:
    """One seed.

    Args:
        settings: Theirs; None: as the seed says.

    Attributes:
        trace: The events, a line each: the same for the same seed.
    """

    def __init__(self, seed: int, conditions: Conditions = AS_THE_SEED_SAYS, settings: Settings | None = None) -> None:
        self.seed = seed
        self.conditions = conditions
        self.clock = VirtualClock(START)
        has_workers = settings is None and is_remote(seed, conditions)
        self.chance = Chance(seed, self.clock, conditions, is_remote=has_workers)
        self.climate = self.chance.climate
        self.world = world(seed, conditions.dag_id)
        self.loop = ShuffledLoop(self.clock, self.chance.random)
        n_sites = conditions.n_sites or (2 if Random(f"sites {seed}").random() < SHARE_OF_TWO else 1)
        homes = [_home(name) for name in "ab"[:n_sites]]
        self.settings = settings or _settings(seed, conditions)
        if has_workers:
            self.settings = settings_elsewhere(self.settings, homes, seed)
        self.ledger = Ledger()
        self.trace: list[str] = []
        self.is_over = False
        self._away_until = 0.0
        self._after_takeover: list[Callable[[], Any]] = []
        self._violation: BaseException | None = None
        self.world.restore()
        self.notifications = Notifications(self)
        self.elsewhere = Elsewhere(self, [_home(name) for name in MACHINES]) if has_workers else None
        self.sites = {home: Site(self, home) for home in homes}
        is_parsed = conditions.people == FILE_EDITS or (settings is None and _are_files_parsed(seed, conditions))
        self.folder = DagFolder(self) if is_parsed else None
        self.people = People(self)
        self.invariants = Invariants(self)
        self.loop.after_step = self._stepped
        self.loop.before_leap = self._guarded(self.invariants.check_at_rest)

    def run(self) -> None:
        """Live through it. Raises Violation when something happens that must not."""
        self.say("climate", str(self.climate))
        with exchanged(self), asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    # Questions of the simulated parts

    def say(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.clock.monotonic():10.4f} {who}: {what}")

    def later(self, seconds: float, call: Callable[..., Any], *args: Any, process: Process | None = None) -> None:
        """Call something after a while, as a part of the world or of a process."""
        context = NOBODY if process is None else process.context
        if seconds > 0:
            self.loop.call_later(seconds, self._guarded(call), *args, context=context)
        else:
            self.loop.call_soon(self._guarded(call), *args, context=context)

    def later_or_after_takeover(self, call: Callable[..., Any], *args: Any) -> None:
        """Call something within seconds, or when it does most harm: when a scheduler has just taken over runs."""
        if self.chance.random.random() < 0.5:
            self._after_takeover.append(partial(call, *args))
        else:
            self.later(self.chance.between(0, 3), call, *args)

    def site_of(self, home: Path) -> Site:
        """Return the machine of a scheduler's home."""
        return self.sites[home]

    def machine_of(self, home: Path) -> Site | WorkerMachine:
        """Return the machine of a home."""
        return self.sites[home] if self.elsewhere is None or home in self.sites else self.elsewhere.machines[home]

    @property
    def shares_database(self) -> bool:
        """Whether several schedulers may serve the database, as on PostgreSQL."""
        return len(self.sites) > 1

    def database_is_away(self) -> bool:
        """Whether the database is away for everybody; it may go away now."""
        if self.chance.happens("outage"):
            self._away_until = self.clock.monotonic() + self.chance.between(0.5, 15)
            self.say("fault", f"the database is away until {self._away_until:.1f}")
        return self.clock.monotonic() < self._away_until

    def committed(self, process: Process, query: str) -> None:
        """A call of the database was done."""
        if query == "take_over_runs":
            for call in self._after_takeover:
                self.later(0, call)
            self._after_takeover.clear()
        if query == "give_up_scheduler":
            self.ledger.given_up_at = self.clock.monotonic()
        self.invariants.check_commit(process, query)
        if self.elsewhere is not None:
            self.elsewhere.tickets.check_commit(query)

    def process_begins(self) -> None:
        """The process of a try or of a callback begins: its scheduler may be asked to stop in this moment."""
        self.people.process_begins()
        for site in self.sites.values():
            if site.is_serving and self.chance.happens("asked_to_stop"):
                site.ask_to_stop()

    def check_launch(self, launch: Launch) -> None:
        """A try of a task is about to begin, or to go on. Raises Violation when it must not, or not so."""
        run = self.invariants.stored.runs[launch.run.dag_id, launch.run.run_id]
        is_edited = (launch.run.dag_id, launch.run.run_id) in self.invariants.edits.starts
        if launch.code.version_hash != run.version_hash and not is_edited:
            raise Violation(f"a try of {run[:2]}, which is of {run.version_hash}, is of {launch.code.version_hash}")
        if not is_edited:
            self.ledger.check_need(launch, is_remote=self.elsewhere is not None)
        self.ledger.check_resumption(
            launch, self.clock.monotonic(), is_edited=is_edited, n_seconds_off=self._n_seconds_off
        )

    def pool_of(self, launch: Launch) -> tuple[str, int]:
        """Return the pool of a launched try, and its slots. Raises Violation if the try has another one's route."""
        task = self.world.task(launch.run.dag_id, launch.task_id)
        routes = task.routes or (task,)
        route = routes[min(launch.try_number, len(routes)) - 1]
        if launch.pool != route.pool:
            raise Violation(f"try {launch.try_number} of {launch.task_id} is in {launch.pool}, not in {route.pool}")
        return route.pool, route.pool_slots

    def plan_of(self, launch: Launch) -> Plan:
        """Return the plan of a try's user code."""
        dag = self.world.version(launch.run.dag_id, launch.code.version_hash)
        return draw_plan(self.chance.random, launch, dag)

    # Spontaneous events

    async def _main(self) -> None:
        tasks = [asyncio.ensure_future(site.keep_serving()) for site in self.sites.values()]
        if self.elsewhere is not None:
            tasks += self.elsewhere.start()
        tasks.append(asyncio.ensure_future(self.people.act()))
        for task in tasks:
            task.add_done_callback(self._note_failure)
        try:
            await self._watch()
        finally:
            for site in self.sites.values():
                if site.process is not None:
                    site.process.kill()
                if site.keeper is not None:
                    site.keeper.die()
            if self.elsewhere is not None:
                self.elsewhere.end()
            self.loop.resume_stopped()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_what_is_left()

    async def _end_what_is_left(self) -> None:
        """End every task with the loop: one that cleaned up when its process was killed may have begun others."""
        for _ in range(MOST_ROUNDS):
            left = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash)
            if not left:
                return
            await asyncio.sleep(0.001)  # one that has not begun would leave its coroutine behind
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _watch(self) -> None:
        """Wait until all has come to its end, then look whether it is the right one."""
        while True:
            await asyncio.sleep(1.0)
            self._stir()
            if self._violation is not None:
                raise self._violation
            self.chance.is_calm |= self.clock.monotonic() > CALM_AFTER
            if self.people.are_done and not self.invariants.what_is_left():
                break
            if self.clock.monotonic() > LONGEST + self._n_seconds_off:
                raise Violation(f"after {LONGEST:g} s not all has ended: {self.invariants.what_is_left()}")
        self.is_over = True
        self.invariants.check_end()
        self.say("world", "all has ended as it must")

    def _stir(self) -> None:
        if self.elsewhere is not None:
            self.elsewhere.stir()
        for site in self.sites.values():
            if not site.is_serving:
                continue
            if self.chance.happens("stopped"):
                site.stop_process(self.chance.between(0.1, 1.5 * site.takeover_seconds * len(self.sites)))
            elif self.chance.happens("asked_to_stop"):
                site.ask_to_stop()
            elif self.chance.happens("clock_jump"):
                site.jump_clock(timedelta(seconds=self.chance.random.choice([-3600, -5, 5, 3600])))

    def _stepped(self, process: Process | None) -> None:
        n_machines = len(self.sites) + (0 if self.elsewhere is None else len(self.elsewhere.machines))
        most = n_machines * (LONGEST_STEPS + STEPS_A_SECOND * self._n_seconds_off)
        if self.loop.n_steps > most and not self.is_over:
            self.fail(Violation(f"after {most:g} steps not all has ended: something turns in circles"))
            self.is_over = True
            for site in self.sites.values():
                site.process.kill()
        may_crash = process is not None and process.crash is not None and not process.is_dead
        if may_crash and self.chance.happens("crash_anywhere"):
            process.crash(f"after step {self.loop.n_steps}")

    @property
    def _n_seconds_off(self) -> float:
        return sum(site.n_seconds_off for site in self.sites.values())

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> None:
            try:
                call(*args)
            except Violation as exc:
                self.fail(exc)

        return guarded

    def fail(self, violation: BaseException) -> None:
        """Something has happened that must not: the exploration ends soon, with the first of these."""
        self._violation = self._violation or violation


def _are_files_parsed(seed: int, conditions: Conditions) -> bool:
    return Random(f"files {seed}").random() < SHARE_OF_PARSED and not (conditions.faults or conditions.people)


def _settings(seed: int, conditions: Conditions) -> Settings:
    has_default = Random(f"leases {seed}").random() < SHARE_OF_DEFAULT_LEASES and not conditions.faults
    return replace(SETTINGS, lease=LeaseSettings()) if has_default else SETTINGS


def explore(seed: int, conditions: Conditions = AS_THE_SEED_SAYS) -> tuple[BaseException | None, list[str]]:
    """Explore a seed. Returns the violation, or None if all was well, and the trace."""
    exploration = Exploration(seed, conditions)
    try:
        exploration.run()
    except Exception as exc:  # noqa: BLE001 - the seed has found it, of any type
        return exc, [*exploration.trace, f"violated: {exc}"]
    return None, exploration.trace


@cache
def _homes() -> Path:
    # In memory where that can be had: each start of a scheduler writes some small files.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="asynsched-simulated-", dir=memory if memory.is_dir() else None))
    Finalize(None, shutil.rmtree, (folder,), exitpriority=0)  # runs in the processes of a pool, too
    return folder


@cache
def _home(name: str) -> Path:
    return (_homes() / name).resolve()
