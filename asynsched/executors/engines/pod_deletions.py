"""Deletions of pods and secrets. One that fails is tried again in the background: no pass of the executor waits."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
from msgspec import Struct

from asynsched.clock import Clock
from asynsched.executors.engines.api_answers import said_of
from asynsched.loggers import get_logger

log = get_logger(__name__)

PAUSE = timedelta(seconds=10)
"""Time before deletions that have failed are tried again."""
MOST_LEFT = 10_000
"""Most failed deletions that are kept. The watch finds ended pods again, too."""


class Deletion(Struct, frozen=True):
    """A request that deletes an object by its name.

    Attributes:
        uid: What is to be deleted, and no later one of its name; empty: whatever has the name.
    """

    request: Callable[..., Awaitable[Any]]
    name: str
    uid: str = ""


class Deletions:
    """Deletes objects, at once or later.

    Args:
        delete: Deletes an object if it exists.
    """

    def __init__(self, clock: Clock, delete: Callable[[Deletion], Awaitable[None]]) -> None:
        self._clock, self._delete = clock, delete
        self._left: dict[Deletion, None] = {}
        self._logged: set[tuple[str, str]] = set()
        self._wakeup = anyio.Event()
        self._retried: Deletion | None = None
        self._lock = anyio.Lock()
        """Held while a deletion is retried."""

    async def delete(self, one: Deletion) -> bool:
        """Delete an object, and return whether that is done; otherwise it is tried again later."""
        self._left.pop(one, None)
        try:
            await self._delete(one)
        except Exception as exc:  # noqa: BLE001 - whatever an API answers, the others go on
            self._keep(one, exc)
            return False
        return True

    async def spare(self, one: Deletion) -> None:
        """Cancel the deletion of an object that is about to be made again."""
        self._left.pop(one, None)
        if one == self._retried:
            async with self._lock:
                self._left.pop(one, None)

    async def serve(self) -> None:
        """Try failed deletions again, until this is cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup = anyio.Event()
            await self._clock.sleep(PAUSE)
            await self._retry()

    async def _retry(self) -> None:
        """Try failed deletions again, until one fails: the API may be away. That one comes last in the next round."""
        for one in list(self._left):
            if one not in self._left:
                continue
            async with self._lock:
                self._retried = one
                is_deleted = await self.delete(one)
                self._retried = None
            if not is_deleted:
                return
        self._logged.clear()

    def _keep(self, one: Deletion, exc: Exception) -> None:
        self._left[one] = None
        self._wakeup.set()
        if len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]
        # One line for each kind, for an outage may leave thousands of objects.
        kind = (getattr(one.request, "__name__", ""), str(getattr(exc, "status", type(exc).__name__)))
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("kubernetes.not_deleted", name=one.name, error=said_of(exc))
