"""Hears the bell: passes hints from other processes on to the services that they concern."""

import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskStatus

from asynsched.bell import MAX_RING_BYTES, PONG, SOCKET_NAME, Hint, decode_hints, open_bell
from asynsched.channels import (
    AssetsUpdated,
    BackfillChanged,
    ChangesStored,
    ChangesWatched,
    Channels,
    DagChanged,
    FileChanged,
    LimitNews,
    NameChanged,
    PoolsChanged,
    RunCreated,
    RunEdited,
    RunEnded,
    RunNews,
    RunsOrphaned,
    RunWatched,
    SchedulersChanged,
    SlotsFreed,
    TriesReported,
)
from asynsched.clock import Clock
from asynsched.health import Health
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.service import Service

log = get_logger(__name__)


class BellListener(Service):
    """Listens on the home's socket, and answers questions about the scheduler's health."""

    name = "bell listener"

    def __init__(self, *, home: Path, channels: Channels, clock: Clock, health: Callable[[], Health]) -> None:
        super().__init__(clock)
        self._home = home
        self._health = health
        self._channels = channels
        self._bell: socket.socket | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        self._bell = open_bell(self._home)
        try:
            task_status.started()
            with self.pulse.running():
                while True:
                    await anyio.wait_readable(self._bell)
                    with self.pulse.step():
                        await self.tick(self.clock.now())
        finally:
            self._bell.close()
            (self._home / SOCKET_NAME).unlink(missing_ok=True)

    async def tick(self, now: datetime) -> None:
        if self._bell is None:
            return
        try:
            text, sender = self._bell.recvfrom(MAX_RING_BYTES)
            hints = decode_hints(text)
        except BlockingIOError:
            return
        except (OSError, ValueError) as exc:
            log.warning("bell.unintelligible", error=str(exc))
            return
        kinds = {hint.kind for hint in hints}
        if "ping" in kinds:
            self._answer(sender, PONG)
        if "health" in kinds:
            self._answer(sender, msgspec.json.encode(self._health()))
        await hand_out(hints, self._channels)

    def _answer(self, sender: str | bytes | None, answer: bytes) -> None:
        if self._bell is not None and sender:
            try:
                self._bell.sendto(answer, sender)
            except OSError as exc:
                log.debug("bell.unanswered", error=str(exc))


def _run_of(hint: Hint) -> DagRunKey:
    return DagRunKey(hint.dag_id, hint.run_id)


_RUN_NEWS: Mapping[str, Callable[[Hint], RunNews]] = {
    "run": lambda hint: RunCreated(_run_of(hint)),
    "edit": lambda hint: RunEdited(_run_of(hint)),
    "watch": lambda hint: RunWatched(_run_of(hint)),
    "orphan": lambda _: RunsOrphaned(),
}
_LIMIT_NEWS: Mapping[str, Callable[[Hint], LimitNews]] = {
    "backfill": lambda hint: BackfillChanged(hint.dag_id),
    "pool": lambda _: PoolsChanged(),
    "slots": lambda _: SlotsFreed(),
}


_AT_ONCE: Mapping[str, Callable[[Channels], None]] = {
    "try": lambda channels: channels.ready.put_nowait(TriesReported()),
    "scheduler": lambda channels: channels.peers.offer(SchedulersChanged()),
}


_OF_CHANGES = frozenset({"run", "edit", "backfill", "dag", "end", "orphan", "changed", "scheduler"})
"""The kinds of hints after which the database may have other states of runs or task instances."""


def hand_out_changes(hint: Hint, channels: Channels) -> None:
    """Send a hint to the event feed, if it concerns that."""
    if hint.kind in _OF_CHANGES:
        channels.changes.offer(ChangesStored())
    elif hint.kind == "follow":
        channels.changes.offer(ChangesWatched())


async def hand_out(hints: Iterable[Hint], channels: Channels) -> None:
    """Send each hint to its service. Hints of an unknown kind come from a newer version, and are ignored."""
    for hint in hints:
        hand_out_changes(hint, channels)
        match hint.kind:
            case kind if kind in _RUN_NEWS:
                await channels.runs.put(_RUN_NEWS[kind](hint))
            case kind if kind in _LIMIT_NEWS:
                await channels.limits.put(_LIMIT_NEWS[kind](hint))
            case "dag":
                await channels.dag_changes.put(DagChanged(hint.dag_id))
                await channels.limits.put(DagChanged(hint.dag_id))
            case "file":
                await channels.file_changes.put(FileChanged(hint.path, forced=True))
            case "variable" | "connection":
                await channels.file_changes.put(NameChanged(hint.kind, hint.name))
            case "asset":
                await channels.dag_changes.put(AssetsUpdated())
            case "end":
                await _hand_out_end(_run_of(hint), channels)
            case kind if kind in _AT_ONCE:
                _AT_ONCE[kind](channels)


async def _hand_out_end(run: DagRunKey, channels: Channels) -> None:
    """Pass the end of another scheduler's run on to all who may wait for it."""
    ended = RunEnded(run, "")
    channels.run_ends.put_nowait(ended)
    await channels.dag_changes.put(ended)
    await channels.limits.put(DagChanged(run.dag_id))
    await channels.runs.put(RunEdited(run))
