"""How tries end in a simulation: as expected, and by chance if a failure rate is set.

Chance is a function of the seed and the try, and of no order: one more DAG changes nothing for the others, and the same
tries fail in the simulations before and after a change of the DAGs.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

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
from asynsched.serialization.schema import MapConcat, MapLength, MapProduct, MapResult, MapZip, SerializedDag
from asynsched.simulation.expectations import NOTHING, Expectation, Expectations


@dataclass(frozen=True)
class Outcome:
    """How long a try lasts, and how it ends, with the fields of the reported Ended."""

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
        context: As for every executor.
        script: How long each try lasts, and how it ends.
        gathers_starts: Whether the starts of tries are reported with the next end of a try, or by `tell_starts`: the
            scheduler decides the same with half the work.

    Attributes:
        launched: Every launch, in order; a token only once.
        running: The running tries, by their tokens.
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
        """Report the gathered starts."""
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


USUAL_SECONDS = 60.0
"""The length of a try about which nothing is known."""
USUAL_LENGTH = 1
"""The number of values that an unknown task returns, if others are mapped over them."""


class ExpectedEnds:
    """The script of a simulation: gives each try its outcome.

    Args:
        expectations: How long tasks take, and how they end.
        seed: With another seed other tries fail.
        mapped_over: The tasks, as (dag_id, task_id), over whose results others are mapped.
    """

    def __init__(
        self, expectations: Expectations, seed: int, mapped_over: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        self._expectations = expectations
        self._seed = seed
        self._mapped_over = mapped_over

    def __call__(self, launch: Launch) -> Outcome:
        if launch.callback:
            return Outcome(duration=timedelta())
        expected = self._expectations.of(launch.run.dag_id, launch.task_id)
        duration = USUAL_SECONDS if expected.duration is None else expected.duration
        if launch.execution_timeout is not None and duration > launch.execution_timeout:
            limit = timedelta(seconds=launch.execution_timeout)
            return Outcome("failed", limit, f"it would take longer than its execution_timeout of {limit}")
        lasting = timedelta(seconds=duration)
        if expected.failure_rate and self.chance(launch) < expected.failure_rate:
            return Outcome("failed", lasting, _why_failed(expected.failure_rate))
        if expected.skip:
            return Outcome("skipped", lasting, "it is expected to skip itself")
        return Outcome("success", lasting, return_value=self._result(launch, expected), decision=_decision(expected))

    def _result(self, launch: Launch, expected: Expectation) -> Any:
        if expected.returns is not None:
            return expected.returns
        usual = USUAL_LENGTH if (launch.run.dag_id, launch.task_id) in self._mapped_over else None
        length = usual if expected.length is None else expected.length
        return None if length is None else list(range(length))

    def chance(self, launch: Launch) -> float:
        """Return a number from 0 up to 1, always the same for a try and a seed."""
        run = launch.run
        about = f"{self._seed}\0{run.dag_id}\0{run.run_id}\0{launch.task_id}\0{launch.map_index}\0{launch.try_number}"
        return int.from_bytes(hashlib.blake2b(about.encode(), digest_size=8).digest(), "big") / 2**64


def _why_failed(rate: float) -> str:
    return "all of its tries are expected to fail" if rate == 1 else f"by chance: {rate:.0%} of its tries fail"


class Assumption(Struct, frozen=True):
    """An assumption of a simulation about tasks, because nothing else is known about them.

    Attributes:
        assumed: The assumption, as a sentence without its end.
        whose: The property that the tasks share, as a relative clause.
        tasks: Their names, as `DAG.TASK`.
    """

    assumed: str
    whose: str
    tasks: tuple[str, ...]


def assumptions(
    expectations: Expectations, tasks: Iterable[tuple[str, str]], mapped_over: Collection[tuple[str, str]]
) -> tuple[Assumption, ...]:
    """Return the script's assumptions about tasks, given as (dag_id, task_id)."""
    found: dict[tuple[str, str], list[str]] = {}
    for dag_id, task_id in sorted(tasks):
        name, expected = f"{dag_id}.{task_id}", expectations.of(dag_id, task_id)
        if expected.failure_rate == 1 and expectations.history.get(name, NOTHING).failure_rate == 1:
            found.setdefault(("each try fails", "that never succeeded in this home"), []).append(name)
        if expected.duration is None:
            end = " and succeeds" if not (expected.failure_rate or expected.skip) else ""
            lasts = f"each try lasts {USUAL_SECONDS:.0f} s{end}"
            found.setdefault((lasts, "that never ran in this home"), []).append(name)
        if (dag_id, task_id) in mapped_over and expected.length is None and expected.returns is None:
            returns = f"a result of {USUAL_LENGTH} value"
            found.setdefault((returns, "whose results are not known, and are mapped over"), []).append(name)
    return tuple(Assumption(*what, tuple(names)) for what, names in sorted(found.items()))


def _decision(expected: Expectation) -> BranchDecision | ShortCircuitDecision | None:
    if expected.follow is not None:
        return BranchDecision(expected.follow)
    return ShortCircuitDecision() if expected.condition is False else None


def mapped_over(dags: Iterable[SerializedDag]) -> frozenset[tuple[str, str]]:
    """Return the tasks, as (dag_id, task_id), over whose results tasks or task groups are mapped."""
    return frozenset((dag.dag_id, task_id) for dag in dags for length in _lengths(dag) for task_id in _results(length))


def _lengths(dag: SerializedDag) -> Iterator[MapLength]:
    for task in dag.tasks:
        if task.map_length is not None:
            yield task.map_length
    for group in dag.task_groups:
        if group.map_length is not None:
            yield group.map_length


def _results(length: MapLength) -> Iterator[str]:
    match length:
        case MapResult(task_id):
            yield task_id
        case MapZip(parts) | MapConcat(parts) | MapProduct(parts):
            for part in parts:
                yield from _results(part)
