"""In which states everything must have ended, found from the ledger and the rules alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from tests.faults.simulated.decisions import EndedTry
from tests.faults.simulated.edits import ENDED
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.worlds import inline_database
from tests.support.naive_evaluator import NaiveEvaluator

COUNTED = frozenset({"success", "failed", "skipped", "killed"})
"""Ends of a try that use up its number."""


def check_ends(exploration: Any, tasks: Mapping[Any, Any], runs: Mapping[Any, Any]) -> None:
    """Compare the stored states with the necessary results of the events. Raises Violation."""
    for problem in _problems(exploration, tasks, runs):
        raise Violation(problem)


def _problems(exploration: Any, tasks: Mapping[Any, Any], runs: Mapping[Any, Any]) -> Iterator[str]:
    stopped = {
        (dag_id, run_id) for dag_id, run_id in _query("SELECT dag_id, run_id FROM dag_run WHERE stop IS NOT NULL")
    }
    history = _history()
    for key, executions in exploration.ledger.executions.items():
        if key not in tasks:
            yield f"{key} ran, and has no row"
            continue
        yield from _lost_tries(key, executions, {*history[key], tasks[key].token})
    for key, row in tasks.items():
        yield from _wrong_tries(exploration, row, history[key])
        if key[:2] not in stopped:
            yield from _wrong_end(exploration, row)
    for key, run in runs.items():
        rows = [row for row in tasks.values() if row[:2] == key]
        if key not in stopped:
            yield from _wrong_run(exploration, run, rows)
        yield from (
            f"{key} has ended, and its task {row[2:4]} is {row.state}" for row in rows if row.state not in ENDED
        )
    yield from _wrong_callbacks(exploration)
    yield from _wrong_creations(exploration, runs)


def _lost_tries(key: Any, executions: list[Any], stored: set[str]) -> Iterator[str]:
    for execution in executions:
        if execution.end in COUNTED and execution.token not in stored:
            yield f"the try {execution.token} of {key} ended as {execution.end}, and was lost"


def _wrong_tries(exploration: Any, row: Any, history: dict[str, int]) -> Iterator[str]:
    tries = history | ({row.token: row.try_number} if row.token and row.try_number else {})
    possible = [sorted(tries.values())]
    if row[:4] in exploration.invariants.edits.given | exploration.invariants.decisions.left_out:
        # Its last try may have been one that has used no number up.
        possible.append(sorted(history.values()))
    if all(numbers != list(range(1, len(numbers) + 1)) for numbers in possible):
        yield f"the tries of {row[:4]} are {possible[0]}"


def _executions(exploration: Any, row: Any) -> list[Any]:
    """Return what ran of a task instance; nothing if its last try was over before a worker had it."""
    if exploration.elsewhere is not None and row.token in exploration.elsewhere.tickets.never_claimed:
        return []
    found: list[Any] = exploration.ledger.executions.get(row[:4], [])
    return found


def _wrong_end(exploration: Any, row: Any) -> Iterator[str]:
    edits, key = exploration.invariants.edits, row[:4]
    if key in edits.given | exploration.invariants.decisions.left_out or row.state == "removed":
        return
    executions = _executions(exploration, row)
    n_retries = exploration.world.task(row.dag_id, row.task_id).retries
    last = executions[-1].end if executions else None
    if row.token is None:
        if executions and key[:2] not in edits.starts:
            yield f"{row[:4]} ran, and has no try"
    elif executions and executions[-1].token != row.token:
        yield f"{row[:4]} has the try {row.token}, and its last one was {executions[-1].token}"
    elif _is_ended_between_tries(exploration, row, last):
        pass
    elif row.state in ("success", "skipped"):
        if last != row.state:
            yield f"{row[:4]} is {row.state}, and its last try ended as {last}"
    elif row.try_number - edits.n_tries_before[key] - row.machine_kills <= n_retries:
        yield f"{row[:4]} is {row.state} after {row.try_number} tries, and had another one left"
    elif last == "success":
        yield f"{row[:4]} is {row.state}, and its last try was a success"


def _is_ended_between_tries(exploration: Any, row: Any, last: str | None) -> bool:
    """Whether its trigger has ended it, or its trigger rule, after an upstream had been cleared."""
    if last == "deferred" and row.state in exploration.ledger.deferrals[row.token].ends:
        return True
    edits = exploration.invariants.edits
    start = edits.starts.get(row[:2])
    # The end of the try, the wait after it and the end by the rule may be stored together.
    has_waited = last == "up_for_reschedule" and start is not None and row[2:4] in start.under_way
    return (has_waited or row[:4] in edits.waiting_again) and row.state in ("upstream_failed", "skipped")


def _wrong_run(exploration: Any, run: Any, rows: list[Any]) -> Iterator[str]:
    dag, edits = exploration.world.version(run.dag_id, run.version_hash), exploration.invariants.edits
    start = edits.starts.get(run[:2])
    found = {(row.task_id, row.map_index): row.state for row in rows}
    if start is not None and run[:2] in edits.given_runs:
        if found != start.states:
            yield f"{run[:2]} had ended with {start.states}, and is {found}"
        return
    groups = exploration.invariants.ended_together[run[:2]]
    begun = _Course(NaiveEvaluator(dag) if start is None else NaiveEvaluator(dag, *start), {})
    begun.naive.take_up({})
    if found not in _possible_ends(begun, (), groups, set()):
        expected = _expected(begun, chain.from_iterable(groups))
        wrong = {key: (found.get(key), expected.get(key)) for key in sorted(found.keys() | expected)}
        wrong = {key: states for key, states in wrong.items() if states[0] != states[1]}
        yield f"{run[:2]} ended with states that its rules do not give (found, expected): {wrong}"
    leaves = {task.task_id for task in dag.tasks if not task.downstream_task_ids}
    has_failed = any(row.state in ("failed", "upstream_failed") for row in rows if row.task_id in leaves)
    if run.state != ("failed" if has_failed else "success"):
        yield f"{run[:2]} ended as {run.state}"


class _Course(NamedTuple):
    """A run, as it follows from the tries that have ended since people have last edited it."""

    naive: NaiveEvaluator
    ran: dict[Any, Any]

    def after(self, one: EndedTry) -> "_Course | None":
        """Return the course after one more end; None: that try should not have run."""
        settled_as = self.naive.finished().get(one.instance)
        if one.instance not in self.ran and settled_as not in (None, one.state):
            return None
        naive, ran = self.naive.copy(), self.ran | {one.instance: (one.state, one.result_length)}
        naive.take_up(ran, {} if one.decided is None else {one.instance: one.decided}, one.going_on)
        return _Course(naive, ran)


def _possible_ends(
    course: _Course, ended: tuple[EndedTry, ...], later: list[list[EndedTry]], seen: set[Any]
) -> Iterator[dict[Any, Any]]:
    """Yield the states that a run may end with: first those of the order in which its ends were stored.

    Some rules depend on the first end, and ends that were stored together may have come in any order. Where two orders
    lead to the same, `seen` has it, and it is followed once.
    """
    if not ended and not later:
        yield course.naive.finished()
        return
    ended, later = (ended, later) if ended else (tuple(later[0]), later[1:])
    for one in ended:
        left = tuple(other for other in ended if other is not one)
        after = course.after(one)
        if after is None:
            continue
        known = len(later), tuple(other.instance for other in left), after.naive.known()
        if known not in seen:
            seen.add(known)
            yield from _possible_ends(after, left, later, seen)


def _expected(course: _Course, ended: Iterable[EndedTry]) -> dict[Any, Any]:
    """Return the states that follow from how tries have ended in this order, or the one that must not have run."""
    for one in ended:
        after = course.after(one)
        if after is None:
            return {one.instance: course.naive.finished()[one.instance]}
        course = after
    return course.naive.finished()


def _wrong_callbacks(exploration: Any) -> Iterator[str]:
    query = (
        "SELECT r.dag_id, r.run_id, c.task_id, c.map_index, c.event, c.state, count(*) FROM callback_request c"
        " JOIN dag_run r ON r.id = c.dag_run_id GROUP BY 1, 2, 3, 4, 5, 6"
    )
    requested: Counter[Any] = Counter()
    for *key, state, n_requests in _query(query):
        requested[tuple(key)] += n_requests
        if state == "success" and exploration.ledger.callbacks[tuple(key)].count("success") < n_requests:
            yield f"the callback {key} is said to have run, and did not"
    edits = exploration.invariants.edits
    for (dag_id, run_id, state), ends in edits.run_ends.items():
        event = f"on_{'success' if state == 'success' else 'failure'}"
        n_requests = requested[dag_id, run_id, "", -1, event]
        if event in exploration.world.dags[dag_id].callbacks and n_requests != len(ends):
            yield f"{event} of {dag_id} {run_id} was requested {n_requests} times, and due {len(ends)} times"
    for key, n_failures in edits.n_failures.items():
        n_requests = requested[(*key, "on_failure")]
        if "on_failure" in exploration.world.task(key[0], key[2]).callbacks and n_requests != n_failures:
            yield f"on_failure of {key} was requested {n_requests} times, and due {n_failures} times"


def _wrong_creations(exploration: Any, runs: Mapping[Any, Any]) -> Iterator[str]:
    """Runs by schedule and by assets: none is missing, none is there twice."""
    if "scheduled" in exploration.world.dags:
        n_runs = sum(dag_id == "scheduled" and run_id.startswith("scheduled__") for dag_id, run_id in runs)
        if n_runs != 4:
            yield f"{n_runs} runs were created of the four that the schedule calls for"
    n_updates = sum(n for key, n in exploration.invariants.edits.n_successes.items() if key[2] == "write")
    [(n_events,)] = _query("SELECT count(*) FROM asset_event")
    if n_events != n_updates:
        yield f"{n_updates} updates of an asset made {n_events} events"
    [(n_waiting,)] = _query("SELECT count(*) FROM asset_dag_run_queue")
    if n_waiting:
        yield f"{n_waiting} updates of assets still wait"


def _history() -> dict[Any, dict[str, int]]:
    found: dict[Any, dict[str, int]] = defaultdict(dict)
    query = (
        "SELECT r.dag_id, r.run_id, h.task_id, h.map_index, h.token, h.try_number FROM task_instance_history h"
        " JOIN dag_run r ON r.id = h.dag_run_id"
    )
    for *key, token, number in _query(query):
        found[tuple(key)][token] = number
    return found


def _query(query: str) -> list[Any]:
    return inline_database().connection.open().execute(query).fetchall()
