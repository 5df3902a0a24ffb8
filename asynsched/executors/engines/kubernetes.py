"""Kubernetes as an engine: a pod for each ticket, which it reads from a secret of its own.

Every scheduler of the database watches the pods of all, and deletes those that have ended. A pod never restarts: a try
whose pod is gone is given up, and its next one is a new pod. A pod has the name of its try: a submit that is repeated,
because the API has not answered, finds the pod that there is.

    job id: the name of the pod; of a try that a warm pod has taken, with a suffix: such a pod has had others
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from msgspec.structs import replace

from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines.circuit_breaker import CircuitBreaker
from asynsched.executors.engines.pods import (
    OF_SCHEDULERS,
    Json,
    PodError,
    checked_template,
    former_secret_of,
    in_warm_pod,
    is_ours,
    label_of,
    name_of,
    pod_in,
    pod_of,
    secret_of,
    shape_in,
    ticket_secret,
)
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight, reason_of
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.settings import KubernetesSettings

try:
    import yaml
    from kubernetes_asyncio.client import ApiClient, ApiException, CoreV1Api

    from asynsched.executors.engines.api_answers import AWAY, decoded, refusal_of
    from asynsched.executors.engines.kubernetes_access import Access
    from asynsched.executors.engines.pod_deletions import Deletion, Deletions
    from asynsched.executors.engines.pod_watch import CALL_SECONDS, PodWatch
except ImportError as exc:
    raise SettingsError(f"Kubernetes needs the package {exc.name}: install asynsched[kubernetes].") from exc

AT_ONCE = 10
"""Requests at the same time."""


class KubernetesEngine(Engine):
    """Creates pods, watches them, and deletes them."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._settings = context.settings.kubernetes
        self._requests = anyio.CapacityLimiter(AT_ONCE)
        self._template: Json = {}
        self._api: CoreV1Api
        self._pods: PodWatch
        self._breaker = CircuitBreaker(context.clock, "Kubernetes", CALL_SECONDS)
        self._unsure: set[str] = set()
        """Pods that may have been made: their tickets go to no warm pod."""
        self._deletions = Deletions(context.clock, self._delete)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        settings = self._settings
        self._template = await run_sync(_template, settings)
        access = Access(settings, self.context.home, self.context.clock)
        await access.load()
        self._api = CoreV1Api(ApiClient(access.configuration))
        selector = f"{OF_SCHEDULERS}={label_of(self.context.settings.workers.addresses)}"
        self._pods = PodWatch(
            self._api, settings.namespace, selector, self.context.clock,
            read=self._read, ended=self._drop, vanished=self._drop_secret,
        )  # fmt: skip
        served = (access, self._pods, self._deletions)
        self._tasks = [asyncio.create_task(one.serve(), name=f"kubernetes: {type(one).__name__}") for one in served]

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        answers: dict[str, Accepted | Rejected | Later] = {}

        async def place(job: Job) -> None:
            async with self._requests:
                try:
                    answers[job.ticket.token] = await self._place(job)
                except RecursionError:
                    answers[job.ticket.token] = Rejected("pod_override: it is nested too deeply")

        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(place, job)
        return [answers[job.ticket.token] for job in jobs]

    async def _place(self, job: Job) -> Accepted | Rejected | Later:
        """Hand a job to a warm pod, or make its secret and pod."""
        await self._drop_secret(former_secret_of(job))  # a scheduler that was killed may have made it, and no pod
        try:
            pod = pod_of(job, self._template)
        except PodError as exc:
            return Rejected(str(exc))
        name, warm, shape, ticket = pod["metadata"]["name"], self.context.warm, shape_in(pod), job.ticket
        if warm is not None and self._settings.keep_warm and shape and name not in self._unsure:
            ticket = replace(ticket, stays_warm=True)
            if taker := await warm.hand_over(ticket, name_of, lambda other: self._pods.shape(other) == shape):
                return Accepted(in_warm_pod(taker, ticket))
        secret = secret_of(replace(job, ticket=ticket))
        try:
            await self._create_secret(secret)
            await self._call(self._api.create_namespaced_pod, body=pod)
        except ApiException as exc:
            return await self._settled(pod, refusal_of(exc))
        except AWAY as exc:
            return await self._settled(pod, Later(reason_of(exc)))
        self._unsure.discard(name)
        return Accepted(name)

    async def _settled(self, pod: Json, answer: Rejected | Later) -> Accepted | Rejected | Later:
        """Return the answer for a job whose pod was not made now, but perhaps before. Without one, drop its secret."""
        name, secret = pod["metadata"]["name"], ticket_secret(pod)
        try:
            found = await self._read(name)
        except AWAY:
            self._unsure.add(name)
            return answer  # if there is a pod, it needs its secret to start; the next pass, or the watch, finds both
        self._unsure.discard(name)
        if found is not None and not is_ours(found):
            answer = Rejected(f"Kubernetes has a pod {name} already, which asynsched has not made")
        elif found is not None and not found["metadata"].get("deletionTimestamp"):
            if ticket_secret(found) == secret:
                return Accepted(name)
            await self._drop_pod(name, found["metadata"]["uid"])
            await self._drop_secret(ticket_secret(found))
            answer = Later("the pod of its former ticket is being deleted")
        await self._drop_secret(secret)
        return answer

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        async def drop(name: str) -> None:
            async with self._requests:
                await self._drop_pod(name)

        async with anyio.create_task_group() as tasks:
            for name in engine_ids:
                if pod_in(name) == name:  # a warm pod may have another try by now; the ticket of this one is void
                    tasks.start_soon(drop, name)

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        sights = await self._pods.sights(dict.fromkeys(map(pod_in, engine_ids)))
        return {one: sights[pod_in(one)] for one in engine_ids if pod_in(one) in sights}

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await self._api.api_client.close()

    async def _drop(self, pod: Json) -> None:
        """Delete a pod that has ended."""
        if not (self._settings.keep_failed and pod["status"]["phase"] == "Failed"):
            await self._drop_pod(pod["metadata"]["name"], pod["metadata"]["uid"])

    async def _drop_pod(self, name: str, uid: str = "") -> None:
        await self._deletions.delete(Deletion(self._api.delete_namespaced_pod, name, uid))

    async def _drop_secret(self, name: str) -> None:
        """Delete the secret of a pod that is gone."""
        if name:
            await self._deletions.delete(Deletion(self._api.delete_namespaced_secret, name))

    async def _read(self, name: str) -> Json | None:
        """Return the pod of a name; None: there is none."""
        try:
            return await self._call(self._api.read_namespaced_pod, name)
        except ApiException as exc:
            if exc.status != 404:
                raise
            return None

    async def _create_secret(self, secret: Json) -> None:
        """Make a secret, unless it was made before: its name says what it holds."""
        await self._deletions.spare(Deletion(self._api.delete_namespaced_secret, secret["metadata"]["name"]))
        try:
            await self._call(self._api.create_namespaced_secret, body=secret)
        except ApiException as exc:
            if exc.status != 409 or "AlreadyExists" not in (exc.body or ""):
                raise

    async def _delete(self, one: Deletion) -> None:
        """Delete an object if it exists."""
        only = {"preconditions": {"uid": one.uid}} if one.uid else {}
        try:
            await self._call(one.request, one.name, body={"propagationPolicy": "Background", **only})
        except ApiException as exc:
            if exc.status != 404 and not (one.uid and exc.status == 409):
                raise

    async def _call(self, request: Callable[..., Awaitable[Any]], *arguments: str, **more: Any) -> Json:
        """Return the answer to a request as JSON: newer servers answer with fields that the client cannot decode."""

        async def answered() -> Json:
            answer = await request(
                *arguments, namespace=self._settings.namespace, _request_timeout=CALL_SECONDS, _preload_content=False,
                **more,
            )  # fmt: skip
            return decoded(answer.status, await answer.read())

        return await self._breaker.call(answered)


def _template(settings: KubernetesSettings) -> Json:
    """Return the template of pods. Raises SettingsError."""
    try:
        file = settings.pod_template
        return checked_template(yaml.safe_load(Path(file).read_text()) if file else {}, settings.image)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, PodError) as exc:
        option = f"kubernetes.pod_template: {settings.pod_template}" if settings.pod_template else "kubernetes.image"
        raise SettingsError(f"{option}: {exc}") from exc


class KubernetesExecutor(RemoteExecutor):
    """Runs tries in pods."""

    engine_class = KubernetesEngine
