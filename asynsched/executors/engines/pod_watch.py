"""Watches pods: a list, and then every change from its version on, so that nothing polls.

list ──version──▶ watch ──change, bookmark──▶ its version ──▶ next watch
  ▲                 │
  └───── 410: the version is too old, or an error ─────┘
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

import msgspec
from kubernetes_asyncio.client import CoreV1Api
from msgspec import Struct

from asynsched.clock import Clock
from asynsched.executors.engines.api_answers import AWAY, Expired, decoded, message_of, said_of
from asynsched.executors.engines.pods import Json, shape_in, sight_of, ticket_secret
from asynsched.executors.remote.engine import Sight
from asynsched.loggers import get_logger

log = get_logger(__name__)

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
MOST_READ = 100
"""Most pods that one look reads by name, because the watch does not show them."""
MOST_ENDED = 10_000
"""Number of pods whose end is remembered."""
LOST = Sight("gone", "its pod was deleted")


class Shown(Struct, frozen=True):
    """A pod that the watch has shown.

    Attributes:
        secret: The name of the one that holds its ticket.
        shape: Of the pods that can take its tries; empty: none can, or not any more.
    """

    sight: Sight
    secret: str
    shape: str


class PodWatch:
    """How the pods are that a label selects.

    Args:
        read: Reads the pod of a name; None: there is none. Raises one of AWAY.
        ended: Called with each pod that has ended and still exists.
        vanished: Called with the name of the secret of each pod that has been deleted.
    """

    def __init__(
        self,
        api: CoreV1Api,
        namespace: str,
        selector: str,
        clock: Clock,
        *,
        read: Callable[[str], Awaitable[Json | None]],
        ended: Callable[[Json], Awaitable[None]],
        vanished: Callable[[str], Awaitable[None]],
    ) -> None:
        self._api = api
        self._selected = {"namespace": namespace, "label_selector": selector, "_preload_content": False}
        self._clock = clock
        self._read, self._on_end, self._on_vanish = read, ended, vanished
        self._shown: dict[str, Shown] | None = None
        """The pods that exist, by their names; None: they are not known yet."""
        self._ended: dict[str, Sight] = {}
        """Of pods that have ended and are gone."""

    def shape(self, name: str) -> str:
        """Return the shape of a pod that runs, as far as the watch shows it."""
        shown = (self._shown or {}).get(name)
        return "" if shown is None else shown.shape

    async def sights(self, names: Iterable[str]) -> dict[str, Sight]:
        """Return how these pods are, as far as that is known.

        The watch may not show yet that a pod was made, perhaps after another one of its name. So a pod is `gone` only
        once it was read.
        """
        if self._shown is None:
            return {}
        found, unsure = {}, []
        for name in names:
            shown = self._shown.get(name)
            if shown is None or shown.sight.state == "gone":
                unsure.append((name, self._ended.get(name, LOST) if shown is None else shown.sight))
            else:
                found[name] = shown.sight
        for name, end in unsure[:MOST_READ]:
            try:
                pod = await self._read(name)
            except AWAY as exc:
                log.warning("kubernetes.away", error=said_of(exc))
                break  # the others would wait for it as long
            found[name] = end if pod is None else sight_of(pod)
        return found

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
                log.warning("kubernetes.away", error=said_of(exc))
            await self._clock.sleep(PAUSE)

    async def _list(self) -> str:
        """Read all pods, and return the version from which a watch goes on. Raises Expired and ApiException."""
        found: dict[str, Shown] = {}
        ended: list[Json] = []
        after: str | None = ""
        while after is not None:
            more = {"_continue": after} if after else {}
            answer = await self._api.list_namespaced_pod(
                **self._selected, limit=PAGE, _request_timeout=CALL_SECONDS, **more
            )
            page = decoded(answer.status, await answer.read())
            found |= {pod["metadata"]["name"]: shown_of(pod) for pod in page["items"]}
            ended += [pod for pod in page["items"] if has_ended(pod)]
            after = page["metadata"].get("continue") or None
        before, self._shown = self._shown or {}, found
        for name, shown in before.items():
            if name not in found or found[name].secret != shown.secret:
                await self._forget(name, shown)
        for pod in ended:
            await self._on_end(pod)
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
        elif kind != "BOOKMARK":
            await self._note(subject, is_deleted=kind == "DELETED")
        return str(subject["metadata"]["resourceVersion"])

    async def _note(self, pod: Json, *, is_deleted: bool) -> None:
        assert self._shown is not None
        name, shown = pod["metadata"]["name"], shown_of(pod)
        if is_deleted:
            self._shown.pop(name, None)
            await self._forget(name, shown)
            return
        self._shown[name] = shown
        if has_ended(pod):
            await self._on_end(pod)

    async def _forget(self, name: str, shown: Shown) -> None:
        """Remember only the end of a pod that does not exist any more."""
        if shown.sight.state == "gone":
            self._ended[name] = shown.sight
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        await self._on_vanish(shown.secret)


def shown_of(pod: Json) -> Shown:
    """Return how a pod is."""
    sight = sight_of(pod)
    return Shown(sight, ticket_secret(pod), shape_in(pod) if sight.state == "running" else "")


def has_ended(pod: Json) -> bool:
    """Whether a pod has ended, and nothing deletes it yet."""
    return sight_of(pod).state == "gone" and not pod["metadata"].get("deletionTimestamp")
