"""Watches pods: a list, and then every change from its version on, so that nothing polls.

list ──version──▶ watch ──change, bookmark──▶ its version ──▶ next watch
  ▲                 │
  └───── 410: the version is too old, or an error ─────┘
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

import msgspec
import structlog
from kubernetes_asyncio.client import ApiException, CoreV1Api

from asynsched.clock import Clock
from asynsched.executors.engines.pods import Json, sight_of
from asynsched.executors.remote.engine import Sight

log = structlog.get_logger(__name__)

CALL_SECONDS = 20.0
"""Longest that one request of the API may take."""
WATCH_SECONDS = 300
"""How long one watch lasts, if nothing ends it before."""
SILENCE_SECONDS = 60.0
"""Longest that the connection of a watch may outlast it."""
PAUSE = timedelta(seconds=2)
"""Time before the pods are listed again after an error, and at least of a watch."""
PAGE = 500
"""Pods in one answer to a list."""
FRESH_SECONDS = 60.0
"""How long a new pod may be missing in the watch."""
MOST_ENDED = 10_000
"""Number of pods whose end is remembered."""
LOST = Sight("gone", "its pod was deleted")
NEW = Sight("queued", "its pod is new")


class Expired(ApiException):  # type: ignore[misc] # has no hints
    """410: the watch cannot go on from its version: the pods must be listed again."""


class PodWatch:
    """How the pods are that a label selects.

    Args:
        ended: Called with each pod that has ended and still exists.
        vanished: Called with the name of each pod that has been deleted.
    """

    def __init__(
        self,
        api: CoreV1Api,
        namespace: str,
        selector: str,
        clock: Clock,
        ended: Callable[[Json], Awaitable[None]],
        vanished: Callable[[str], Awaitable[None]],
    ) -> None:
        self._api = api
        self._selected = {"namespace": namespace, "label_selector": selector, "_preload_content": False}
        self._clock = clock
        self._on_end, self._on_vanish = ended, vanished
        self._sights: dict[str, Sight] | None = None
        """Of the pods that exist, by their names; None: they are not known yet."""
        self._ended: dict[str, Sight] = {}
        """Of pods that are gone."""
        self._fresh: dict[str, float] = {}
        """When pods were made that the watch has not shown yet, on the monotonic clock."""

    def expect(self, name: str) -> None:
        """Note that a pod was just made."""
        self._fresh[name] = self._clock.monotonic()

    def sights(self, names: Iterable[str]) -> dict[str, Sight]:
        """Return how these pods are; empty while that is not known."""
        if self._sights is None:
            return {}
        since = self._clock.monotonic() - FRESH_SECONDS
        self._fresh = {name: at for name, at in self._fresh.items() if at > since and name not in self._sights}
        return {
            name: self._sights.get(name) or self._ended.get(name) or (NEW if name in self._fresh else LOST)
            for name in names
        }

    async def serve(self) -> None:
        """Watch, until this is cancelled."""
        while True:
            try:
                version = await self._list()
                while True:
                    began_at = self._clock.monotonic()
                    version = await self._follow(version)
                    if self._clock.monotonic() - began_at < PAUSE.total_seconds():
                        await self._clock.sleep(PAUSE)  # something between ends watches at once
            except Expired as exc:
                log.debug("kubernetes.relist", reason=message_of(exc))
            except Exception as exc:  # noqa: BLE001 - whatever an API answers, pods must be seen again
                said = message_of(exc) if isinstance(exc, ApiException) else str(exc) or type(exc).__name__
                log.warning("kubernetes.away", error=said)
            await self._clock.sleep(PAUSE)

    async def _list(self) -> str:
        """Read all pods, and return the version from which a watch goes on. Raises Expired and ApiException."""
        found: dict[str, Json] = {}
        after: str | None = ""
        while after is not None:
            more = {"_continue": after} if after else {}
            answer = await self._api.list_namespaced_pod(
                **self._selected, limit=PAGE, _request_timeout=CALL_SECONDS, **more
            )
            page = decoded(answer.status, await answer.read())
            found.update((pod["metadata"]["name"], pod) for pod in page["items"])
            after = page["metadata"].get("continue") or None
        for name in (self._sights or {}).keys() - found.keys():
            await self._forget(name)
        self._sights = {name: sight_of(pod) for name, pod in found.items()}
        for pod in found.values():
            await self._see(pod)
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> str:
        """Follow changes for a while, and return the last version. Raises Expired and ApiException."""
        answer = await self._api.list_namespaced_pod(
            **self._selected, watch=True, resource_version=version, allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS, _request_timeout=WATCH_SECONDS + SILENCE_SECONDS,
        )  # fmt: skip
        try:
            if answer.status != 200:
                decoded(answer.status, await answer.read())
            rest = b""
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")  # a line of a large pod comes in parts
                for line in filter(None, lines):
                    version = await self._changed(msgspec.json.decode(line))
        finally:
            answer.close()
        return version

    async def _changed(self, event: Json) -> str:
        """Note a change, and return its version."""
        kind, subject = event["type"], event["object"]
        if kind == "ERROR":
            decoded(subject.get("code") or 500, msgspec.json.encode(subject))
        elif kind == "DELETED":
            self._note(subject)
            await self._forget(subject["metadata"]["name"])
        elif kind != "BOOKMARK":
            await self._see(subject)
        return str(subject["metadata"]["resourceVersion"])

    async def _see(self, pod: Json) -> None:
        if self._note(pod).state == "gone" and not pod["metadata"].get("deletionTimestamp"):
            await self._on_end(pod)

    def _note(self, pod: Json) -> Sight:
        assert self._sights is not None
        self._sights[pod["metadata"]["name"]] = sight = sight_of(pod)
        return sight

    async def _forget(self, name: str) -> None:
        """Remember only the end of a pod that does not exist any more."""
        sight = (self._sights or {}).pop(name, LOST)
        self._fresh.pop(name, None)
        self._ended[name] = sight if sight.state == "gone" else LOST
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        await self._on_vanish(name)


def decoded(status: int, body: bytes) -> Json:
    """Return the body of an answer of the API. Raises ApiException if it is an error, and Expired."""
    if status == 410:
        raise Expired
    if not 200 <= status < 300:
        error = ApiException(status=status)
        error.body = body.decode(errors="replace")
        raise error
    found: Json = msgspec.json.decode(body)
    return found


def message_of(exc: ApiException) -> str:
    """Return the message of an error of the API, in one line."""
    try:
        said = msgspec.json.decode(exc.body or b"").get("message")
    except (msgspec.DecodeError, AttributeError):
        said = None
    return " ".join(str(said or exc.reason or exc.status).split())
