"""The decisions of branches and short circuits, recorded as they are stored, and the instances that they skip."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.faults.simulated.edits import ENDED, Instance, RunKey, is_edit
from tests.faults.simulated.ledger import Ledger
from tests.faults.simulated.stored import TaskRow
from tests.faults.simulated.user_code import Decision
from tests.support.naive_branches import Decided

Tasks = Mapping[Any, TaskRow]


class EndedTry(NamedTuple):
    """The end of the last try of a task instance, and the other instances of its run that had begun by then."""

    instance: Instance
    state: str | None
    result_length: int | None
    decided: Decided | None
    going_on: frozenset[tuple[str, int]]


class Decisions:
    """Watches the stored changes.

    Attributes:
        left_out: The task instances that are skipped by a decision upstream: they had not begun, or
            waited for their next try.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of: dict[Any, Decision] = {}
        self._new: set[Any] = set()
        self._waited: set[Any] = set()
        self.left_out: set[Any] = set()

    def note(self, query: str, before: Tasks, tasks: Tasks) -> None:
        """Task instances have changed."""
        changed = [row for key, row in tasks.items() if before.get(key) != row]
        self._waited = {row[:4] for row in changed if row[:4] not in before or before[row[:4]].state is None}
        self._new.clear()
        for row in changed:
            self._note_decision(query, before.get(row[:4]), row)
        deciding = {key[:2] for key in self._of}
        for row in changed:
            was = before[row[:4]].state if row[:4] in before else None
            is_left_out = row.state == "skipped" and row[:2] in deciding and not is_edit(query)
            if is_left_out and not self._runs(row):
                self.left_out.add(row[:4])
            elif was != row.state:
                self.left_out.discard(row[:4])

    def of_run(self, run: RunKey) -> dict[Instance, Decision]:
        """Return the decisions in a run, without those of task instances that were cleared since."""
        return {key[2:]: decision for key, decision in self._of.items() if key[:2] == run}

    def of_ended(self, rows: list[TaskRow], tasks: Tasks) -> list[EndedTry]:
        """Return how these have ended, whose ends were just stored together."""
        run = rows[0][:2]
        going_on = [row for row in tasks.values() if row[:2] == run and row.state not in (*ENDED, None)]
        restarting = {row[2:4] for row in going_on if row.state == "restarting"}
        begun = {row[2:4] for row in going_on} - restarting
        # If both were stored together, an instance that ended on its own had begun before it could be left out.
        begun |= {row[2:4] for row in rows if row.state != "skipped"}
        all_begun = frozenset(begun)
        # It may as well have become ready by that.
        begun_if_ready = {instance for instance in begun if (*run, *instance) in self._waited}
        begun -= begun_if_ready
        ends = []
        for row in rows:
            is_new = row[:4] in self._new
            decided = Decided(self._of[row[:4]], begun, begun_if_ready, restarting) if is_new else None
            execution = self._ledger.tokens.get(row.token or "")
            has_result = row.state == "success" and execution is not None
            length = execution.result_length if has_result else None
            ends.append(EndedTry(row[2:4], row.state, length, decided, all_begun - {row[2:4]}))
        return ends

    def allow(self, was: str | None, row: TaskRow) -> bool:
        """Return whether a task instance that had ended may have been skipped since."""
        return was == "upstream_failed" and row[:4] in self.left_out

    def _runs(self, row: TaskRow) -> bool:
        """Whether the last try of a task instance goes on, by its own knowledge."""
        execution = self._ledger.tokens.get(row.token or "")
        return execution is not None and execution.end is None

    def _note_decision(self, query: str, before: TaskRow | None, row: TaskRow) -> None:
        if row.state not in ENDED:
            self._of.pop(row[:4], None)
        elif row.state == "success" and not is_edit(query) and (before is None or before.state != "success"):
            execution = self._ledger.tokens.get(row.token or "")
            if execution is not None and execution.decision is not None:
                self._of[row[:4]] = execution.decision
                self._new.add(row[:4])
