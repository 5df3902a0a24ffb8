"""An executor that runs nothing: every try lasts as long as its script says, and ends as it says.

Its timers are those of the running event loop, so under virtual time a day of tries takes no time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from asynsched.executors.base import Executor, ExecutorContext, Held
from asynsched.protocol.messages import (
    BranchDecision,
    Ended,
    EndState,
    FailureCause,
    Launch,
    OutletEvent,
    ShortCircuitDecision,
    Started,
)


@dataclass(frozen=True)
class Outcome:
    """How long a try lasts, and how it ends. The fields are those of the Ended that is reported."""

    state: EndState = "success"
    duration: timedelta = timedelta(seconds=1)
    reason: str = ""
    retry: bool = True
    cause: FailureCause = "task"
    return_value: Any = None
    decision: BranchDecision | ShortCircuitDecision | None = None
    outlet_events: tuple[OutletEvent, ...] = ()


Script = Callable[[Launch], Outcome]


@dataclass
class _Try:
    launch: Launch
    started_at: datetime
    timer: asyncio.TimerHandle = field(repr=False)


class ScriptedExecutor(Executor):
    """Ends tries as `script` says.

    Args:
        context: As any executor's.
        script: How long each try lasts, and how it ends.
        gathers_starts: Whether the starts of tries are told with the next end of one, or by `tell_starts`: the
            scheduler has half as much to do then, and decides the same.

    Attributes:
        launched: Every launch, in order. A token that comes again is not launched again.
        running: The tries that are in it, by their tokens.
        acknowledged: Tokens whose end is stored.
    """

    def __init__(
        self, context: ExecutorContext, script: Script = lambda _: Outcome(), *, gathers_starts: bool = False
    ) -> None:
        super().__init__(context)
        self.script = script
        self._gathers_starts = gathers_starts
        self._untold: list[Started] = []
        self.launched: list[Launch] = []
        self.running: dict[str, _Try] = {}
        self.acknowledged: list[str] = []
        self._known: set[str] = set()

    @property
    def parallelism(self) -> int:
        return self.context.settings.parallelism

    async def start(self, lease_epoch: int) -> Held:
        return Held()

    async def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if launch.token in self._known:
                continue
            self._known.add(launch.token)
            self.launched.append(launch)
            outcome, now = self.script(launch), self.context.clock.now()
            end = asyncio.get_running_loop().call_later(
                outcome.duration.total_seconds(), self._end, launch.token, outcome
            )
            self.running[launch.token] = _Try(launch, now, end)
            self._untold.append(Started(launch.token, now, 1))
        if not self._gathers_starts:
            self.tell_starts()

    async def kill(self, token: str, reason: str) -> None:
        self._end(token, Outcome("failed", reason=reason))

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        self.acknowledged += tokens

    async def drain(self, deadline: datetime) -> None:
        for token in list(self.running):
            self._end(token, Outcome("failed", reason="the scheduler was stopped", cause="interrupted"))

    async def close(self) -> None:
        for running in self.running.values():
            running.timer.cancel()

    def tell_starts(self) -> None:
        """Report the starts that were not reported yet."""
        untold, self._untold = self._untold, []
        for started in untold:
            self.context.report(started)

    def _end(self, token: str, outcome: Outcome) -> None:
        ended = self.running.pop(token, None)
        if ended is None:
            return
        ended.timer.cancel()
        self.tell_starts()
        self.context.report(
            Ended(
                token,
                outcome.state,
                self.context.clock.now(),
                ended.started_at,
                outcome.reason,
                outcome.retry,
                outcome.cause,
                _raw(outcome.return_value),
                outcome.decision,
                result_length=_length(outcome.return_value),
                outlet_events=outcome.outlet_events,
            )
        )


def _raw(value: Any) -> msgspec.Raw | msgspec.UnsetType:
    return msgspec.UNSET if value is None else msgspec.Raw(msgspec.json.encode(value))


def _length(value: Any) -> int | None:
    if value is None:
        return None
    return len(value) if isinstance(value, list | dict) else -1
