"""How tries end in a simulation: as is expected of them, and by chance where a failure rate says so.

Chance is a function of the seed and of the try: it depends on no order, so one more DAG changes nothing for the others,
and the same try fails in a simulation before a change of the DAGs and in the one after it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import Any

from msgspec import Struct

from asynsched.protocol.messages import BranchDecision, Launch, ShortCircuitDecision
from asynsched.serialization.schema import MapConcat, MapLength, MapProduct, MapResult, MapZip, SerializedDag
from asynsched.simulation.executor import Outcome
from asynsched.simulation.expectations import NOTHING, Expectation, Expectations

USUAL_SECONDS = 60.0
"""How long a try lasts of which nothing is known."""
USUAL_LENGTH = 1
"""How many values a task returns that others are mapped over, and of which nothing is known."""


class ExpectedEnds:
    """The script of a simulation: gives each try its outcome.

    Args:
        expectations: What is expected of the tasks.
        seed: Other seeds make other tries fail.
        mapped_over: The tasks, each with its DAG, whose results others are mapped over.
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
        """Return a number from 0 up to 1, the same one for the same try and seed."""
        run = launch.run
        about = f"{self._seed}\0{run.dag_id}\0{run.run_id}\0{launch.task_id}\0{launch.map_index}\0{launch.try_number}"
        return int.from_bytes(hashlib.blake2b(about.encode(), digest_size=8).digest(), "big") / 2**64


def _why_failed(rate: float) -> str:
    return "all of its tries are expected to fail" if rate == 1 else f"by chance: {rate:.0%} of its tries fail"


class Assumption(Struct, frozen=True):
    """Something that a simulation takes for granted of tasks, because nobody has said it.

    Attributes:
        assumed: What, as a sentence without its end.
        whose: What is known of the tasks.
        tasks: Their names, as `DAG.TASK`.
    """

    assumed: str
    whose: str
    tasks: tuple[str, ...]


def assumptions(
    expectations: Expectations, tasks: Iterable[tuple[str, str]], mapped_over: Collection[tuple[str, str]]
) -> tuple[Assumption, ...]:
    """Return what the script assumes of tasks, each given with its DAG."""
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
    """Return the tasks, each with its DAG, whose results tasks or task groups are mapped over."""
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
