"""The least engine that there can be: a named pipe, into which tickets are written, and from which workers read them.

The pipe keeps tickets while no worker reads, as a broker's queue does. Each ticket is delivered as often as the file
`copies` beside the pipe says; and what the engine says of its jobs is in the file `sight`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote.engine import Accepted, Engine, Job, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor

PIPE = "tickets.pipe"


def pipe_of(root: Path) -> Path:
    """Return the pipe below a folder, made if it is missing."""
    path = root / PIPE
    if not path.exists():
        os.mkfifo(path)
    return path


class PipeEngine(Engine):
    """Writes tickets into a pipe beside the home."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._root = context.home.parent
        self._pipe = os.open(pipe_of(self._root), os.O_RDWR)

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected]:
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> Accepted | Rejected:
        if problem := job.executor_config.get("reject"):
            return Rejected(problem)
        for _ in range(int(self._said("copies", "1"))):
            os.write(self._pipe, msgspec.json.encode(job.ticket) + b"\n")
        return Accepted(f"job-{job.ticket.token}")

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        (self._root / "cancelled").write_text("\n".join(engine_ids))

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        state, _, reason = self._said("sight", "queued").partition(":")
        return {engine_id: Sight(state, reason) for engine_id in engine_ids}  # type: ignore[arg-type]

    async def close(self) -> None:
        os.close(self._pipe)

    def _said(self, name: str, otherwise: str) -> str:
        path = self._root / name
        return path.read_text() if path.exists() else otherwise


class PipeExecutor(RemoteExecutor):
    """Runs tries through a pipe."""

    engine_class = PipeEngine
