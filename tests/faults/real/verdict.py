"""The errors in the end: in runs, states, tries, executions, pools, and remains."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.schema import dag_run, task_instance, task_instance_history
from sandbox.supervision.attempts import JOURNAL
from tests.faults.real.faults import RESTART, Tally
from tests.faults.real.ledger import Execution, Ledger, TaskInstance, overcommitments, overlaps
from tests.faults.real.workload import N_RUNS, Wave, expected_of
from tests.support.up import Site

ENDED = ("success", "failed")
LEAVE_SECONDS = 5.0
MEANINGFUL_KILLS = 10
"""Of fewer kills, the share of SIGKILLs says nothing."""


class StoredTask(NamedTuple):
    """A task instance in the database in the end."""

    ti: TaskInstance
    state: str | None
    try_number: int
    reason: str
    earlier_tries: tuple[int, ...]


class Stored(NamedTuple):
    """The state of the database in the end."""

    runs: dict[tuple[str, str], str]
    tasks: list[StoredTask]


def ended_runs(conn: Connection) -> tuple[int, int]:
    """Return how many runs have ended, and how many task instances have a state: it grows while anything goes on."""
    runs = sa.select(sa.func.count()).where(dag_run.c.state.in_(ENDED)).select_from(dag_run)
    tasks = sa.select(sa.func.count(), sa.func.sum(task_instance.c.try_number)).select_from(task_instance)
    n_tasks, n_tries = conn.execute(tasks).one()
    return conn.execute(runs).scalar_one(), n_tasks + int(n_tries or 0)


def stored(conn: Connection) -> Stored:
    """Return all runs and task instances."""
    runs = {row.id: row for row in conn.execute(sa.select(dag_run))}
    earlier: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for row in conn.execute(sa.select(task_instance_history)):
        earlier[row.dag_run_id, row.task_id, row.map_index].append(row.try_number)
    tasks = [_stored_task(row, runs[row.dag_run_id], earlier) for row in conn.execute(sa.select(task_instance))]
    return Stored({(row.dag_id, row.run_id): row.state for row in runs.values()}, tasks)


def _stored_task(row: Any, run: Any, earlier: dict[tuple[int, str, int], list[int]]) -> StoredTask:
    tries = earlier[row.dag_run_id, row.task_id, row.map_index]
    ti = TaskInstance(run.dag_id, run.run_id, row.task_id, row.map_index)
    return StoredTask(ti, row.state, row.try_number, row.reason, tuple(sorted(tries)))


def problems(found: Stored, ledger: Ledger, waves: Iterable[Wave]) -> list[str]:
    """Return everything that the rules do not allow."""
    dag_ids = [dag_id for wave in waves for dag_id in wave.dag_ids]
    return [
        *_wrong_runs(found, dag_ids),
        *_wrong_tasks(found),
        *_wrong_tries(found, ledger),
        *ledger.complaints,
        *overlaps(ledger.executions),
        *overcommitments(ledger.executions),
    ]


def _wrong_runs(found: Stored, dag_ids: list[str]) -> Iterator[str]:
    per_dag = Counter(dag_id for dag_id, _ in found.runs)
    for dag_id in dag_ids:
        if per_dag[dag_id] != N_RUNS:
            yield f"DAG {dag_id} has {per_dag[dag_id]} runs, not {N_RUNS}"
    for (dag_id, run_id), state in found.runs.items():
        expected, _ = expected_of(dag_id)
        if state != expected:
            yield f"run {dag_id} {run_id} is {state}, not {expected}"


def _wrong_tasks(found: Stored) -> Iterator[str]:
    states: dict[tuple[str, str], dict[str, list[tuple[int, str | None, str]]]] = {
        run: defaultdict(list) for run in found.runs
    }
    for task in found.tasks:
        states[task.ti[:2]][task.ti.task_id].append((task.ti.map_index, task.state, task.reason))
    for run, tasks in states.items():
        _, expected = expected_of(run[0])
        for task_id, wanted in expected.items():
            indexes = range(wanted.n_mapped) if wanted.n_mapped >= 0 else [-1]
            there = sorted(tasks.get(task_id, []))
            if [(index, state) for index, state, _ in there] != [(index, wanted.state) for index in indexes]:
                yield f"task {run[0]} {run[1]} {task_id} is {there}, not {wanted.state} for each of {list(indexes)}"


def _wrong_tries(found: Stored, ledger: Ledger) -> Iterator[str]:
    executed = ledger.by_task_instance
    for task in found.tasks:
        wanted = expected_of(task.ti.dag_id)[1].get(task.ti.task_id)
        runs = executed.pop(task.ti, [])
        if wanted is None:
            continue
        name = " ".join(map(str, task.ti))
        if {*task.earlier_tries, task.try_number} != set(range(min(1, task.try_number), task.try_number + 1)):
            yield f"task {name} ended with try {task.try_number}, and its earlier tries are {task.earlier_tries}"
        if not wanted.has_body:
            if runs:
                yield f"task {name} is {task.state}, and ran"
            continue
        yield from _wrong_executions(name, task, runs)
        if task.state == "failed" and not ledger.callbacks[task.ti]:
            yield f"task {name} failed, and its callback was never called"
    for ti in executed:
        yield f"task {' '.join(map(str, ti))} ran, and is not in the database"


def _wrong_executions(name: str, task: StoredTask, runs: list[Execution]) -> Iterator[str]:
    if not runs:
        yield f"task {name} is {task.state}, and never ran"
        return
    last = max(runs, key=lambda execution: execution.started_at)
    how = "ok" if task.state == "success" else "raised"
    if (last.try_number, last.how) != (task.try_number, how):
        yield (
            f"task {name} is {task.state} after try {task.try_number}; its last execution was try {last.try_number},"
            f" {last.how}"
        )
    numbers = [run.try_number for run in sorted(runs, key=lambda execution: execution.started_at)]
    if numbers != sorted(numbers):
        yield f"tries of task {name} ran in the order {numbers}"


def too_little(tally: Tally, *, has_server: bool) -> list[str]:
    """Return the faults that were too rare for the campaign to prove anything."""
    found = []
    if tally.n_kills >= MEANINGFUL_KILLS and 2 * tally.n_sigkills < tally.n_kills:
        found.append(f"{tally.n_sigkills} of {tally.n_kills} kills were SIGKILL")
    if has_server and not tally.database[RESTART]:
        found.append("PostgreSQL was never restarted")
    return found


def wrong_edit(tags: object, n_edits: int) -> list[str]:
    """Return the errors in the final tags of a DAG whose file was edited that many times."""
    wanted = [f"edit-{n_edits}"]
    return [] if tags == wanted else [f"the last edit of edited_1.py is not known: its tags are {tags}, not {wanted}"]


def left_behind(sites: Iterable[Site], temporary: Path) -> Iterator[str]:
    """Return processes, sockets and temporary files that are still there when every scheduler has stopped well."""
    for site in sites:
        yield from (f"process left: {process}" for process in _processes_that_stay(site))
        for folder in ("attempts", "tmp"):
            yield from (f"file left: {path}" for path in (site.home / folder).iterdir() if not _is_empty_journal(path))
        yield from (f"socket left: {path}" for path in site.home.rglob("*") if path.is_socket())
        sockets = Path("/proc/net/unix").read_text()
        yield from (f"socket left: {line}" for line in sockets.splitlines() if str(site.root) in line)
    yield from (f"temporary file left: {path}" for path in temporary.iterdir())


def _is_empty_journal(path: Path) -> bool:
    return path.name == JOURNAL and path.stat().st_size == 0


def _processes_that_stay(site: Site) -> list[str]:
    """Return the processes that do not go: to the kernel, the end of one takes a moment on a busy machine."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := site.processes()) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
    return [str(process) for process in left]
