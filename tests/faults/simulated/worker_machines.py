"""Simulated machines of workers: the production agent, one after another, and a simulated keeper that outlives each."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import anyio
import httpx

from asynsched.errors import ExecutorError, HomeInUse
from asynsched.home import prepare_home
from asynsched.protocol.messages import Launch
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import Settings
from asynsched.worker import agent as agents
from asynsched.worker.agent import Agent, Outcome
from asynsched.worker.schedulers import Schedulers
from tests.faults.simulated.keeper import SimulatedKeeper
from tests.faults.simulated.ledger import Execution, Violation
from tests.faults.simulated.loop import Process
from tests.faults.simulated.machine import SHARE_OF_CANCELLATIONS, Machine

QUIET_SECONDS = 3.0
"""After which a worker that nothing has disturbed has renewed its leases, and has done what it was told."""


class WorkerKeeper(SimulatedKeeper):
    """The keeper of a worker's home: it stands still while its machine does."""

    def __init__(self, machine: "WorkerMachine") -> None:
        self.process = machine.hardware
        super().__init__(machine)

    def begin(self, launch: Launch) -> Execution:
        """User code of a try begins, which its worker has claimed. Raises Violation when it must not."""
        tickets = self._world.elsewhere.tickets
        if tickets.may_be_adrift(launch.token, self._machine):
            # The machine believes in a lease that is over by all other clocks.
            return self._world.ledger.begin_adrift(launch, self._world.clock.monotonic())
        tickets.check_begin(launch, self._machine)
        return super().begin(launch)

    def go_on(self) -> None:
        """Look at the lease again: the timer that the machine has set came too early by its clocks."""
        self.later(max(0.0, self._closes_at - self.clock.boottime()), self._check_fence)


class WorkerMachine(Machine):
    """A machine with one worker's home.

    Attributes:
        hardware: The process of its keeper and its tries, which stops when the machine does.
        agent: The agent of now; None while none serves.
        lives: The names of all its lives, as its claims say them, the latest last.
        stood_still_at: When the machine has last stood still, in the world's seconds.
        troubled_at: When it was last disturbed, or could not reach a scheduler.
        cut_off: The ways that are cut: `to` the schedulers, `from` them.
    """

    keeper: WorkerKeeper | None
    make_keeper = WorkerKeeper
    expected_ends = (ExecutorError, HomeInUse, asyncio.CancelledError)

    def __init__(self, world: Any, home: Path, settings: Settings) -> None:
        super().__init__(world, home, settings)
        shutil.rmtree(home, ignore_errors=True)
        self.hardware = Process(f"{home.name} machine")
        self.agent: Agent | None = None
        self.lives: list[str] = []
        self.stood_still_at = self.troubled_at = float("-inf")
        self.cut_off: frozenset[str] = frozenset()
        self._serving: asyncio.Task[None] | None = None
        self._stopping: anyio.Event | None = None

    @property
    def takes_tickets(self) -> bool:
        """Whether there is an agent that was not asked to stop: engines send nothing to a worker that stops."""
        return self.agent is not None and self._stopping is not None and not self._stopping.is_set()

    @property
    def is_serving(self) -> bool:
        """Whether an agent works here, and nothing holds it up."""
        process = self.process
        return self.agent is not None and process is not None and not process.is_stopped and not process.is_dead

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has disturbed this worker for a while."""
        return self.is_serving and self.world.clock.monotonic() - self.troubled_at > QUIET_SECONDS

    @property
    def life(self) -> str:
        """The name of the present life; empty: none has begun since the machine started."""
        return self.lives[-1] if self.lives else ""

    @property
    def held(self) -> set[str]:
        """The tries that the agent knows."""
        return set() if self.agent is None else {*self.agent._tries, *(proof.token for proof in self.agent._claiming)}

    def note_trouble(self, seconds: float = 0.0) -> None:
        """Remember that something disturbs this worker, for so long."""
        self.troubled_at = max(self.troubled_at, self.world.clock.monotonic() + seconds)

    # The agents, one after another

    async def keep_working(self, transport: httpx.AsyncBaseTransport) -> None:
        """Start an agent, and another one when that is gone."""
        while True:
            await self._work(transport)
            if self.world.is_over:
                return
            await asyncio.sleep(self.world.chance.between(0.1, 3))

    async def _work(self, transport: httpx.AsyncBaseTransport) -> None:
        self.n_starts += 1
        process = self.process = Process(f"{self.name} {self.n_starts}", self.crash)
        agent = process.context.run(lambda: Agent(self.settings, self.name, self.clock, _schedulers(self, transport)))
        self.world.say(process.name, "starts")
        self._serving = task = process.start(self._serve(agent), "agent")
        await asyncio.wait({task})
        self.note_trouble()
        self.agent = None
        self._hang_up("its agent is gone")
        error = None if task.cancelled() else task.exception()
        self.world.say(process.name, "is gone" if error is None else f"is gone: {error!r}")
        if error is not None and not process.is_dead and not self._is_expected(error):
            raise Violation(f"an agent failed by a bug: {error!r}") from error
        process.kill()

    async def _serve(self, agent: Agent) -> None:
        self._stopping = anyio.Event()
        prepare_home(self.home)
        self.lives.append(agents.life_of(self.home, self.clock))
        async with agent.serving():
            self.agent = agent
            await self._stopping.wait()

    def work(self, ticket: Ticket) -> "asyncio.Task[Outcome]":
        """Deliver a ticket to the agent; the result says what became of it."""
        assert self.process is not None
        assert self.agent is not None
        return self.process.start(self.agent.work(ticket), "ticket")

    # Faults

    def crash(self, when: str) -> None:
        assert self.process is not None
        self.world.say("fault", f"{self.process.name} is killed {when}")
        self.note_trouble()
        self.agent = None
        self.process.kill()
        self._hang_up("its agent is killed")

    def ask_to_stop(self) -> None:
        """Ask the agent to stop, as its engine does, or cancel it."""
        assert self.process is not None
        assert self._serving is not None
        assert self._stopping is not None
        self.note_trouble()
        if self.world.chance.ways.random() < SHARE_OF_CANCELLATIONS:
            self.world.say("people", f"cancel {self.process.name}")
            self.process.context.run(self._serving.cancel)
        else:
            self.world.say("people", f"ask {self.process.name} to stop")
            self.process.context.run(self._stopping.set)

    def stop_agent(self, seconds: float) -> None:
        """SIGSTOP to the agent, and SIGCONT later."""
        assert self.process is not None
        self.world.say("fault", f"{self.process.name} is stopped for {seconds:.1f} s")
        self._stop([self.process], seconds)

    def stand_still(self, seconds: float) -> None:
        """Pause the machine with its clocks, and let it go on later."""
        assert self.process is not None
        self.world.say("fault", f"the machine {self.name} stands still for {seconds:.1f} s")
        self.stood_still_at = self.world.clock.monotonic() + seconds
        self._stop([self.process, self.hardware], seconds, lag=seconds)

    def _stop(self, processes: list[Process], seconds: float, lag: float = 0.0) -> None:
        self.note_trouble()
        for process in processes:
            process.is_stopped = True

        def go_on() -> None:
            self.world.say("world", f"{self.name} goes on")
            self.note_trouble()
            self.clock.lag += lag
            for process in processes:
                process.is_stopped = False
            if lag and self.keeper is not None:
                self.keeper.go_on()
            self.world.loop.resume_stopped()

        self.world.later(seconds, go_on)

    def cut_network(self, ways: frozenset[str], seconds: float) -> None:
        """Lose what the worker and the schedulers send each other, one way or both."""
        self.world.say("fault", f"{self.name} is cut off for {seconds:.1f} s: {' '.join(sorted(ways))}")
        self.cut_off = ways

        def mend() -> None:
            self.note_trouble()
            self.cut_off = frozenset()

        self.world.later(seconds, mend)


def _schedulers(machine: WorkerMachine, transport: httpx.AsyncBaseTransport) -> Schedulers:
    return Schedulers(machine.clock, transport)
