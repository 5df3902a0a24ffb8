"""Hears the bell: hands hints from other processes to the services that they concern."""

import socket
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus

from asynsched.bell import MAX_RING_BYTES, SOCKET_NAME, Hint, decode_hints, open_bell
from asynsched.channels import (
    AssetsUpdated,
    BackfillChanged,
    Channels,
    DagChanged,
    FileChanged,
    PoolsChanged,
    RunCreated,
    RunEdited,
    SchedulersChanged,
)
from asynsched.clock import Clock
from asynsched.keys import DagRunKey
from asynsched.service import Service

log = structlog.get_logger(__name__)


class BellListener(Service):
    """Listens on the home's socket."""

    name = "bell listener"

    def __init__(self, *, home: Path, channels: Channels, clock: Clock) -> None:
        super().__init__(clock)
        self._home = home
        self._channels = channels
        self._bell: socket.socket | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        self._bell = open_bell(self._home)
        try:
            task_status.started()
            while True:
                await anyio.wait_readable(self._bell)
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
        if any(hint.kind == "ping" for hint in hints):
            self._answer(sender)
        await hand_out(hints, self._channels)

    def _answer(self, sender: str | bytes | None) -> None:
        if self._bell is not None and sender:
            try:
                self._bell.sendto(b"pong", sender)
            except OSError as exc:
                log.debug("bell.unanswered", error=str(exc))


async def hand_out(hints: Iterable[Hint], channels: Channels) -> None:
    """Put each hint where it is acted on."""
    for hint in hints:
        match hint.kind:
            case "dag":
                await channels.dag_changes.put(DagChanged(hint.dag_id))
                await channels.active_runs.put(DagChanged(hint.dag_id))
            case "run":
                await channels.active_runs.put(RunCreated(DagRunKey(hint.dag_id, hint.run_id)))
            case "edit":
                await channels.active_runs.put(RunEdited(DagRunKey(hint.dag_id, hint.run_id)))
            case "backfill":
                await channels.active_runs.put(BackfillChanged(hint.dag_id))
            case "file":
                await channels.file_changes.put(FileChanged(hint.path, forced=True))
            case "pool":
                await channels.active_runs.put(PoolsChanged())
            case "asset":
                await channels.dag_changes.put(AssetsUpdated())
            case "scheduler":
                channels.peers.offer(SchedulersChanged())
            case _:
                pass  # a ping, which is answered elsewhere, or what only a newer version knows
