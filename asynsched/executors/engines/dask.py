"""Dask as an engine: tickets are tasks of a Dask cluster, and a plugin makes each of its workers one of ours.

The scheduler registers the plugin with the cluster, so that workers which join later have it, too. A task waits in the
worker's event loop for the end of its try. Dask starts tasks again whose worker has died: the ticket's claim is refused
then. Tasks are `fire and forget`: Dask keeps them while no scheduler of ours is connected.

    job id: the key of the task, which begins with the names of the DAG and of the task, and when it was submitted
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec
import structlog
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.clock import new_token
from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote.engine import Accepted, Engine, Job, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.settings import DaskSettings

try:
    from distributed import Client, Future, fire_and_forget
except ImportError as exc:
    raise SettingsError(f"Dask needs the package {exc.name}: install asynsched[dask].") from exc

log = structlog.get_logger(__name__)

ON_WORKERS = "asynsched.worker.dask"
"""The module of what travels to workers: the plugin, and the function of each task. It lies above this one."""
OF_OTHERS = ("pod_override", "KubernetesExecutor")
"""What DAG files of Airflow say to other executors."""
DEFAULT_QUEUE = "default"
LONGEST_NAME = 200
CALL_SECONDS = 20.0
"""Longest that the scheduler waits for the cluster in one call."""
YOUNG_SECONDS = 15.0
"""Age of a job from which the cluster must know it: a task and a question about it take different ways to Dask."""


class Wishes(Struct, frozen=True, forbid_unknown_fields=True):
    """What a task may say in its `executor_config`, as `Client.submit` has it.

    Attributes:
        resources: What its worker must offer; by default one of the resource that the task's `queue` names.
        workers: Names or addresses of workers that may run it; empty: all.
        priority: Higher ones first; by default the task's priority_weight.
    """

    resources: dict[str, float] = {}
    workers: tuple[str, ...] = ()
    priority: int | None = None


class DaskEngine(Engine):
    """Submits tickets to a cluster, and asks its scheduler for them."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._settings = context.settings.dask
        if bool(self._settings.address) == bool(self._settings.cluster):
            raise SettingsError(
                "dask.address: Dask needs the address of its scheduler, such as tcp://HOST:8786, or dask.cluster, a"
                " function that makes a cluster"
            )
        self._travelling: Any = importlib.import_module(ON_WORKERS)
        self._terms: Any = self._travelling.terms_of(context.settings)
        self._cluster: Any = None
        self._client: Any = None
        self._wished: dict[str, str] = {}
        """What each job asks for, in words."""

    async def start(self) -> None:
        try:
            await self._connected()
        except (OSError, TimeoutError) as exc:  # as later: tries of other executors must not wait for it
            log.warning("dask.away", address=self._settings.address or self._settings.cluster, error=str(exc))

    async def _connected(self) -> Any:
        """Return a client of the cluster; a new one if the connection has ended for good."""
        if self._client is None or self._client.status in ("closed", "closing"):
            if self._cluster is None and self._settings.cluster:
                self._cluster = await run_sync(_made, self._settings)
            # Not the cluster itself, whose client would run in the cluster's own loop.
            address = getattr(self._cluster, "scheduler_address", self._cluster) or self._settings.address
            with anyio.fail_after(CALL_SECONDS):
                self._client = await Client(
                    address,
                    asynchronous=True,
                    name="asynsched",
                    set_as_default=False,
                    security=getattr(self._cluster, "security", None),
                )
                await self._client.register_plugin(self._travelling.TryPlugin(self._terms))
        return self._client

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected]:
        client, placed = await self._connected(), []
        for job in jobs:
            placed.append(self._submit(client, job))
            await checkpoint()  # Dask packs each task at once, which takes a fraction of a millisecond
        return placed

    def _submit(self, client: Any, job: Job) -> Accepted | Rejected:
        own = {name: value for name, value in job.executor_config.items() if name not in OF_OTHERS}
        try:
            wishes = msgspec.convert(own, Wishes)
        except msgspec.ValidationError as exc:
            return Rejected(f"executor_config of Dask has resources, workers and priority: {exc}")
        of_queue = {} if job.queue == DEFAULT_QUEUE else {job.queue: 1.0}
        resources = wishes.resources or of_queue
        ticket, now = job.ticket, int(self.context.clock.now().timestamp())
        key = f"{ticket.dag_id}.{ticket.task_id}"[:LONGEST_NAME] + f"-{new_token()} {now}"
        future = client.submit(
            self._travelling.work_on, ticket, self._terms, key=key, pure=False, retries=0,
            resources=resources or None, workers=list(wishes.workers) or None,
            priority=job.priority_weight if wishes.priority is None else wishes.priority,
        )  # fmt: skip
        fire_and_forget(future)
        self._wished[key] = ", ".join([*(f"{name}={n:g}" for name, n in resources.items()), *wishes.workers])
        return Accepted(key)

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        client = await self._connected()
        with anyio.fail_after(CALL_SECONDS):
            await client.cancel([Future(one, client=client) for one in engine_ids], force=True)

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        self._wished = {one: self._wished[one] for one in engine_ids if one in self._wished}
        before = self.context.clock.now().timestamp() - YOUNG_SECONDS
        old = [one for one in engine_ids if int(one.rpartition(" ")[2]) <= before]
        if not old:
            return {}
        client = await self._connected()
        with anyio.fail_after(CALL_SECONDS):
            states = await client.scheduler.get_task_status(keys=old)
            workers = await client.scheduler.processing(workers=None)
        holders = {key: address for address, keys in workers.items() for key in keys}
        return {one: self._sight(one, states.get(one), holders, len(workers)) for one in old}

    def _sight(self, job: str, state: str | None, holders: Mapping[str, str], n_workers: int) -> Sight:
        match state:
            case "waiting" | "queued" | "released" | "no-worker" if not n_workers:
                return Sight("queued", "no Dask worker is connected")
            case "processing":
                return Sight("queued", f"the Dask worker {holders.get(job, 'of its choice')} has it")
            case "no-worker":
                wished = self._wished.get(job) or "what it asks for"
                return Sight("queued", f"none of {n_workers} Dask workers offers {wished}")
            case "waiting" | "queued" | "released":
                return Sight("queued", f"waits for a free thread of {n_workers} Dask workers")
            case "erred":
                return Sight("gone", "its Dask worker could not run it: see the log of that worker")
            case _:
                return Sight("gone", "the Dask scheduler does not have it any more")

    async def close(self) -> None:
        if self._client is not None:
            with anyio.move_on_after(CALL_SECONDS):
                await self._client.close()
        if hasattr(self._cluster, "close"):  # otherwise it is an address
            await run_sync(self._cluster.close)


def _made(settings: DaskSettings) -> Any:
    """Call the function that makes the cluster. Raises SettingsError."""
    module_name, _, name = settings.cluster.partition(":")
    try:
        make: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SettingsError(f"dask.cluster: {settings.cluster!r} cannot be imported: {exc}") from exc
    return make()


class DaskExecutor(RemoteExecutor):
    """Runs tries on the workers of a Dask cluster."""

    engine_class = DaskEngine
