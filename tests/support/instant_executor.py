"""An executor that starts nothing: the engine alone, with real time and a real database."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from asynsched.executors.base import Executor, ExecutorContext, Held
from asynsched.protocol.messages import Ended, Launch

GATE = "gate"
"""The name of a task that never ends."""


class InstantExecutor(Executor):
    """Ends every task at once; the gates stay.

    Attributes:
        n_ended: Tasks that it was given and has ended.
        first_at: When the first of them came, seconds.
    """

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self.n_ended = 0
        self.n_gates = 0
        self.first_at: float | None = None

    @property
    def parallelism(self) -> int:
        return self.context.settings.parallelism

    async def start(self, lease_epoch: int) -> Held:
        return Held()

    async def launch(self, launches: Sequence[Launch]) -> None:
        now = datetime.now(UTC)
        for launch in launches:
            if launch.task_id == GATE:
                self.n_gates += 1
                continue
            self.first_at = self.first_at or time.perf_counter()
            self.n_ended += 1
            self.context.report(self.end_of(launch, now))

    def end_of(self, launch: Launch, now: datetime) -> Ended:
        """Return how a task ends."""
        return Ended(launch.token, "success", now, started_at=now)

    async def kill(self, token: str, reason: str) -> None:
        self.context.report(Ended(token, "failed", datetime.now(UTC), reason=reason))

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        pass

    async def drain(self, deadline: datetime) -> None:
        pass

    async def close(self) -> None:
        pass
