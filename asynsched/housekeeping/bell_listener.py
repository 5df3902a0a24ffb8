"""Hears the bell: hands hints from other processes to the services that they concern."""

import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus

from asynsched.bell import MAX_RING_BYTES, PONG, SOCKET_NAME, Hint, decode_hints, open_bell
from asynsched.channels import (
    AssetsUpdated,
    BackfillChanged,
    Channels,
    DagChanged,
    FileChanged,
    PoolsChanged,
    RunCreated,
    RunEdited,
    RunEnded,
    RunWatched,
    SchedulersChanged,
    SlotsFreed,
)
from asynsched.clock import Clock
from asynsched.health import Health
from asynsched.keys import DagRunKey
from asynsched.service import Service

log = structlog.get_logger(__name__)


class BellListener(Service):
    """Listens on the home's socket.

    Args:
        health: Tells how the scheduler is, for those who ask.
    """

    name = "bell listener"

    def __init__(self, *, home: Path, channels: Channels, clock: Clock, health: Callable[[], Health]) -> None:
        super().__init__(clock)
        self._home = home
        self._health = health
        self._channels = channels
        self._bell: socket.socket | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
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
        """Take one ring."""
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


_FOR_EVALUATOR: Mapping[str, Callable[[Hint], Any]] = {
    "run": lambda hint: RunCreated(_run_of(hint)),
    "edit": lambda hint: RunEdited(_run_of(hint)),
    "watch": lambda hint: RunWatched(_run_of(hint)),
    "backfill": lambda hint: BackfillChanged(hint.dag_id),
    "pool": lambda _: PoolsChanged(),
    "slots": lambda _: SlotsFreed(),
    "orphan": lambda _: SchedulersChanged(),
}


async def hand_out(hints: Iterable[Hint], channels: Channels) -> None:
    """Put each hint where it is acted on. Those of an unknown kind are a newer version's, and nobody's here."""
    for hint in hints:
        match hint.kind:
            case kind if kind in _FOR_EVALUATOR:
                await channels.active_runs.put(_FOR_EVALUATOR[kind](hint))
            case "dag":
                await channels.dag_changes.put(DagChanged(hint.dag_id))
                await channels.active_runs.put(DagChanged(hint.dag_id))
            case "file":
                await channels.file_changes.put(FileChanged(hint.path, forced=True))
            case "asset":
                await channels.dag_changes.put(AssetsUpdated())
            case "end":
                await _hand_out_end(_run_of(hint), channels)
            case "scheduler":
                channels.peers.offer(SchedulersChanged())


async def _hand_out_end(run: DagRunKey, channels: Channels) -> None:
    """Tell whoever may have waited for the end of another scheduler's run."""
    ended = RunEnded(run, "")
    channels.run_ends.put_nowait(ended)
    await channels.dag_changes.put(ended)
    await channels.active_runs.put(DagChanged(run.dag_id))
    await channels.active_runs.put(RunEdited(run))
