"""The edits of runs, recorded as they are stored: the states that the rules did not set, and from which they go on."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from asynsched.states import FINISHED_RUN_STATES, FINISHED_TASK_STATES, PAUSED_TASK_STATES
from tests.faults.simulated.stored import RunRow, Stored, TaskRow
from tests.faults.simulated.user_code import Decision

EDITS = frozenset({"submit_request", "submit_by_program", "do_request"})
"""The calls of the database that carry out requests about runs."""
ENDED = frozenset(str(state) for state in FINISHED_TASK_STATES)
ENDED_RUNS = frozenset(str(state) for state in FINISHED_RUN_STATES)
RunKey = tuple[str, str]
Instance = tuple[str, int]


def _is_by_hand(stop: str | None) -> bool:
    return '"is_by_hand":true' in (stop or "")


def is_edit(query: str) -> bool:
    """Return whether a call of the database, or one that was done late, carries out a request of people."""
    return query.removeprefix("late ") in EDITS


class Start(NamedTuple):
    """A run as an edit has left it.

    Attributes:
        states: Of each task instance, None: it has not ended.
        lengths: How many values the result of each has.
        under_way: Those that were ready or had begun: they run regardless of their upstreams.
        decisions: The decisions of the branches and short circuits that have ended.
    """

    states: dict[Instance, str | None]
    lengths: dict[Instance, int | None]
    under_way: frozenset[Instance]
    decisions: dict[Instance, Decision]


class Edits:
    """Watches what is stored.

    Attributes:
        starts: The runs that people have edited, as the last edit has left each.
        given: The task instances whose present state a user gave them, or that ended because their run was stopped.
        waiting_again: The task instances whose next try was due after an upstream had been cleared: they wait for
            their dependencies like new ones, and may end by their rule with tries left.
        given_runs: The ended runs whose tasks, or whose state, a user has changed since the rules ended them.
        n_tries_before: How many tries a task instance had had when it was last cleared.
        n_successes: How often each task instance has succeeded by the rules.
        n_failures: How often each task instance has failed by the rules, with a try.
        run_ends: When each run has ended by the rules, by its key and state. One that was cleared may end once more in
            the same virtual instant, which is the same end for those who hear of it.
    """

    def __init__(self) -> None:
        self.starts: dict[RunKey, Start] = {}
        self.given: set[Any] = set()
        self.waiting_again: set[Any] = set()
        self.given_runs: set[RunKey] = set()
        self.n_tries_before: defaultdict[Any, int] = defaultdict(int)
        self.n_successes: Counter[Any] = Counter()
        self.n_failures: Counter[Any] = Counter()
        self.run_ends: defaultdict[Any, set[int | None]] = defaultdict(set)

    def note_task(self, query: str, before: TaskRow | None, row: TaskRow, *, stop: str | None) -> None:
        """A task instance has changed, perhaps of a run that is being stopped."""
        key = row[:4]
        self._note_wait(query, before, row)
        if is_edit(query):
            if row.state in ENDED:
                self.given.add(key)
            else:
                self.given.discard(key)
                self.n_tries_before[key] = row.try_number
        elif before is None or (before.state, before.token) != (row.state, row.token):
            (self.given.add if stop is not None and row.state in ENDED else self.given.discard)(key)
            self.n_successes[key] += row.state == "success"
            waited = before is not None and before.state in PAUSED_TASK_STATES and before.token == row.token
            # A task that waits between two processes fails with a run that a person ends, without a callback.
            is_ended = waited and _is_by_hand(stop)
            self.n_failures[key] += row.state == "failed" and row.token is not None and not is_ended

    def _note_wait(self, query: str, before: TaskRow | None, row: TaskRow) -> None:
        key, start = row[:4], self.starts.get(row[:2])
        # The loss of a try and the wait after it may be stored together.
        waited = before is not None and before.state is not None and before.state not in ENDED
        if start is not None and waited and row.state is None:
            self.waiting_again.add(key)
            self.starts[key[:2]] = start._replace(under_way=start.under_way - {key[2:]})
        if is_edit(query) or row.state in ("scheduled", "queued"):
            self.waiting_again.discard(key)

    def note_run(self, query: str, before: RunRow | None, run: RunRow) -> None:
        """A run has changed."""
        if before is not None and before.state != run.state and not is_edit(query):
            self.given_runs.discard(run[:2])
            # A run that a person stops calls no callback of its DAG.
            if run.state in ENDED_RUNS and not _is_by_hand(run.stop):
                self.run_ends[*run[:2], run.state].add(run.ended_at)

    def note_edit(self, key: RunKey, stored: Stored, decisions: dict[Instance, Decision]) -> None:
        """An edit has changed a run or tasks of it."""
        rows = [row for row in stored.tasks.values() if row[:2] == key]
        self.starts[key] = Start(
            {(row.task_id, row.map_index): row.state if row.state in ENDED else None for row in rows},
            {(row.task_id, row.map_index): row.result_length for row in rows},
            frozenset(
                (row.task_id, row.map_index)
                for row in rows
                if row.state not in ENDED and row.state not in (None, "restarting")
            ),
            decisions,
        )
        if stored.runs[key].state in ENDED_RUNS:
            self.given_runs.add(key)
        else:
            self.given_runs.discard(key)


def edited_runs(query: str, tasks: Mapping[Any, Any], runs: Mapping[Any, Any], stored: Stored) -> list[RunKey]:
    """Return the runs that a call of the database has edited, given what was stored before."""
    if not is_edit(query):
        return []
    changed = {key[:2] for key, row in stored.tasks.items() if tasks.get(key) != row}
    changed |= {key for key, run in stored.runs.items() if runs.get(key) != run}
    return sorted(changed)
