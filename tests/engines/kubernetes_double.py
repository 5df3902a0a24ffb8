"""A double of a Kubernetes cluster: its API for pods and secrets, a scheduler, and nodes that run pods as processes.

What it does as the real one: versions of resources, lists in pages, watches with bookmarks, 410 for versions that it
has forgotten, quotas, webhooks, validation, graceful deletion, eviction, garbage collection of secrets by their owners,
unschedulable pods, images that cannot be pulled, logs. `test_kubernetes_double.py` drives it with kubectl and with the
official client.
"""

import asyncio
import base64
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

Json = dict[str, Any]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
IMAGE = "asynsched"
"""The one image that nodes can pull."""
BOOKMARK_SECONDS = 0.2
KINDS = {"pods": "Pod", "secrets": "Secret"}


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code,
        }  # fmt: skip


class Cluster:
    """The state of the cluster, and what tests do to it.

    Attributes:
        nodes: What each node has of resources other than CPU and memory.
        quota: The most pods that may exist; None: any number.
        denied: A webhook's objection to new pods.
        environment: Of all containers.
        output: What containers have printed.
        failing: The next requests that fail with a code 500.
        losing: The next new pods that are made, and the request fails with a code 500 all the same.
        refusal: The code and the message with which new pods are refused; None: they are not.
        is_shown: Whether watches say what has changed.
        watches: How many have been opened.
    """

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self.root = root
        self.environment = environment
        self.nodes: dict[str, dict[str, int]] = {}
        self.quota: int | None = None
        self.denied = ""
        self.failing = 0
        self.losing = 0
        self.refusal: tuple[int, str] | None = None
        self.is_shown = True
        self.watches = 0
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._objects: dict[tuple[str, str], Json] = {}
        self._version = 1
        self._events: list[tuple[int, str, str, Json]] = []
        self._oldest = 1
        self._changed = asyncio.Event()
        self._kubelets: dict[str, asyncio.Task[None]] = {}
        self._streams: set[web.StreamResponse] = set()

    # What happens to a cluster

    def add_node(self, name: str, **resources: int) -> None:
        self.nodes[name] = resources
        for pod in self.pods():
            self._schedule(pod)

    def lose_node(self, name: str) -> None:
        """Remove a node with its processes; the API does not hear of it."""
        del self.nodes[name]
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self._kubelets[pod["metadata"]["name"]].cancel()
                self._kill(pod["metadata"]["name"])

    def forget_history(self) -> None:
        """Forget all versions before the present one, and end all watches."""
        self._oldest = self._version + 1
        self._version += 1
        self._events.clear()
        self.break_watches()

    def break_watches(self) -> None:
        for stream in list(self._streams):
            if stream._payload_writer is not None and stream._payload_writer.transport is not None:
                stream._payload_writer.transport.abort()

    def end_pod(self, name: str, reason: str, message: str = "") -> None:
        """End a pod as a node does that runs short of something: by its reason, such as Evicted or OOMKilled."""
        self._kubelets[name].cancel()
        self._kill(name)
        pod = self._objects["pods", name]
        if reason == "OOMKilled":
            self._set_state(pod, "Failed", {"terminated": {"exitCode": 137, "reason": reason}})
        else:
            pod["status"] |= {"reason": reason, "message": message}
            self._set_state(pod, "Failed", {"terminated": {"exitCode": 137, "reason": "Error"}})

    def pods(self) -> list[Json]:
        return [one for (kind, _), one in self._objects.items() if kind == "pods"]

    def secrets(self) -> list[str]:
        return [name for kind, name in self._objects if kind == "secrets"]

    def output(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text() if path.exists() else ""

    async def close(self) -> None:
        for task in self._kubelets.values():
            task.cancel()
        for name in list(self.processes):
            self._kill(name)
        for process in self.processes.values():
            await process.wait()

    def _kill(self, name: str) -> None:
        if (process := self.processes.get(name)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    # The store

    def store(self, event: str, kind: str, subject: Json) -> None:
        self._version += 1
        subject["metadata"]["resourceVersion"] = str(self._version)
        name = subject["metadata"]["name"]
        if event == "DELETED":
            del self._objects[kind, name]
            uid = subject["metadata"]["uid"]
            owned = [
                other for (its, _), other in self._objects.items() if its == "secrets"
                and any(one["uid"] == uid for one in other["metadata"].get("ownerReferences", ()))
            ]  # fmt: skip
        else:
            self._objects[kind, name], owned = subject, []
        self._events.append((self._version, event, kind, deepcopy(subject)))
        self._changed.set()
        self._changed = asyncio.Event()
        for other in owned:
            self.store("DELETED", "secrets", other)

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        metadata = body.get("metadata") or {}
        name = metadata.get("name", "")
        if not NAME.fullmatch(name) or len(name) > 253:
            raise ApiError(422, "Invalid", f'{KINDS[kind]} "{name}" is invalid: metadata.name: Invalid value')
        for value in (metadata.get("labels") or {}).values():
            if not LABEL.fullmatch(value) or len(value) > 63:
                raise ApiError(422, "Invalid", f'{KINDS[kind]} "{name}" is invalid: metadata.labels: {value!r}')
        if (kind, name) in self._objects:
            raise ApiError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if kind == "pods":
            self._admit(name, body)
            body |= {"status": {"phase": "Pending"}}
        else:
            plain = body.pop("stringData", {})
            body["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body["metadata"] |= {"uid": str(uuid4()), "namespace": namespace, "creationTimestamp": now}
        body |= {"apiVersion": "v1", "kind": KINDS[kind]}
        self.store("ADDED", kind, body)
        if kind == "pods":
            self._schedule(body)
        return body

    def _admit(self, name: str, pod: Json) -> None:
        if self.refusal is not None:
            raise ApiError(self.refusal[0], "Refused", self.refusal[1])
        if self.denied:
            raise ApiError(403, "Forbidden", f'admission webhook "policy" denied the request: {self.denied}')
        if self.quota is not None and len(self.pods()) >= self.quota:
            message = f'pods "{name}" is forbidden: exceeded quota: pods, requested: pods=1, limited: pods={self.quota}'
            raise ApiError(403, "Forbidden", message)
        spec = pod.get("spec") or {}
        volumes = [one["name"] for one in spec.get("volumes") or ()]
        wrong = [f"spec.volumes[{n}].name: Duplicate value" for n, one in enumerate(volumes) if one in volumes[:n]]
        for n, container in enumerate(spec.get("containers") or [{}]):
            wrong += [
                f"spec.containers[{n}].{key}: Required value" for key in ("name", "image") if not container.get(key)
            ]
            for mount in container.get("volumeMounts") or ():
                if mount["name"] not in volumes:
                    wrong.append(f"spec.containers[{n}].volumeMounts: Not found: {mount['name']}")
            for amount in ((container.get("resources") or {}).get("requests") or {}).values():
                if not re.fullmatch(r"\d+(\.\d+)?(m|[KMGT]i?)?", str(amount)):
                    wrong.append(f"spec.containers[{n}].resources.requests: Invalid value: {amount!r}")
        if wrong:
            raise ApiError(422, "Invalid", f'Pod "{name}" is invalid: {"; ".join(wrong)}')

    def delete(self, kind: str, name: str, uid: str = "") -> Json:
        if (subject := self._objects.get((kind, name))) is None:
            raise ApiError(404, "NotFound", f'{kind} "{name}" not found')
        if uid not in ("", subject["metadata"]["uid"]):
            raise ApiError(409, "Conflict", f"the UID in the precondition ({uid}) is not that of {kind} {name!r}")
        kubelet = self._kubelets.get(name) if kind == "pods" else None
        if kubelet is None or kubelet.done():
            self.store("DELETED", kind, subject)
        elif "deletionTimestamp" not in subject["metadata"]:
            subject["metadata"]["deletionTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.store("MODIFIED", kind, subject)
            if (process := self.processes.get(name)) is not None and process.returncode is None:
                process.send_signal(signal.SIGTERM)  # to its first process only
            else:
                kubelet.cancel()
                self.store("DELETED", kind, subject)
        return subject

    # The scheduler and the nodes

    def _schedule(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName"):
            return
        wanted: dict[str, int] = {}
        for container in pod["spec"]["containers"]:
            for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                if "/" in resource:
                    wanted[resource] = int(amount)
        fitting = [node for node, has in self.nodes.items() if all(has.get(one, 0) >= n for one, n in wanted.items())]
        if fitting:
            pod["spec"]["nodeName"] = fitting[hash(name) % len(fitting)]
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
            self._set_state(pod, "Pending", {"waiting": {"reason": "ContainerCreating"}})
            self._kubelets[name] = asyncio.create_task(self._run(pod))
            return
        lack = f" {len(self.nodes)} Insufficient {', '.join(wanted)}." if self.nodes else " no nodes."
        message = f"0/{len(self.nodes)} nodes are available:{lack}"
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if pod["status"].get("conditions") != [condition]:
            pod["status"]["conditions"] = [condition]
            self.store("MODIFIED", "pods", pod)

    def _set_state(self, pod: Json, phase: str, state: Json) -> None:
        pod["status"] |= {"phase": phase}
        pod["status"]["containerStatuses"] = [
            {
                "name": one["name"],
                "image": one["image"],
                "state": state,
                "ready": phase == "Running",
                "restartCount": 0,
                "imageID": "",
            }
            for one in pod["spec"]["containers"]
        ]
        self.store("MODIFIED", "pods", pod)

    async def _run(self, pod: Json) -> None:
        """Run a pod's first container, as its node does."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        if container["image"] != IMAGE:
            message = f"Back-off pulling image {container['image']!r}"
            self._set_state(pod, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            while container["image"] != IMAGE:
                await self._changed.wait()
        words = [*(container.get("command") or ["true"]), *(container.get("args") or ())]
        for volume, mount in await self._mounted(pod, container):
            words = [word.replace(mount, str(volume)) for word in words]
        if words[0] == "python":
            words[0] = sys.executable
        own = {one["name"]: one["value"] for one in container.get("env") or ()}
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = process = await asyncio.create_subprocess_exec(
                *words, stdout=log, stderr=log, env=self.environment | own, cwd="/", start_new_session=True
            )
        self._set_state(pod, "Running", {"running": {}})
        code = await process.wait()
        self._kill(name)  # what is left of the container
        reason = "Error" if code else "Completed"
        ended = {"terminated": {"exitCode": abs(code), "reason": reason}}
        self._set_state(pod, "Failed" if code else "Succeeded", ended)
        if "deletionTimestamp" in pod["metadata"]:
            self.store("DELETED", "pods", pod)

    async def _mounted(self, pod: Json, container: Json) -> list[tuple[Path, str]]:
        """Return the folders of a container's volumes, with where it has them, once all are there."""
        folders = {}
        for volume in pod["spec"].get("volumes") or ():
            folders[volume["name"]] = folder = self.root / pod["metadata"]["uid"] / volume["name"]
            folder.mkdir(parents=True)
            if "secret" in volume:
                while ("secrets", volume["secret"]["secretName"]) not in self._objects:
                    await self._changed.wait()
                for key, value in self._objects["secrets", volume["secret"]["secretName"]]["data"].items():
                    (folder / key).write_bytes(base64.b64decode(value))
        return [(folders[one["name"]], one["mountPath"]) for one in container.get("volumeMounts") or ()]

    # The API

    def select(self, kind: str, selector: str) -> list[Json]:
        return [one for (its, _), one in sorted(self._objects.items()) if its == kind and is_selected(one, selector)]

    async def list(self, request: web.Request) -> web.StreamResponse:
        kind, query = request.match_info["kind"], request.query
        if query.get("watch") in ("true", "True", "1"):
            return await self._watch(request, kind)
        first, selector = 0, query.get("labelSelector", "")
        if token := query.get("continue"):
            version, first = (int(part) for part in token.split("."))
            if version < self._oldest:
                raise ApiError(410, "Expired", "The provided continue parameter is too old")
        found = self.select(kind, selector)
        limit = int(query.get("limit") or 0) or len(found)
        metadata = {"resourceVersion": str(self._version)}
        if first + limit < len(found):
            metadata["continue"] = f"{self._version}.{first + limit}"
        listed = {"kind": f"{KINDS[kind]}List", "apiVersion": "v1", "metadata": metadata}
        return web.json_response(listed | {"items": found[first : first + limit]})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        self.watches += 1
        query, response = request.query, web.StreamResponse(headers={"Content-Type": "application/json"})
        selector, version = query.get("labelSelector", ""), int(query.get("resourceVersion") or 0)
        ends_at = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds") or 3600)
        await response.prepare(request)
        self._streams.add(response)
        try:
            if 0 < version < self._oldest:
                expired = ApiError(410, "Expired", f"too old resource version: {version} ({self._oldest})")
                await response.write(line_of("ERROR", expired.status))
                return response
            while request.transport is not None and asyncio.get_running_loop().time() < ends_at:
                changed = self._changed
                for at, event, its, subject in [one for one in self._events if one[0] > version and self.is_shown]:
                    version = at
                    if its == kind and is_selected(subject, selector):
                        await response.write(line_of(event, subject))
                try:
                    async with asyncio.timeout(BOOKMARK_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    if query.get("allowWatchBookmarks"):
                        bookmark = {"kind": KINDS[kind], "apiVersion": "v1"}
                        await response.write(
                            line_of("BOOKMARK", bookmark | {"metadata": {"resourceVersion": str(version)}})
                        )
        except ConnectionError:
            pass
        finally:
            self._streams.discard(response)
        return response

    async def post(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        created = self.create(kind, request.match_info["namespace"], await request.json())
        if kind == "pods" and self.losing:
            self.losing -= 1
            raise ApiError(500, "InternalError", "etcdserver: request timed out")
        return web.json_response(created, status=201)

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def remove(self, request: web.Request) -> web.Response:
        options = await request.json() if request.can_read_body else {}
        uid = (options.get("preconditions") or {}).get("uid", "")
        return web.json_response(self.delete(request.match_info["kind"], request.match_info["name"], uid))

    async def evict(self, request: web.Request) -> web.Response:
        self.delete("pods", self._found(request)["metadata"]["name"])
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"}, status=201)

    async def logs(self, request: web.Request) -> web.Response:
        return web.Response(text=self.output(self._found(request)["metadata"]["name"]))

    def _found(self, request: web.Request) -> Json:
        kind, name = request.match_info.get("kind", "pods"), request.match_info["name"]
        if (kind, name) not in self._objects:
            raise ApiError(404, "NotFound", f'{kind} "{name}" not found')
        return self._objects[kind, name]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve the API on a port of this machine, and give its URL."""
        application = web.Application(middlewares=[self._errors])
        pods = "/api/v1/namespaces/{namespace}/pods/{name}"
        application.add_routes([
            web.get("/version", says({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})),
            web.get("/api", says({"kind": "APIVersions", "versions": ["v1"]})),
            web.get("/apis", says({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})),
            web.get("/api/v1", says(RESOURCES)),
            web.get("/api/v1/namespaces/{namespace}/{kind:pods|secrets}", self.list),
            web.post("/api/v1/namespaces/{namespace}/{kind:pods|secrets}", self.post),
            web.get("/api/v1/namespaces/{namespace}/{kind:pods|secrets}/{name}", self.get),
            web.delete("/api/v1/namespaces/{namespace}/{kind:pods|secrets}/{name}", self.remove),
            web.post(f"{pods}/eviction", self.evict),
            web.get(f"{pods}/log", self.logs),
        ])  # fmt: skip
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            self.break_watches()
            await runner.cleanup()
            await self.close()

    def _fail(self) -> None:
        if self.failing:
            self.failing -= 1
            raise ApiError(500, "InternalError", "etcdserver: leader changed")

    @property
    def _errors(self) -> Any:
        @web.middleware
        async def errors(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            try:
                self._fail()
                return await handler(request)
            except ApiError as exc:
                return web.json_response(exc.status, status=exc.status["code"])

        return errors


RESOURCES = {
    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [
        {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind,
         "verbs": ["create", "delete", "get", "list", "watch"]}
        for name, kind in KINDS.items()
    ],
}  # fmt: skip


def says(body: Json) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return answer


def line_of(event: str, subject: Json) -> bytes:
    return json.dumps({"type": event, "object": subject}).encode() + b"\n"


def is_selected(subject: Json, selector: str) -> bool:
    labels = subject["metadata"].get("labels") or {}
    terms = [term.replace("==", "=").partition("=") for term in selector.split(",") if term]
    return all(labels.get(name) == value for name, _, value in terms)
