"""What the answers of Kubernetes' API mean: bodies, errors, and refusals."""

import re

import msgspec
from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException

from asynsched.executors.engines.pods import Json
from asynsched.executors.remote.engine import LONGEST_REASON, Later, Rejected, reason_of

AWAY = (ApiException, ClientError, TimeoutError, OSError)
"""Errors of a request: the API is away, or refuses it."""
PASSING = (401, 404, 408, 409, 410, 425, 429)
"""Codes of the API that do not say that a pod is wrong. 404: its namespace does not exist."""
WRONG_POD = re.compile("denied|is forbidden:")
OF_CLUSTER = re.compile(
    "exceeded quota|insufficient quota|status unknown for quota|cannot [a-z]+ resource|being terminated"
    "|looking up service account"
)
"""Reasons of a 403 that no task can change."""


class Expired(ApiException):  # type: ignore[misc] # has no hints
    """410: the watch cannot go on from its version: the pods must be listed again."""


def decoded(status: int, body: bytes) -> Json:
    """Return the body of an answer of the API. Raises ApiException if it is an error, and Expired."""
    if status == 410:
        raise Expired
    if not 200 <= status < 300:
        error = ApiException(status=status)
        error.body = body.decode(errors="replace")
        raise error
    try:
        return msgspec.json.decode(body, type=Json)
    except msgspec.DecodeError as exc:
        raise ApiException(status=502, reason=f"an answer is not that of Kubernetes: {exc}") from exc


def message_of(exc: ApiException) -> str:
    """Return the message of an error of the API, in one line that people read."""
    try:
        said = msgspec.json.decode(exc.body or b"").get("message")
    except (msgspec.DecodeError, AttributeError):
        said = None
    return " ".join(str(said or exc.reason or exc.status).split())[:LONGEST_REASON]


def said_of(exc: Exception) -> str:
    """Return any error of a request in one line."""
    return message_of(exc) if isinstance(exc, ApiException) else reason_of(exc)


def refusal_of(exc: ApiException) -> Rejected | Later:
    """Return the answer for a job whose pod the API refuses: Rejected if that is due to the pod, else Later."""
    said = message_of(exc)
    if exc.status is None or not 400 <= exc.status < 500:
        return Later(said)
    is_final = exc.status not in PASSING
    if exc.status == 403:
        is_final = bool(WRONG_POD.search(said)) and not OF_CLUSTER.search(said)
    return Rejected(f"Kubernetes does not take its pod: {said}") if is_final else Later(said)
