"""How tries end in a simulation: as expected, and by chance if a failure rate is set.

A file of expectations is TOML or JSON, and maps `DAG.TASK` to seconds, or to a table of fields. Either name may contain
the wildcards `*`, `?` and `[…]`:

    "*.*" = 60
    "etl.load" = { duration = 300, failure_rate = 0.1 }
    "etl.choose" = { follow = ["fast"] }

Chance depends only on the seed and the try, not on any order: one more DAG changes nothing for the others, and the same
tries fail in the simulations before and after a change of the DAGs.
"""

import asyncio
import hashlib
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import SettingsError, did_you_mean
from asynsched.executors.base import Executor, ExecutorContext, Held
from asynsched.protocol import messages
from asynsched.serialization.schema import MapConcat, MapLength, MapProduct, MapResult, MapZip, SerializedDag
from asynsched.store.rows import near_names

LONGEST_SECONDS = 10 * 366 * 24 * 3600.0
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Rate = Annotated[float, Meta(ge=0, le=1)]
LONGEST_RESULT = 100_000
WILDCARDS = frozenset("*?[")


class Expectation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A simulation's expectations of a task's tries. None: not specified.

    Attributes:
        duration: How long a try lasts, seconds.
        failure_rate: Share of the tries that fail, 0 to 1.
        follow: A branch's choice: the task_ids of direct downstream tasks; all others are skipped.
        condition: A short circuit's condition; false skips the downstream tasks.
        skip: Whether the task skips itself.
        length: How many values the task returns, if other tasks are mapped over them.
        returns: The task's return value, any JSON, in place of `length` values.
    """

    duration: Seconds | None = None
    failure_rate: Rate | None = None
    follow: tuple[str, ...] | None = None
    condition: bool | None = None
    skip: bool | None = None
    length: Annotated[int, Meta(ge=0, le=LONGEST_RESULT)] | None = None
    returns: Any = None

    def over(self, other: "Expectation") -> "Expectation":
        """Return the specified fields of this expectation, and the fields of `other` for the rest."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(other, **said)


FIELDS = Expectation.__struct_fields__
NOTHING = Expectation()


class Entry(NamedTuple):
    """One entry of a file of expectations: a pattern of `DAG.TASK`, and the expectation of the tasks that match it."""

    pattern: str
    expectation: Expectation

    @property
    def is_name(self) -> bool:
        """Whether the pattern names one task, without wildcards."""
        return not WILDCARDS.intersection(self.pattern)


class Expectations:
    """The expectation of each task.

    Args:
        entries: The entries of a file: a later one overrides an earlier one, and one without wildcards overrides all
            with wildcards.
        given: Values for the fields that the file does not specify for a task.
        history: Values from past tries, by `DAG.TASK`, for the fields that neither of the two specifies.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        given: Expectation | None = None,
        history: Mapping[str, Expectation] | None = None,
    ) -> None:
        self._patterns: list[Entry] = []
        self._names: dict[str, Expectation] = {}
        for entry in entries:
            if entry.is_name:
                self._names[entry.pattern] = entry.expectation.over(self._names.get(entry.pattern, NOTHING))
            else:
                self._patterns.append(entry)
        self._given = given or NOTHING
        self.history = history or {}
        self.of = lru_cache(maxsize=100_000)(self._of)

    def _of(self, dag_id: str, task_id: str) -> Expectation:
        name = f"{dag_id}.{task_id}"
        found = self._given.over(self.history.get(name, NOTHING))
        for pattern, expectation in self._patterns:
            if fnmatchcase(name, pattern):
                found = expectation.over(found)
        return self._names.get(name, NOTHING).over(found)

    def unused(self, names: set[str]) -> list[str]:
        """Return the patterns that match none of these tasks, each given as `DAG.TASK`."""
        patterns = [entry.pattern for entry in self._patterns if not any(fnmatchcase(n, entry.pattern) for n in names)]
        return sorted([*patterns, *(self._names.keys() - names)])


def with_certain_failures(history: Mapping[str, Expectation]) -> dict[str, Expectation]:
    """Return a history in which tasks that have never succeeded fail, and no other task has a failure rate."""
    return {
        name: seen if seen.failure_rate == 1 else msgspec.structs.replace(seen, failure_rate=None)
        for name, seen in history.items()
    }


def why_unused(pattern: str, names: set[str]) -> str:
    """Return why a pattern matches none of these tasks: an unknown key of a table, or an unknown name."""
    task, _, key = pattern.rpartition(".")
    if any(fnmatchcase(name, task) for name in names):
        return _unknown_key(task, key)
    return f"no task is named {pattern!r}.{did_you_mean(near_names(pattern, sorted(names)))}"


def _unknown_key(name: str, key: str) -> str:
    return f"{name!r} has no key {key!r}.{did_you_mean(near_names(key, FIELDS))} Its keys are {', '.join(FIELDS)}."


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a file of expectations, in its order.

    Raises:
        SettingsError: The file cannot be read, or an entry is invalid; the message names the file and the key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise SettingsError(f"{path}: the file cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{path}: the file is not UTF-8 text") from exc
    try:
        content = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        form = "JSON" if path.suffix == ".json" else "TOML (a name that ends in .json is read as JSON)"
        raise SettingsError(f"{path}: this is not {form}: {exc}") from exc
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: it must map DAG.TASK to seconds, or to a table")
    return tuple(_entries(path, content, ""))


def _entries(path: Path, content: Mapping[str, Any], prefix: str) -> Iterator[Entry]:
    """Yield the entries. A key without quotes is nested in TOML: `etl.load = 5` is a table of a table."""
    for key, value in content.items():
        name = f"{prefix}{key}"
        is_table = isinstance(value, dict) and "." in name and not value.keys().isdisjoint(FIELDS)
        if isinstance(value, dict) and not is_table:
            yield from _entries(path, value, f"{name}.")
            continue
        if "." not in name:
            raise SettingsError(f'{path}: {name!r} names no task: write DAG.TASK, e.g. "{name}.*"')
        form = value if is_table else {"duration": value}
        if unknown := sorted(form.keys() - set(FIELDS)):
            raise SettingsError(f"{path}: {_unknown_key(name, unknown[0])}")
        try:
            yield Entry(name, msgspec.convert(form, Expectation))
        except msgspec.ValidationError as exc:
            raise SettingsError(f"{path}: {name!r}: {exc}") from exc


@dataclass(frozen=True)
class Outcome:
    """How long a try lasts, and how it ends, with the fields of the reported Ended."""

    state: messages.EndState = "success"
    duration: timedelta = timedelta(seconds=1)
    reason: str = ""
    retry: bool = True
    cause: messages.FailureCause = "task"
    return_value: Any = None
    decision: messages.Decision | None = None
    outlet_events: tuple[messages.OutletEvent, ...] = ()


Script = Callable[[messages.Launch], Outcome]


@dataclass
class _Try:
    launch: messages.Launch
    started_at: datetime
    timer: asyncio.TimerHandle = field(repr=False)


class ScriptedExecutor(Executor):
    """Ends tries as `script` says.

    Args:
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
        self._untold: list[messages.Started] = []
        self.launched: list[messages.Launch] = []
        self.running: dict[str, _Try] = {}
        self.acknowledged: list[str] = []
        self._known: set[str] = set()

    @property
    def parallelism(self) -> int:
        return self.context.settings.parallelism

    async def start(self, lease_epoch: int) -> Held:
        return Held()

    async def launch(self, launches: Sequence[messages.Launch]) -> None:
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
            self._untold.append(messages.Started(launch.token, now, 1))
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
        value = outcome.return_value
        written = msgspec.UNSET if value is None else msgspec.Raw(msgspec.json.encode(value))
        length = len(value) if isinstance(value, list | dict) else -1
        self.context.report(
            messages.Ended(
                token, outcome.state, self.context.clock.now(), ended.started_at, outcome.reason, outcome.retry,
                outcome.cause, written, outcome.decision, result_length=None if value is None else length,
                outlet_events=outcome.outlet_events,
            )
        )  # fmt: skip


USUAL_SECONDS = 60.0
"""The length of a try about which nothing is known."""
USUAL_LENGTH = 1
"""The number of values that an unknown task returns, if others are mapped over them."""


class ExpectedEnds:
    """The script of a simulation: gives each try its outcome.

    Args:
        seed: With another seed other tries fail.
        mapped_over: The tasks, as (dag_id, task_id), over whose results others are mapped.
    """

    def __init__(
        self, expectations: Expectations, seed: int, mapped_over: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        self._expectations = expectations
        self._seed = seed
        self._mapped_over = mapped_over

    def __call__(self, launch: messages.Launch) -> Outcome:
        if launch.callback:
            return Outcome(duration=timedelta())
        expected = self._expectations.of(launch.run.dag_id, launch.task_id)
        duration = USUAL_SECONDS if expected.duration is None else expected.duration
        if launch.execution_timeout is not None and duration > launch.execution_timeout:
            limit = timedelta(seconds=launch.execution_timeout)
            return Outcome("failed", limit, f"it would take longer than its execution_timeout of {limit}")
        lasting = timedelta(seconds=duration)
        if expected.failure_rate and self.chance(launch) < expected.failure_rate:
            rate = expected.failure_rate
            why = "all of its tries are expected to fail" if rate == 1 else f"by chance: {rate:.0%} of its tries fail"
            return Outcome("failed", lasting, why)
        if expected.skip:
            return Outcome("skipped", lasting, "it is expected to skip itself")
        decision: messages.Decision | None = None
        if expected.follow is not None:
            decision = messages.BranchDecision(expected.follow)
        elif expected.condition is False:
            decision = messages.ShortCircuitDecision()
        return Outcome("success", lasting, return_value=self._result(launch, expected), decision=decision)

    def _result(self, launch: messages.Launch, expected: Expectation) -> Any:
        if expected.returns is not None:
            return expected.returns
        usual = USUAL_LENGTH if (launch.run.dag_id, launch.task_id) in self._mapped_over else None
        length = usual if expected.length is None else expected.length
        return None if length is None else list(range(length))

    def chance(self, launch: messages.Launch) -> float:
        """Return a number from 0 up to 1, always the same for a try and a seed."""
        run = launch.run
        about = f"{self._seed}\0{run.dag_id}\0{run.run_id}\0{launch.task_id}\0{launch.map_index}\0{launch.try_number}"
        return int.from_bytes(hashlib.blake2b(about.encode(), digest_size=8).digest(), "big") / 2**64


class Assumption(Struct, frozen=True):
    """An assumption of a simulation about tasks, because nothing else is known about them.

    Attributes:
        assumed: The assumption, as a sentence without its end.
        whose: The property that the tasks share, as a relative clause.
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


def mapped_over(dags: Iterable[SerializedDag]) -> frozenset[tuple[str, str]]:
    """Return the tasks, as (dag_id, task_id), over whose results tasks or task groups are mapped."""
    return frozenset(
        (dag.dag_id, task_id)
        for dag in dags
        for length in (*(task.map_length for task in dag.tasks), *(group.map_length for group in dag.task_groups))
        for task_id in _results(length)
    )


def _results(length: MapLength | None) -> Iterator[str]:
    match length:
        case MapResult(task_id):
            yield task_id
        case MapZip(parts) | MapConcat(parts) | MapProduct(parts):
            for part in parts:
                yield from _results(part)
