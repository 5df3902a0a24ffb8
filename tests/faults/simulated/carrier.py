"""A simulated engine: it carries tickets to workers, once, twice, late or never, and forgets its jobs at times."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.protocol.worker_messages import Ticket
from asynsched.worker.agent import Outcome
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.loop import PROCESS, Process

LATE_SECONDS = 40.0
"""Within which a late ticket, or the second copy of one, is delivered."""
PAUSE_SECONDS = 1.0
"""Between two attempts to find a worker."""
GIVE_UP_SECONDS = 20.0
"""After which an engine notices that it has lost a ticket, if it does not believe that its job runs."""


@dataclass(eq=False)
class Carried:
    """A job as the engine knows it.

    Attributes:
        is_dropped: It is cancelled, forgotten or done.
    """

    engine_id: str
    ticket: Ticket
    state: Literal["queued", "running"] = "queued"
    is_dropped: bool = False


class Carrier:
    """The engine of all schedulers and workers.

    Attributes:
        jobs: Those that it has not forgotten, by their ids.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._n_jobs = 0
        self.jobs: dict[str, Carried] = {}
        self.n_on_their_way = 0
        self._issued: dict[str, tuple[Process | None, str]] = {}

    def take(self, ticket: Ticket) -> str:
        """Take a ticket, and return the id of its job."""
        self._check_secret(ticket)
        self._n_jobs += 1
        job = Carried(f"job-{self._n_jobs}", ticket)
        self.jobs[job.engine_id] = job
        chance = self._world.chance
        if chance.happens("ticket_lost"):
            self._world.say("fault", f"the ticket of {ticket.name} is lost")
            if chance.ways.random() < 0.5:
                job.state = "running"  # it believes that, for ever
            else:
                self._world.later(chance.between(0, GIVE_UP_SECONDS), self._drop, job)
            return job.engine_id
        late = chance.between(0, LATE_SECONDS) if chance.happens("ticket_late") else 0.0
        self._send(job, chance.latency() + late)
        if chance.happens("ticket_twice"):
            self._world.say("fault", f"the ticket of {ticket.name} is delivered twice")
            copy = Carried(job.engine_id, ticket)
            self._send(copy, chance.ways.choice([0.0, 0.1, chance.between(0, LATE_SECONDS)]))
        return job.engine_id

    def cancel(self, engine_ids: Sequence[str]) -> None:
        """Drop jobs that no worker has."""
        for engine_id in engine_ids:
            if (job := self.jobs.get(engine_id)) is not None and job.state == "queued":
                self._drop(job)

    def look(self, engine_ids: Sequence[str]) -> dict[str, Sight]:
        """Return the states of jobs."""
        return {
            engine_id: Sight(self.jobs[engine_id].state)
            if engine_id in self.jobs
            else Sight("gone", "the engine does not know it")
            for engine_id in engine_ids
        }

    def restart(self) -> None:
        """Forget all jobs; those that workers have go on."""
        self._world.say("fault", f"the engine restarts, and forgets {len(self.jobs)} jobs")
        for job in list(self.jobs.values()):
            if job.state == "queued":
                job.is_dropped = True
        self.jobs.clear()

    def _check_secret(self, ticket: Ticket) -> None:
        """A scheduler that cannot know a ticket's secret submits it with another one, and voids earlier copies."""
        process = PROCESS.get()
        before, secret = self._issued.get(ticket.token, (process, ""))
        if before is not process and secret == ticket.secret:
            self._world.fail(Violation(f"another scheduler submits {ticket!r} with the same secret"))
        self._issued[ticket.token] = process, ticket.secret

    def _send(self, job: Carried, seconds: float) -> None:
        self.n_on_their_way += 1
        self._world.later(seconds, self._deliver, job)

    def _deliver(self, job: Carried) -> None:
        self.n_on_their_way -= 1
        if job.is_dropped:
            return
        ready = [machine for machine in self._world.elsewhere.machines.values() if machine.takes_tickets]
        if not ready:
            self._send(job, PAUSE_SECONDS)
            return
        machine = ready[int(self._world.chance.random.random() * len(ready))]
        job.state = "running"
        self._world.say("engine", f"{job.engine_id} goes to {machine.process.name}: {job.ticket.name}")
        self.n_on_their_way += 1
        machine.work(job.ticket).add_done_callback(partial(self._worked, job, machine.process))

    def _worked(self, job: Carried, process: Process, task: "asyncio.Task[Outcome]") -> None:
        """The worker of a job has acknowledged it, or is gone without that: then another one gets it."""
        self.n_on_their_way -= 1
        if task.cancelled() or process.is_dead:
            job.state = "queued"
            self._send(job, self._world.chance.between(0, 5))
            return
        if (error := task.exception()) is not None:
            self._world.fail(Violation(f"an agent failed with a ticket: {error!r}"))
        self._world.say("engine", f"{job.engine_id} is done: {task.result().text}")
        self._drop(job)

    def _drop(self, job: Carried) -> None:
        job.is_dropped = True
        if self.jobs.get(job.engine_id) is job:
            del self.jobs[job.engine_id]


class SimulatedEngine(Engine):
    """A scheduler's connection with the engine."""

    def __init__(self, context: ExecutorContext, world: Any) -> None:
        super().__init__(context)
        self._world = world
        self._carrier: Carrier = world.elsewhere.carrier

    @property
    def parallelism(self) -> int:
        return self.context.settings.parallelism

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Later]:
        await self._may_fail()
        answers = [
            Later("it is full")
            if self._world.chance.happens("engine_full")
            else Accepted(self._carrier.take(job.ticket))
            for job in jobs
        ]
        await self._may_fail()
        return answers

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        await self._may_fail()
        self._carrier.cancel(engine_ids)

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        await self._may_fail()
        return self._carrier.look(engine_ids)

    async def _may_fail(self) -> None:
        await asyncio.sleep(self._world.chance.latency())
        if self._world.chance.happens("engine_failure"):
            raise ConnectionError("the engine is away")


def remote_executor(world: Any) -> type[RemoteExecutor]:
    """Return the production executor with this world's engine."""
    return type("SimulatedRemoteExecutor", (RemoteExecutor,), {"engine_class": partial(SimulatedEngine, world=world)})
