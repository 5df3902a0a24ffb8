"""Everything beyond the machines of the schedulers, in the seeds whose tasks run there: an engine, and workers."""

import asyncio
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from asynsched.executors.local import LocalExecutor
from asynsched.executors.registry import SeveralExecutors
from asynsched.settings import Settings, WorkersSettings
from tests.faults.simulated.carrier import Carrier, remote_executor
from tests.faults.simulated.conditions import AS_THE_SEED_SAYS, Conditions
from tests.faults.simulated.tickets import Tickets
from tests.faults.simulated.worker_machines import WorkerMachine
from tests.faults.simulated.worker_network import Network, address_of

SHARE_OF_REMOTE = 0.25
"""Of the seeds, those in which tasks run on other machines."""
SHARE_OF_REMOTE_CALLBACKS = 0.5
"""Of those, the ones whose callbacks run there, too."""
FAR = "far"
MACHINES = ("w1", "w2")
WORKERS = WorkersSettings(lease=6.0, renew_interval=1.0, claim_timeout=10.0)
LONGEST_TROUBLE = 25.0
"""Virtual seconds that a worker is stopped or cut off at most: longer than all leases."""
WAYS = (frozenset({"to"}), frozenset({"from"}), frozenset({"to", "from"}))


def is_remote(seed: int, conditions: Conditions) -> bool:
    """Return whether the tasks of a seed run on other machines."""
    if conditions != AS_THE_SEED_SAYS:
        return conditions.is_remote
    return Random(f"elsewhere {seed}").random() < SHARE_OF_REMOTE


class Elsewhere:
    """The engine and the workers of one exploration."""

    def __init__(self, world: Any, homes: list[Path]) -> None:
        self._world = world
        settings = Settings(shutdown_grace=world.settings.shutdown_grace, lease=world.settings.lease)
        self.carrier = Carrier(world)
        self.tickets = Tickets(world)
        self.machines = {home: WorkerMachine(world, home, replace(settings, home=str(home))) for home in homes}

    @property
    def executors(self) -> partial[SeveralExecutors]:
        """Make the executors of a scheduler: tasks, and perhaps callbacks, run elsewhere, all else here."""
        return partial(SeveralExecutors, factories={FAR: remote_executor(self._world), "local": LocalExecutor})

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all workers."""
        return [
            asyncio.ensure_future(machine.keep_working(Network(self._world, machine)))
            for machine in self.machines.values()
        ]

    def stir(self) -> None:
        """Disturb somebody, perhaps."""
        chance = self._world.chance
        if chance.happens("engine_forgets"):
            self.carrier.restart()
        for machine in self.machines.values():
            if not machine.is_serving or machine.hardware.is_stopped:
                continue
            if chance.happens("worker_death"):
                machine.crash("by a fault")
            elif chance.happens("worker_power_cut"):
                machine.cut_power()
            elif chance.happens("worker_stopped"):
                machine.stop_agent(chance.between(0.1, LONGEST_TROUBLE))
            elif chance.happens("stands_still"):
                machine.stand_still(chance.between(0.1, LONGEST_TROUBLE))
            elif chance.happens("worker_asked_to_stop"):
                machine.ask_to_stop()
            elif not machine.cut_off and chance.happens("partition"):
                machine.cut_network(chance.ways.choice(WAYS), chance.between(0.5, LONGEST_TROUBLE))

    def end(self) -> None:
        """Kill everything."""
        for machine in self.machines.values():
            for process in (machine.process, machine.hardware):
                if process is not None:
                    process.kill()
            if machine.keeper is not None:
                machine.keeper.die()

    def what_is_left(self) -> str:
        """Return the first thing that is not done yet; empty if all is done."""
        for machine in self.machines.values():
            if not machine.is_serving:
                return f"no worker serves {machine.name}"
            # An end that an agent could not acknowledge before it died is known until the next try of its home.
            if machine.held or (machine.keeper is not None and machine.keeper.live):
                return f"the worker {machine.name} has tries"
            if left := sorted(path.name for path in (machine.home / "tickets").iterdir()):
                return f"the worker {machine.name} has the tickets {left}"
        if self.carrier.n_on_their_way:
            return f"the engine has {self.carrier.n_on_their_way} tickets on their way"
        if self.tickets.rows:
            return f"the tickets of {sorted(self.tickets.rows)} are left"
        has_heard = not any(executor._to_forget for executor in self._executors)
        return "" if has_heard else "a scheduler has not heard that its tickets are deleted"

    @property
    def put_off(self) -> set[str]:
        """The tries that wait because the engine has just failed."""
        now = self._world.clock.monotonic()
        return {token for executor in self._executors if executor._submit_at > now for token in executor._new}

    @property
    def _executors(self) -> list[Any]:
        services = [site.scheduler.services for site in self._world.sites.values() if site.scheduler is not None]
        return [one.executor._executors[FAR] for one in services]


def settings_elsewhere(settings: Settings, sites: list[Path], seed: int) -> Settings:
    """Return the settings of schedulers whose workers are elsewhere."""
    executor = FAR if Random(f"callbacks {seed}").random() < SHARE_OF_REMOTE_CALLBACKS else ""
    workers = replace(WORKERS, addresses=tuple(map(address_of, sites)))
    return replace(settings, workers=workers, callbacks=replace(settings.callbacks, executor=executor))
