"""The check that nothing waits that could go on, while nothing is ready to run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from asynsched.states import COUNTED_TASK_STATES, FINISHED_TASK_STATES, SLOT_TASK_STATES
from tests.faults.simulated.stored import Stored, TaskRow

SLOT_STATES = frozenset(str(state) for state in SLOT_TASK_STATES)
ENDED = frozenset(str(state) for state in FINISHED_TASK_STATES)
MOST_CALLBACKS = 4
"""Callbacks that run at once: the setting's default."""


class Use:
    """The used slots of every limit."""

    def __init__(self, exploration: Any, stored: Stored) -> None:
        self._world = exploration.world
        self._people = exploration.people
        active = [row for row in stored.tasks.values() if row.state in SLOT_STATES]
        self.n_tasks = len(active)
        self.pools: Counter[str] = Counter()
        for row in active:
            self.pools[row.pool] += row.pool_slots
        for row in stored.tasks.values():
            if row.state == "deferred" and row.pool in self._world.pools_with_deferred:
                self.pools[row.pool] += row.pool_slots
        self.of_run = Counter(row[:2] for row in active)
        self.of_task = Counter(
            (row.dag_id, row.task_id) for row in stored.tasks.values() if row.state in COUNTED_TASK_STATES
        )
        self.runs = Counter(run.dag_id for run in stored.runs.values() if run.state == "running")

    def limits(self, parallelism: int | None, pool_slots: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
        """Yield each limit: its name, how much there is of it, how much is taken.

        Args:
            pool_slots: The slots of each pool.
            parallelism: None where there are several schedulers: who takes runs over has more for a moment.
        """
        if parallelism is not None:
            yield "parallelism", parallelism, self.n_tasks
        for pool, slots in self.pools.items():
            yield f"the pool {pool}", pool_slots[pool], slots
        for (dag_id, run_id), n_used in self.of_run.items():
            yield f"max_active_tasks of {dag_id} {run_id}", self._max_active_tasks(dag_id), n_used
        for (dag_id, task_id), n_used in self.of_task.items():
            yield f"max_active_tis_per_dag of {dag_id} {task_id}", self._max_of_task(dag_id, task_id), n_used
        for dag_id, n_used in self.runs.items():
            yield f"max_active_runs of {dag_id}", self._world.dags[dag_id].max_active_runs or 16, n_used

    def has_room(self, row: TaskRow, parallelism: int) -> bool:
        """Return whether every limit of a task instance has room for it."""
        return (
            row.dag_id not in self._people.paused
            and self.n_tasks < parallelism
            and self.pools[row.pool] + row.pool_slots <= self._people.pools[row.pool]
            and self.of_run[row[:2]] < self._max_active_tasks(row.dag_id)
            and self.of_task[row.dag_id, row.task_id] < self._max_of_task(row.dag_id, row.task_id)
        )

    def has_room_for_run(self, dag_id: str) -> bool:
        """Return whether another run of a DAG may start."""
        is_paused = dag_id in self._people.paused
        return not is_paused and self.runs[dag_id] < (self._world.dags[dag_id].max_active_runs or 16)

    def _max_active_tasks(self, dag_id: str) -> int:
        return self._world.dags[dag_id].max_active_tasks or 16

    def _max_of_task(self, dag_id: str, task_id: str) -> int:
        return self._world.task(dag_id, task_id).max_active_tis_per_dag or 1000


def complaints(exploration: Any, stored: Stored) -> Iterator[str]:
    """Yield the things that could go on, and do not."""
    keepers = [site.keeper for site in exploration.sites.values()]
    live = {token for keeper in keepers for token in keeper.live}
    ends = {token for keeper in keepers for token in keeper.ends}
    elsewhere = exploration.elsewhere
    tickets = {} if elsewhere is None else elsewhere.tickets.open
    use = Use(exploration, stored)
    # Another try of the same task instance may still run elsewhere.
    held_up = {row.instance for row in tickets.values() if row.instance is not None}
    held_up_tokens = {row.token for row in stored.tasks.values() if row[:4] in held_up}
    put_off = set() if elsewhere is None else elsewhere.put_off
    known = live | ends | tickets.keys() | put_off
    yield from _of_tasks(exploration, stored, use, known | held_up_tokens)
    # A scheduler that is full leaves queued runs to others.
    may_start = len(keepers) == 1 or use.n_tasks < exploration.settings.parallelism
    processes = [
        one for keeper in keepers for one in keeper.live.values() if one.launch.task_id and not one.launch.callback
    ]
    busy = {(one.launch.run.dag_id, one.launch.run.run_id) for one in processes}
    busy |= {instance[:2] for instance in held_up}
    yield from _of_runs(stored, use, busy, may_start=may_start)
    yield from _of_deferred(exploration, stored)
    yield from _of_callbacks(stored, known)
    yield from _of_processes(stored, processes)
    if exploration.people.are_busy:
        yield from _of_requests(stored, busy)
    if elsewhere is not None:
        yield from elsewhere.tickets.complaints()
    for token in ends:
        yield f"the end of {token} is reported, and not taken"


def _of_tasks(exploration: Any, stored: Stored, use: Use, known: set[str]) -> Iterator[str]:
    now = exploration.clock.now().timestamp() * 1e6
    for row in stored.tasks.values():
        name = f"{row.dag_id} {row.run_id} {row.task_id}[{row.map_index}]"
        if row.state == "scheduled" and use.has_room(row, exploration.settings.parallelism):
            yield f"{name} is ready, all its limits have room, and it waits"
        elif row.state in ("up_for_retry", "up_for_reschedule") and (row.next_try_at or 0) <= now:
            yield f"the next try of {name} is due, and it waits"
        elif row.state in SLOT_STATES and row.token not in known:
            yield f"{name} is {row.state}, and no process is there for it"


def _of_deferred(exploration: Any, stored: Stored) -> Iterator[str]:
    now = exploration.clock.now()
    sites = exploration.sites.values()
    hosts = [one for site in sites for one in site.keeper.live.values() if one.launch.trigger_host is not None]
    if any(host.process.is_stopped for host in hosts):
        return  # a hang is not noticed before a long silence
    for row in stored.tasks.values():
        if row.state != "deferred":
            continue
        name = f"{row.dag_id} {row.run_id} {row.task_id}[{row.map_index}]"
        if row.next_try_at is not None and row.next_try_at <= now.timestamp() * 1e6:
            yield f"{name} is deferred, its time is over, and it waits"
        elif any(row.token in host.outcomes for host in hosts):
            yield f"{name} is deferred, its trigger has fired, and it waits"
        elif not any(row.token in host.triggers for host in hosts):
            wanted = [site.scheduler.services.triggerer._host_of.get(row.token) for site in sites]
            if not any(host is not None and host.token is None and not host.may_launch(now) for host in wanted):
                yield f"{name} is deferred, and no host runs its trigger"


def _of_processes(stored: Stored, live: list[Any]) -> Iterator[str]:
    wanted = {row.token for row in stored.tasks.values() if row.state in ("queued", "running")}
    for one in live:
        if one.launch.token not in wanted and not one.is_ending:
            yield f"the process of {one.launch.token} goes on, and no scheduler waits for it"


def _of_requests(stored: Stored, busy: set[Any]) -> Iterator[str]:
    # A run that is to end waits for its processes, and later requests about it wait for its end.
    for number, *run in stored.requests():
        if tuple(run) not in busy:
            yield f"the request {number} of {'.'.join(run)} is not done"


def _of_runs(stored: Stored, use: Use, busy: set[Any], *, may_start: bool) -> Iterator[str]:
    """Yield the runs that wait to begin or to end; busy ones have processes."""
    for run in stored.runs.values():
        name = f"the run {run.dag_id} {run.run_id}"
        if run.state == "queued" and use.has_room_for_run(run.dag_id) and may_start:
            yield f"{name} is queued, its DAG has room, and it waits"
        elif (
            run.state == "running"
            and run[:2] not in busy
            and all(row.state in ENDED for row in stored.tasks.values() if row[:2] == run[:2])
        ):
            yield f"all tasks of {name} have ended, and it has not"


def _of_callbacks(stored: Stored, known: set[str]) -> Iterator[str]:
    n_running = sum(state == "running" for _, state, _ in stored.callbacks)
    for number, state, token in stored.callbacks:
        if state == "running" and token not in known:
            yield f"the callback {number} is running, and no process is there for it"
        elif state == "queued" and n_running < MOST_CALLBACKS:
            yield f"the callback {number} is queued, and waits"
