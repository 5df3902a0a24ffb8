"""Dask as an engine: tickets are tasks of a Dask cluster, and a plugin makes each of its workers one of ours.

The scheduler registers the plugin with the cluster, so that workers which join later have it, too. A task waits in the
worker's event loop for the end of its try. Dask starts tasks again whose worker has died: the ticket's claim is refused
then. Tasks are `fire and forget`: Dask keeps them while no scheduler of ours is connected.

    job id: the key of the task, which begins with the names of the DAG and of the task, and when it was submitted
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Meta, Struct

from asynsched.clock import new_token
from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight, reason_of
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.loggers import get_logger

try:
    from distributed import Future, fire_and_forget

    from asynsched.executors.engines.dask_connection import DaskConnection
except ImportError as exc:
    raise SettingsError(f"Dask needs the package {exc.name}: install asynsched[dask].") from exc

log = get_logger(__name__)

ON_WORKERS = "asynsched.worker.dask"
"""The module of what travels to workers: the plugin, and the function of each task. It lies above this one."""
OF_OTHERS = ("pod_override", "KubernetesExecutor")
"""What DAG files of Airflow say to other executors."""
DEFAULT_QUEUE = "default"
LONGEST_NAME = 200
MOST_PRIORITY = 2**31 - 1
"""A priority of more than 64 bits makes a Dask scheduler lose its workers."""
MOST_FAILED = 1000
"""Most failed jobs whose futures are kept."""
YOUNG_SECONDS = 15.0
"""Age of a job from which the cluster must know it: a task and a question about it take different ways to Dask."""


class ExecutorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a task may say in its `executor_config`, as `Client.submit` has it.

    Attributes:
        resources: What its worker must offer; by default one of the resource that the task's `queue` names.
        workers: Names or addresses of workers that may run it; empty: all.
        priority: Higher ones first; by default the task's priority_weight.
    """

    resources: dict[str, Annotated[float, Meta(gt=0, lt=1e18)]] = {}
    workers: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None


class DaskEngine(Engine):
    """Submits tickets to a cluster, and asks its scheduler for them."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._travelling: Any = importlib.import_module(ON_WORKERS)
        self._terms: Any = self._travelling.terms_of(context.settings)
        self._connection = DaskConnection(
            context.settings.dask, context.clock, lambda: self._travelling.TryPlugin(self._terms)
        )
        self._submitted: dict[str, tuple[Any, str]] = {}
        """The future of each job, and what it asks for, in words."""

    async def start(self) -> None:
        try:
            await self._connection.client()
        except (OSError, TimeoutError) as exc:  # as later: tries of other executors must not wait for it
            own = self.context.settings.dask
            log.warning("dask.away", address=own.address or own.cluster, error=reason_of(exc))

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        try:
            client = await self._connection.client()
        except Exception as exc:  # noqa: BLE001 - a function that makes a cluster may raise anything
            return [Later(reason_of(exc))] * len(jobs)
        placed = []
        for job in jobs:
            placed.append(self._placed(client, job))
            await checkpoint()  # Dask packs each task at once, which takes a fraction of a millisecond
        return placed

    def _placed(self, client: Any, job: Job) -> Accepted | Rejected | Later:
        try:
            return self._submit(client, job)
        except Exception as exc:  # noqa: BLE001 - whatever Dask says of this job, the others go on
            said = reason_of(exc)
            return Rejected(f"Dask does not take it: {said}") if client.status == "running" else Later(said)

    def _submit(self, client: Any, job: Job) -> Accepted | Rejected:
        own = {name: value for name, value in job.executor_config.items() if name not in OF_OTHERS}
        try:
            config = msgspec.convert(own, ExecutorConfig)
        except msgspec.ValidationError as exc:
            return Rejected(f"executor_config of Dask has resources, workers and priority: {exc}")
        of_queue = {} if job.queue == DEFAULT_QUEUE else {job.queue: 1.0}
        resources = config.resources or of_queue
        ticket, now = job.ticket, int(self.context.clock.now().timestamp())
        priority = max(-MOST_PRIORITY, min(job.priority_weight, MOST_PRIORITY))
        key = ticket.kind[:LONGEST_NAME] + f"-{new_token()} {now}"
        future = client.submit(
            self._travelling.work_on, ticket, self._terms, key=key, pure=False, retries=0,
            resources=resources or None, workers=list(config.workers) or None,
            priority=priority if config.priority is None else config.priority,
        )  # fmt: skip
        fire_and_forget(future)
        asked_for = ", ".join([*(f"{name}={n:g}" for name, n in resources.items()), *config.workers])
        self._submitted[key] = future, asked_for
        return Accepted(key)

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        client = await self._connection.client()
        futures = [Future(one, client=client) for one in engine_ids]
        await self._connection.call(lambda: client.cancel(futures, force=True))

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        self._forget_ended(engine_ids)
        before = self.context.clock.now().timestamp() - YOUNG_SECONDS
        old = [one for one in engine_ids if int(one.rpartition(" ")[2]) <= before]
        if not old:
            return {}
        client = await self._connection.client()
        states = await self._connection.call(lambda: client.scheduler.get_task_status(keys=old))
        workers = await self._connection.call(lambda: client.scheduler.processing(workers=None))
        pending = {one for one, (future, _) in self._submitted.items() if future.status == "pending"}
        if any(states.get(one) is None for one in pending.intersection(old)):
            await self._connection.drop(client)  # what is submitted has a connection of its own, which is lost
            raise ConnectionError("the Dask scheduler has not got what it was given")
        holders = {key: address for address, keys in workers.items() for key in keys}
        sights = {one: self._sight(one, states.get(one), holders, len(workers)) for one in old}
        for one, (future, _) in self._submitted.items():
            if one in sights and future.status == "error" and states.get(one) != "erred":
                # Of the Dask scheduler, such as for a worker's address that does not exist: it keeps such tasks.
                sights[one] = Sight("gone", f"Dask does not take it: {reason_of(await future.exception())}")
        return sights

    def _forget_ended(self, asked: Sequence[str]) -> None:
        """Drop the futures of ended jobs that nobody asks for, except some failed ones: a later look may need those."""
        ended = [one for one, (future, _) in self._submitted.items() if future.status != "pending"]
        failed = [one for one in ended if self._submitted[one][0].status == "error"]
        for one in set(ended).difference(asked, failed[-MOST_FAILED:]):
            del self._submitted[one]

    def _sight(self, job: str, state: str | None, holders: Mapping[str, str], n_workers: int) -> Sight:
        match state:
            case "waiting" | "queued" | "released" | "no-worker" if not n_workers:
                return Sight("queued", "no Dask worker is connected")
            case "processing":
                return Sight("queued", f"the Dask worker {holders.get(job, 'of its choice')} has it")
            case "no-worker":
                _, asked_for = self._submitted.get(job, (None, ""))
                return Sight("queued", f"none of {n_workers} Dask workers offers {asked_for or 'what it asks for'}")
            case "waiting" | "queued" | "released":
                return Sight("queued", f"waits for a free thread of {n_workers} Dask workers")
            case "erred":
                return Sight("gone", "its Dask worker could not run it: see the log of that worker")
            case _:
                return Sight("gone", "the Dask scheduler does not have it any more")

    async def close(self) -> None:
        await self._connection.close()


class DaskExecutor(RemoteExecutor):
    """Runs tries on the workers of a Dask cluster."""

    engine_class = DaskEngine
