"""A scheduler in virtual time that dies at a chosen call to its database, and starts again at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from asynsched.authoring.dag import DAG
from asynsched.executors.base import Executor, ExecutorContext, Held, TryEvent
from asynsched.protocol.messages import Ended
from asynsched.simulation.script import Script, ScriptedExecutor
from tests.support.flaky_database import FlakyDatabase
from tests.support.simulated import Simulated


class Crash(Exception):
    """The scheduler's process is gone."""


class CrashingDatabase(FlakyDatabase):
    """Raises Crash at the chosen calls, as if the scheduler died there. Calls `watch` before each call."""

    failure = Crash

    watch: Callable[[], None] = staticmethod(lambda: None)

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        self.watch()
        return await super().pass_on(call, query, args, kwargs)


class KeptExecutor(ScriptedExecutor):
    """Its tries outlive the scheduler, as those of a keeper do, and so do unacknowledged ends."""

    def __init__(self, context: ExecutorContext, script: Script) -> None:
        super().__init__(context, script)
        self._ended: dict[str, Ended] = {}
        self.serve_next(context)

    def serve_next(self, context: ExecutorContext) -> None:
        """Report to this scheduler from now on."""

        def report(event: TryEvent) -> None:
            if isinstance(event, Ended):
                self._ended[event.token] = event
            context.report(event)

        self.context = replace(context, report=report)

    @property
    def ends(self) -> list[tuple[str, int, str, datetime]]:
        """Every try that has ended: its task, its number, how, when."""
        found = [(launch, self._ended[launch.token]) for launch in self.launched if launch.token in self._ended]
        return sorted((launch.task_id, launch.try_number, ended.state, ended.ended_at) for launch, ended in found)

    async def start(self, lease_epoch: int) -> Held:
        unacknowledged = self._ended.keys() - set(self.acknowledged)
        for token in sorted(unacknowledged):
            self.context.report(self._ended[token])
        return Held(running=frozenset(self.running), ended=frozenset(unacknowledged))


class CrashingSimulated(Simulated):
    """A scheduler that dies once, and the next one on the same database and the same keeper."""

    executor: KeptExecutor | None

    def __init__(
        self,
        home: Path,
        dags: Sequence[DAG],
        script: Script,
        start: datetime,
        *,
        crashes_at: int = -1,
        after: bool = False,
    ) -> None:
        super().__init__(home, dags, script, start)
        self.crashing = CrashingDatabase(self.inline, fails_at=[crashes_at], after=after)
        self.database = self.crashing

    async def _serve(self, span: timedelta) -> None:
        began = self.clock.now()
        try:
            await super()._serve(span)
        except* Crash:
            self.act = None
            await super()._serve(began + span - self.clock.now())

    def _make_executor(self, context: ExecutorContext) -> Executor:
        if self.executor is None:
            self.executor = KeptExecutor(context, self.script)
        else:
            self.executor.serve_next(context)
        return self.executor
