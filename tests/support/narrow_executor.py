"""A third-party executor: room for one task, which it does not really run."""

from collections.abc import Sequence
from datetime import timedelta

from asynsched.executors.base import ExecutorContext
from asynsched.protocol.messages import Launch
from asynsched.simulation.script import Outcome, ScriptedExecutor

RETURNED = "what no task has returned"


class NarrowExecutor(ScriptedExecutor):
    """Records its launches in `seen`: the task, and the number of others at that time."""

    seen: list[tuple[str, int]] = []  # noqa: RUF012 - one for all, since the scheduler makes the executor

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context, lambda launch: Outcome(duration=timedelta(milliseconds=20), return_value=RETURNED))

    @property
    def parallelism(self) -> int:
        return 1

    async def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.seen.append((launch.task_id, len(self.running)))
            await super().launch([launch])
