"""The ledger: the tasks' own records, and the entries that must never occur in it.

A start without an end is that of a process that was killed: when it was gone, the ledger does not say. There the locks
that tasks hold are the witness, and a task that could not have its own has written so.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.real.workload import POOL_SLOTS


class TaskInstance(NamedTuple):
    """The identity of a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass
class Execution:
    """One process's run through a task's body."""

    ti: TaskInstance
    try_number: int
    part: str
    pid: int
    started_at: float
    ended_at: float | None = None
    how: str = "killed"
    """`ok`, `raised`, or `killed` where no end was written."""
    pool: str | None = None
    slots: int = 0


@dataclass
class Ledger:
    """The content of the ledger."""

    executions: list[Execution] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Locks that could not be had, as tasks wrote it down at once."""
    callbacks: Counter[TaskInstance] = field(default_factory=Counter)

    @property
    def by_task_instance(self) -> dict[TaskInstance, list[Execution]]:
        found: dict[TaskInstance, list[Execution]] = defaultdict(list)
        for execution in self.executions:
            found[execution.ti].append(execution)
        return found


class LedgerReader:
    """Reads the new lines of a ledger that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._open: dict[int, Execution] = {}
        self.ledger = Ledger()

    def read(self) -> Ledger:
        """Read on, and return all that has been read."""
        for entry in self._new_entries():
            self._take(entry)
        return self.ledger

    @property
    def running(self) -> set[int]:
        """Process ids of those that have started and not written an end; some of them are dead."""
        return set(self._open)

    def _new_entries(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, _, _rest = data.rpartition(b"\n")
        if whole:
            self._offset += len(whole) + 1
            yield from (json.loads(line) for line in whole.split(b"\n"))

    def _take(self, entry: dict[str, Any]) -> None:
        ti = TaskInstance(*entry["ti"])
        if entry["kind"] == "start":
            execution = Execution(
                ti, entry["try"], entry["part"], entry["pid"], entry["at"],
                pool=entry.get("pool"), slots=entry.get("slots", 0),
            )  # fmt: skip
            self._open[execution.pid] = execution
            self.ledger.executions.append(execution)
        elif entry["kind"] == "end":
            execution = self._open.pop(entry["pid"])
            execution.ended_at, execution.how = entry["at"], entry["how"]
        elif entry["kind"] == "callback":
            self.ledger.callbacks[ti] += 1
        else:
            self.ledger.complaints.append(f"{entry['kind']}: {'/'.join(map(str, ti))}, try {entry['try']}")


def overlaps(executions: Iterable[Execution]) -> list[str]:
    """Return the signs of two executions of one task instance at the same time."""
    found = []
    by_ti: dict[TaskInstance, list[Execution]] = defaultdict(list)
    for execution in executions:
        by_ti[execution.ti].append(execution)
    for ti, runs in by_ti.items():
        runs.sort(key=lambda execution: execution.started_at)
        latest_end = float("-inf")
        for execution in runs:
            if execution.started_at < latest_end:
                found.append(f"overlapping executions of {'/'.join(map(str, ti))}, try {execution.try_number}")
            latest_end = max(latest_end, execution.ended_at or execution.started_at)
    return found


def overcommitments(executions: Iterable[Execution], slots: int = POOL_SLOTS) -> list[str]:
    """Return the instants at which a pool had more in it than its slots."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for execution in executions:
        if execution.pool is not None and execution.ended_at is not None:
            changes[execution.pool] += [
                (execution.started_at, execution.slots), (execution.ended_at, -execution.slots)
            ]  # fmt: skip
    found = []
    for pool, moments in changes.items():
        taken = 0
        for at, change in sorted(moments):
            taken += change
            if taken > slots:
                found.append(f"pool {pool} has {taken} of {slots} slots taken at {at:.6f}")
    return found
