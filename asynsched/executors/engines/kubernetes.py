"""Kubernetes as an engine: a pod for each ticket, which it reads from a secret of its own.

Every scheduler of the database watches the pods of all, and deletes those that have ended. A pod never restarts: a try
whose pod is gone is given up, and its next one is a new pod.

    job id: the name of the pod, which is also that of its secret
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from asynsched.clock import new_token
from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines.pods import (
    OF_SCHEDULERS,
    Json,
    PodError,
    checked_template,
    label_of,
    name_of,
    pod_of,
    secret_of,
)
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.settings import KubernetesSettings

try:
    import yaml
    from aiohttp import ClientError
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import ApiClient, ApiException, Configuration, CoreV1Api

    from asynsched.executors.engines.pod_watch import CALL_SECONDS, PodWatch, decoded, message_of
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
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        settings = self._settings
        self._template = await run_sync(_template, settings)
        self._api = CoreV1Api(ApiClient(await _configuration(settings)))
        selector = f"{OF_SCHEDULERS}={label_of(self.context.settings.workers.addresses)}"
        self._pods = PodWatch(
            self._api, settings.namespace, selector, self.context.clock, self._drop, self._drop_secret
        )  # fmt: skip
        self._watching = asyncio.create_task(self._pods.serve(), name="pods")

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        answers: dict[str, Accepted | Rejected | Later] = {}

        async def place(job: Job) -> None:
            async with self._requests:
                answers[job.ticket.token] = await self._place(job)

        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(place, job)
        return [answers[job.ticket.token] for job in jobs]

    async def _place(self, job: Job) -> Accepted | Rejected | Later:
        """Make the secret and the pod of a job."""
        name = name_of(job, new_token()[:12])
        try:
            pod = pod_of(job, self._template, name)
        except PodError as exc:
            return Rejected(str(exc))
        try:
            await self._call(self._api.create_namespaced_secret, body=secret_of(job, name))
            await self._call(self._api.create_namespaced_pod, body=pod)
        except ApiException as exc:
            said = message_of(exc)
            if exc.status is None or exc.status >= 500:
                # There may be a pod. It may keep its secret: only one of this and the next pod can claim the try.
                return Later(f"Kubernetes has an error: {said}")
            await self._drop_secret(name)
            answer = Rejected if is_final(exc.status, said) else Later
            return answer(f"Kubernetes does not take its pod: {said}")
        except (ClientError, TimeoutError, OSError) as exc:
            return Later(f"Kubernetes does not answer: {exc or type(exc).__name__}")
        self._pods.expect(name)
        return Accepted(name)

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        async with anyio.create_task_group() as tasks:
            for name in engine_ids:
                tasks.start_soon(self._delete, self._api.delete_namespaced_pod, name)

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        return self._pods.sights(engine_ids)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            await self._api.api_client.close()

    async def _drop(self, pod: Json) -> None:
        """Delete a pod that has ended."""
        if not (self._settings.keep_failed and pod["status"]["phase"] == "Failed"):
            await self._delete(self._api.delete_namespaced_pod, pod["metadata"]["name"])

    async def _drop_secret(self, name: str) -> None:
        """Delete the secret of a pod that is gone."""
        with suppress(ApiException, ClientError, TimeoutError, OSError):  # a ticket that is void
            await self._delete(self._api.delete_namespaced_secret, name)

    async def _delete(self, request: Callable[..., Awaitable[Any]], name: str) -> None:
        try:
            await self._call(request, name, propagation_policy="Background")
        except ApiException as exc:
            if exc.status != 404:
                raise

    async def _call(self, request: Callable[..., Awaitable[Any]], *arguments: str, **more: Any) -> Json:
        """Return the answer to a request as JSON: newer servers answer with fields that the client cannot decode."""
        answer = await request(
            *arguments,
            namespace=self._settings.namespace,
            _request_timeout=CALL_SECONDS,
            _preload_content=False,
            **more,
        )
        return decoded(answer.status, await answer.read())


def is_final(status: int | None, message: str) -> bool:
    """Whether the API will never accept a pod: it is invalid, or a webhook or a policy denies it."""
    is_denied = status == 403 and "denied" in message and "exceeded quota" not in message
    return is_denied or status in (400, 404, 413, 422)


def _template(settings: KubernetesSettings) -> Json:
    """Return the template of pods. Raises SettingsError."""
    try:
        file = settings.pod_template
        return checked_template(yaml.safe_load(Path(file).read_text()) if file else {}, settings.image)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, PodError) as exc:
        option = f"kubernetes.pod_template: {settings.pod_template}" if settings.pod_template else "kubernetes.image"
        raise SettingsError(f"{option}: {exc}") from exc


async def _configuration(settings: KubernetesSettings) -> Configuration:
    """Return how to reach the API. Raises SettingsError."""
    configuration, file = Configuration(), settings.kubeconfig
    try:
        if file or settings.context:
            await config.load_kube_config(file or None, settings.context or None, configuration)
        else:
            config.load_incluster_config(configuration)
    except (config.ConfigException, OSError) as exc:
        advice = "" if file else "; outside of a cluster, name a file, as kubectl has"
        raise SettingsError(f"kubernetes.kubeconfig: {file or 'it is not set'}: {exc}{advice}") from exc
    return configuration


class KubernetesExecutor(RemoteExecutor):
    """Runs tries in pods."""

    engine_class = KubernetesEngine
