"""The pods of tries: their manifests, and what Kubernetes says of them. Pure functions of JSON as the API has it."""

import re
from collections.abc import Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from asynsched.executors.remote.engine import LONGEST_REASON, Job, Sight
from asynsched.protocol.worker_messages import Ticket

Json = dict[str, Any]

BASE = "base"
"""The container that runs the try, as in Airflow."""
TICKETS, TICKET, HOME = "/run/asynsched-ticket", "ticket", "/var/lib/asynsched"
SHAPE = "asynsched/shape"
"""The annotation with the shape of a pod: see `shape_in`."""
OF_SCHEDULERS = "asynsched/schedulers"
"""The label by which schedulers find their own pods."""
LONGEST_LABEL = 63
LONGEST_SLUG = 40
_USUAL_WAITS = ("ContainerCreating", "PodInitializing")
_KEYS = ("mountPath", "name")  # in this order: a volume may have several mounts
"""What tells items of a list apart, if all have it: items of the same key are merged."""
_TICKET_VOLUME = "asynsched-ticket"
_MANAGED_BY = {"app.kubernetes.io/managed-by": "asynsched"}


class PodError(ValueError):
    """No pod can be made of this: the message says why."""


class _Metadata(Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Container(Struct, rename="camel"):
    name: str
    command: list[str] | None = None
    volume_mounts: list[Json] | None = None


class _Spec(Struct):
    containers: list[_Container] | None = None
    volumes: list[Json] | None = None


class _Pod(Struct):
    """What a manifest must look like as far as it is read or changed here. The API checks the rest."""

    metadata: _Metadata | None = None
    spec: _Spec | None = None


def pod_of(job: Job, template: Json) -> Json:
    """Return the manifest of a job's pod. Raises PodError for a wrong `executor_config`.

    Args:
        template: A manifest to start from, with a container `base` that has an image.
    """
    config = {key: value for key, value in job.executor_config.items() if key != "KubernetesExecutor"}
    override = config.pop("pod_override", None)
    if config:
        raise PodError(f"executor_config of Kubernetes has pod_override, a pod, not {next(iter(config))!r}")
    _check_shape(override, "pod_override")
    pod: Json = merged(template, override)
    container = _base_of(pod)
    name, ticket, spec, shape = name_of(job.ticket), job.ticket, pod["spec"], _shape_of(pod, job.ticket.dag_id)
    metadata = pod["metadata"] = pod.get("metadata") or {}
    metadata["name"] = name
    metadata.pop("generateName", None)
    metadata["labels"] = {
        **(metadata.get("labels") or {}), **_MANAGED_BY,
        OF_SCHEDULERS: label_of(ticket.addresses), "dag_id": _label(ticket.dag_id), "task_id": _label(ticket.task_id),
    }  # fmt: skip
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}), "dag_id": ticket.dag_id, "run_id": ticket.run_id,
        "task_id": ticket.task_id, "map_index": str(ticket.map_index), "try_number": str(ticket.try_number),
        SHAPE: shape,
    }  # fmt: skip
    spec["restartPolicy"] = "Never"  # a try starts once
    container["command"] = container.get("command") or ["python", "-m", "asynsched"]
    container["args"] = ["worker", "run", "--home", HOME, "--name", name, f"{TICKETS}/{TICKET}"]
    volumes = [
        {"name": _TICKET_VOLUME, "secret": {"secretName": secret_name_of(job)}},
        {"name": "asynsched-home", "emptyDir": {}},
    ]
    mounts = [
        {"name": _TICKET_VOLUME, "mountPath": TICKETS, "readOnly": True},
        {"name": "asynsched-home", "mountPath": HOME},
    ]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), *mounts]
    return pod


def secret_of(job: Job) -> Json:
    """Return the manifest of the secret that holds a job's ticket."""
    labels = {**_MANAGED_BY, OF_SCHEDULERS: label_of(job.ticket.addresses)}
    ticket = msgspec.json.encode(job.ticket).decode()
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret_name_of(job), "labels": labels},
        "stringData": {TICKET: ticket},
    }  # fmt: skip


def checked_template(template: object, image: str) -> Json:
    """Return a template of pods that is complete. Raises PodError.

    Args:
        image: Of the container `base`, unless the template says another; empty: it must.
    """
    if not isinstance(template, dict):
        raise PodError("it is no manifest of a pod")
    if template.get("kind", "Pod") != "Pod":
        raise PodError(f"it is the manifest of a {template['kind']}, not of a Pod")
    _check_shape(template, "the manifest")
    if (template.get("spec") or {}).get("containers"):
        _base_of(template)
    found: Json = merged({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": BASE}]}}, template)
    container = _base_of(found)
    if image:
        container.setdefault("image", image)
    if not container.get("image"):
        raise PodError("its container `base` has no image: set kubernetes.image")
    return found


def merged(base: Any, override: Any) -> Any:
    """Return a manifest with the values of another. Objects are merged; so are items of a list with the same name."""
    if isinstance(base, Mapping) and isinstance(override, Mapping):
        both = {key: merged(base[key], value) for key, value in override.items() if key in base}
        return {**deepcopy(dict(base)), **deepcopy(dict(override)), **both}
    if isinstance(base, list) and isinstance(override, list):
        return _merged_lists(base, override)
    return deepcopy(base if override is None else override)


def _merged_lists(base: list[Any], override: list[Any]) -> list[Any]:
    items = [*base, *override]
    key = next((key for key in _KEYS if any(isinstance(one, Mapping) and key in one for one in items)), None)
    if key is None or not all(isinstance(one, Mapping) and isinstance(one.get(key), str) for one in items):
        return deepcopy(items)
    of_override = {one[key]: one for one in override}
    kept = [merged(one, of_override.pop(one[key], {})) for one in base]
    return [*kept, *deepcopy(list(of_override.values()))]


def _check_shape(manifest: object, where: str) -> None:
    """Raise PodError with the path of what has the wrong type."""
    try:
        msgspec.convert(manifest, _Pod | None)
    except msgspec.ValidationError as exc:
        raise PodError(f"{where}: {str(exc).replace('`$', f'`{where}')}") from exc


def _base_of(pod: Json) -> Json:
    containers = pod["spec"].get("containers") if isinstance(pod.get("spec"), dict) else None
    for container in containers or ():
        if isinstance(container, dict) and container.get("name") == BASE:
            return container
    raise PodError(f"it has no container of the name {BASE}")


def shape_in(pod: Json) -> str:
    """Return the shape of a pod: pods of one shape can run each other's tries. Empty: the pod runs a single try."""
    return str((pod["metadata"].get("annotations") or {}).get(SHAPE) or "")


def _shape_of(pod: Json, dag_id: str) -> str:
    """Return the shape of a pod from its template and override alone. Its deadline would end a later try early."""
    if pod["spec"].get("activeDeadlineSeconds"):
        return ""
    return _digest(msgspec.json.encode([dag_id, pod], order="deterministic").decode())[:16]


def name_of(ticket: Ticket) -> str:
    """Return the name of the pod that is made for a ticket. It begins with those of its DAG and task.

    A submit that is repeated, because the API has not answered, finds the pod that it has made by this name.
    """
    slug = re.sub("[^a-z0-9]+", "-", ticket.kind.lower()).strip("-")
    return f"{slug[:LONGEST_SLUG].strip('-') or 'try'}-{_digest(ticket.token)[:12]}"


def in_warm_pod(pod: str, ticket: Ticket) -> str:
    """Return the id of a job that runs in a pod that was made for the ticket of another one."""
    return f"{pod}/{_digest(ticket.token)[:12]}"


def pod_in(job_id: str) -> str:
    """Return the name of a job's pod."""
    return job_id.partition("/")[0]


def secret_name_of(job: Job) -> str:
    """Return the name of the secret of a job's ticket: a ticket that is issued again has another one."""
    return _secret_name(job.ticket, _digest(job.ticket.secret))


def former_secret_of(job: Job) -> str:
    """Return the name of the secret of a job's former ticket; empty without one."""
    return _secret_name(job.ticket, job.former_digest) if job.former_digest else ""


def _secret_name(ticket: Ticket, digest: str) -> str:
    return f"{name_of(ticket)}-{digest[:12]}"


def ticket_secret(pod: Json) -> str:
    """Return the name of the secret that holds a pod's ticket; empty: it has none."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if volume.get("name") == _TICKET_VOLUME:
            return str((volume.get("secret") or {}).get("secretName") or "")
    return ""


def is_ours(pod: Json) -> bool:
    """Whether a pod was made for a ticket, by any scheduler."""
    return _MANAGED_BY.items() <= (pod["metadata"].get("labels") or {}).items()


def label_of(addresses: tuple[str, ...]) -> str:
    """Return the label of the pods of all schedulers with these addresses, which may name them in any order."""
    return _digest(" ".join(sorted({one.rstrip("/") for one in addresses})))[:16]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _label(text: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]+", "_", text)[:LONGEST_LABEL].strip("_.-")


def sight_of(pod: Json) -> Sight:
    """Return how Kubernetes sees a job, by its pod."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    node = (pod.get("spec") or {}).get("nodeName")
    match status.get("phase"):
        case "Succeeded":
            return Sight("gone", "its pod has ended")
        case "Failed":
            return Sight("gone", f"its pod has failed: {_failure(status)}"[:LONGEST_REASON])
        case _ if metadata.get("deletionTimestamp"):
            return Sight("queued", "its pod is being deleted")
        case "Running":
            return Sight("running", f"its pod {metadata['name']} runs on {node}")
        case "Pending" | None:
            where = f"its pod {metadata['name']} starts on {node}" if node else "its pod waits for a node"
            return Sight("queued", (_obstacle(status) or where)[:LONGEST_REASON])
    return Sight("unknown")


def _failure(status: Json) -> str:
    if reason := status.get("reason"):  # of the whole pod, such as Evicted
        return ": ".join(filter(None, (reason, status.get("message"))))
    for one in status.get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"{ended.get('reason') or 'Error'}, exit code {ended['exitCode']}, of its container {one['name']}"
    return str(status.get("message") or "for no reason that Kubernetes says")


def _obstacle(status: Json) -> str:
    """Return why a pod does not start; empty: nothing keeps it from that."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"its pod is {_words(condition.get('reason'))}: {condition.get('message') or 'no reason is given'}"
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _USUAL_WAITS:
            return f"its container {one['name']} waits: {waiting['reason']}: {waiting.get('message') or ''}".strip(" :")
    return ""


def _words(reason: str | None) -> str:
    """Return a reason of Kubernetes in words: SchedulingGated is `scheduling gated`."""
    return re.sub("(?<!^)(?=[A-Z])", " ", reason or "NotScheduled").lower()
