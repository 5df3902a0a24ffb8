"""Tasks that are ready to run, and wait for room: a task that cannot start never blocks one that can.

A task waits for slots of its pool, and for room under the other *limits* that it shares: the parallelism, Airflow's
`max_active_*`, its executor, and its DAG's pause.

Every limit but the pool's makes a *lane*: the tasks that share pool, slots and limits wait in one heap, in one total
order (priority weight, then the run's age, then name). A lane is open while its limits have room. A pool holds its
open lanes in heaps, by the slots that they need and the executor that they are for. So granting the best task that fits
costs a few heap operations, no matter how many others wait: neither a full pool nor one DAG's backlog is ever scanned.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from shlex import quote
from types import MappingProxyType

from asynsched.executors.names import executor_called
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import Route
from asynsched.scheduling.evaluation.changes import PARKED, Holding
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.states import PARKED_TASK_STATES, SLOT_TASK_STATES, TaskInstanceState
from asynsched.store.runs.pools import UNLIMITED, OwnUse, Settlement, SlotGrant
from asynsched.timers import has_come

LONGEST_RETRY = timedelta(seconds=1)
"""What other schedulers have locked at the moment is tried again sooner than that."""


@dataclass(eq=False)
class Limit:
    """At most `capacity` of the tasks that share it may be queued or running; None means no limit.

    Attributes:
        release: The event that lets held tasks start, as text for a person.
        used: How much the tasks of this scheduler take.
        elsewhere: How much the tasks of other schedulers take, as last read.
        is_busy: Whether another scheduler is settling the limit at this moment.
        counts_parked: Whether tasks that wait for a trigger or an answer count, too, as in Airflow 3.3.
        is_wide: Whether lanes of all DAGs may share the limit. Such a limit closes no lane, but is asked for room when
            lanes compete, so it costs the same however many there are.
    """

    name: str
    capacity: int | None
    release: str = "one of these ends"
    counts_parked: bool = False
    is_wide: bool = False
    used: int = 0
    elsewhere: int = 0
    is_busy: bool = False
    lanes: set[Lane] = field(default_factory=set)

    def has_room(self, slots: int = 1) -> bool:
        return not self.is_busy and (self.capacity is None or self.taken + slots <= self.capacity)

    @property
    def taken(self) -> int:
        """How much of the limit is not free."""
        return self.used + self.elsewhere

    def holds(self, task: ActiveTask) -> bool:
        """Return whether a task that shares the limit counts against it now."""
        return task.state in SLOT_TASK_STATES or (self.counts_parked and task.state in PARKED_TASK_STATES)

    def slots_of(self, task: ActiveTask) -> int:
        """Return the number of slots that a task takes of the limit."""
        return 1


Order = tuple[object, ...]
Entry = tuple[Order, int, "Lane"]
"""A lane that competes for its pool's slots: the order and the number of its head, or of a former one; the lane."""
Needs = tuple[int, tuple[Limit, ...]]
"""How many slots of its pool a lane needs, and which limits it shares with lanes of all DAGs."""


class Lane:
    """Tasks that wait under the same limits, best first."""

    def __init__(self, pool: Pool, slots: int, limits: tuple[Limit, ...]) -> None:
        self.pool = pool
        self.slots = slots
        self.limits = limits
        self.needs: Needs = (slots, tuple(limit for limit in limits if limit.is_wide))
        self.closing = tuple(limit for limit in limits if not limit.is_wide)
        self.heap: list[tuple[Order, int, ActiveTask]] = []
        self.offered: int | None = None
        """Number of the entry by which it competes in the pool now: that of its head, or of a former one."""

    @property
    def is_open(self) -> bool:
        """Whether every limit has room, apart from the pool and the wide limits."""
        return all(limit.has_room() for limit in self.closing)

    def head(self) -> tuple[Order, int, ActiveTask] | None:
        """Return the best entry that still waits."""
        while self.heap and self.heap[0][2].state is not TaskInstanceState.SCHEDULED:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class Pool(Limit):
    """A pool's slots, and the lanes that wait for them: heaps of (head's order, lane), by their needs."""

    def __init__(self, name: str, capacity: int | None) -> None:
        super().__init__(f"pool {name}", capacity)
        self.waiting: dict[Needs, list[Entry]] = {}
        self.deferred = 0
        """Slots of deferred tasks; they count where `include_deferred` says so."""
        self.include_deferred = False
        self.exists = True

    @property
    def taken(self) -> int:
        return super().taken + self.deferred if self.include_deferred else super().taken

    def holds(self, task: ActiveTask) -> bool:
        return super().holds(task) or (self.include_deferred and task.state is TaskInstanceState.DEFERRED)

    def slots_of(self, task: ActiveTask) -> int:
        return task.route.pool_slots

    def offer(self, lane: Lane) -> None:
        """Enter an open lane's head into the competition for the pool's slots."""
        head = lane.head()
        if head is not None and head[1] != lane.offered and lane.is_open:
            lane.offered = head[1]
            heapq.heappush(self.waiting.setdefault(lane.needs, []), (head[0], head[1], lane))

    def best(self, overdue: datetime | None) -> Entry | None:
        """Return the best head among the lanes whose slots are free; None while the slots are kept for a wider task.

        Args:
            overdue: Slots are kept for a task that has been ready since this moment or longer; None: for no task.
        """
        kept_for = self._overdue_entry(overdue)
        if kept_for is not None:
            return kept_for if self.has_room(kept_for[2].slots) else None
        best: Entry | None = None
        for (slots, wide), heap in self.waiting.items():
            if self.has_room(slots) and _have_room(wide):
                head = self._best_of(heap)
                if head is not None and (best is None or head[:2] < best[:2]):
                    best = head
        return best

    def kept_for(self, overdue: datetime | None) -> ActiveTask | None:
        """Return the task for which free slots are kept, because narrower tasks have taken them for too long."""
        entry = self._overdue_entry(overdue)
        return None if entry is None else entry[2].heap[0][2]

    def _overdue_entry(self, overdue: datetime | None) -> Entry | None:
        """Return the head that has waited longest, among those that need several slots and have waited too long."""
        if overdue is None or self.capacity is None:
            return None
        waits = [
            (since, head[1], head)
            for (slots, wide), heap in self.waiting.items()
            if 1 < slots <= self.capacity
            and _have_room(wide)
            and (head := self._best_of(heap)) is not None
            and (since := head[2].heap[0][2].scheduled_at) is not None
            and since <= overdue
        ]
        return min(waits)[2] if waits else None

    @staticmethod
    def _best_of(heap: list[Entry]) -> Entry | None:
        while heap:
            _, number, lane = heap[0]
            head = lane.head() if lane.offered == number and lane.is_open else None
            if head is None:
                # A better task of the lane competes, or the lane is closed or empty: it offers itself once it changes.
                heapq.heappop(heap)
                if lane.offered == number:
                    lane.offered = None
            elif head[1] == number:
                return heap[0]
            else:  # that task was granted or withdrawn
                lane.offered = head[1]
                heapq.heapreplace(heap, (head[0], head[1], lane))
        return None


class ReadyQueues:
    """All ready tasks that were not granted yet.

    Args:
        max_active_tasks: How many tasks of one run may be active, if its DAG does not say.
        executors: How many tasks each executor takes, by name, the default first; empty: one executor takes all tasks.
        keep_slots_after: How long a task waits for slots of its pool before freed slots are kept for it; None: slots
            are never kept, and every task that fits starts.
    """

    def __init__(
        self,
        parallelism: int,
        max_active_tasks: int,
        executors: Mapping[str, int] = MappingProxyType({}),
        keep_slots_after: timedelta | None = None,
    ) -> None:
        self.parallelism = Limit("parallelism", parallelism)
        self._max_active_tasks = max_active_tasks
        self._executors = {
            name: Limit(f"executor {name}", capacity, is_wide=True) for name, capacity in executors.items()
        }
        self._default_executor = next(iter(executors), None)
        self._runs: dict[DagRunKey, Limit] = {}
        self._dags: dict[str, Limit] = {}
        self._tasks: dict[str | DagRunKey, dict[str, tuple[Limit, int]]] = {}
        """The limits of single tasks, by DAG or by run."""
        self._keep_slots_after = keep_slots_after
        self.pools: dict[str, Pool] = {}
        self._lanes: dict[tuple[Pool, int, tuple[Limit, ...]], Lane] = {}
        self._numbers = count()
        self._busy: list[Limit] = []
        self.retry_at: datetime | None = None
        """When to retry the limits that other schedulers were settling; None for none."""

    def pool(self, name: str) -> Pool:
        """Return a pool; one without slots if it does not exist."""
        if name not in self.pools:
            self.pools[name] = Pool(name, 0)
            self.pools[name].exists = False
        return self.pools[name]

    def obstacle(self, route: Route) -> str:
        """Return why a try can never start with the present pools and executors; empty if it can."""
        name, slots = route.pool, route.pool_slots
        pool = self.pool(name)
        if pool.capacity is None or slots <= pool.capacity:
            executor = route.executor or self._default_executor
            limit = None if self._default_executor is None or executor is None else self._executor(executor)
            return limit.name if limit is not None and limit.capacity == 0 else ""
        if pool.capacity == 0:
            what = f"the pool {name!r} has no slots" if pool.exists else f"there is no pool {name!r}"
            return f"{what}: `asynsched pools set {quote(name)} SLOTS`"
        return f"it needs {slots} slots, and its pool {name!r} has {pool.capacity}"

    def kept_for(self, task: ActiveTask, now: datetime) -> ActiveTask | None:
        """Return the other task for which the free slots of a task's pool are kept."""
        other = self.pool(task.route.pool).kept_for(self._overdue(now))
        return None if other is task else other

    def limits_of(self, task: ActiveTask) -> tuple[Limit, ...]:
        """Return all limits of a task, its pool included."""
        return (self.pool(task.route.pool), self.parallelism, *self._of(task))

    def lacking(self, task: ActiveTask) -> list[Limit]:
        """Return the limits that have no room for a task."""
        return [limit for limit in self.limits_of(task) if not limit.has_room(limit.slots_of(task))]

    def resize_pools(self, capacities: dict[str, int | None], include_deferred: Collection[str] = ()) -> None:
        """Set the pools' slots, and which pools count deferred tasks; a pool that is gone has no slots."""
        for name in capacities.keys() | self.pools.keys():
            self.pool(name).capacity = capacities.get(name, 0)
            self.pool(name).exists = name in capacities
            self.pool(name).include_deferred = name in include_deferred

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Hold back a DAG's ready tasks, or release them."""
        limit = self._dag(dag_id)
        limit.capacity = 0 if paused else None
        self._reopen([limit])

    def swap(self, task: ActiveTask, held: Holding, holds: Holding) -> None:
        """Acquire the slots or place of a task instance's new state, and release those of the state before."""
        of_task = self._of(task)
        # Take first: a lane that is full then offers no other task.
        if holds is Holding.SLOTS:
            self.occupy(task, of_task)
        elif holds is Holding.LANE:
            self.add(task, of_task)
        elif holds in PARKED:
            self.park(task, holds, of_task)
        if held is Holding.LANE:
            self.withdrawn(task, of_task)
        elif held is Holding.SLOTS:
            self.release(task, of_task)
        elif held in PARKED:
            self.unpark(task, held, of_task)

    def add(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Enqueue a ready task under its pool and these limits."""
        lane = self._lane(task, limits)
        entry = (_order(task), next(self._numbers), task)
        before = lane.head()
        heapq.heappush(lane.heap, entry)
        if before is None or entry < before:
            lane.pool.offer(lane)

    @property
    def are_waiting(self) -> bool:
        return bool(self._lanes)

    def best(self, now: datetime) -> ActiveTask | None:
        """Return the best task for which every limit has room; None without such a task."""
        if not self.parallelism.has_room():
            return None
        overdue = self._overdue(now)
        bests = [best for pool in self.pools.values() if (best := pool.best(overdue)) is not None]
        return min(bests, key=lambda best: best[:2])[2].heap[0][2] if bests else None

    def occupy(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Count a queued or running task against its limits."""
        self.pool(task.route.pool).used += task.route.pool_slots
        for limit in (self.parallelism, *limits):
            limit.used += 1

    def release(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Release a task's slots, and let the tasks that wait for them compete. Only full limits have such tasks."""
        full = [limit for limit in limits if not limit.has_room()]
        self.pool(task.route.pool).used -= task.route.pool_slots
        for limit in (self.parallelism, *limits):
            limit.used -= 1
        self._reopen(full)

    def park(self, task: ActiveTask, holds: Holding, limits: tuple[Limit, ...]) -> None:
        """Count a task that waits for a trigger or an answer against the limits that count such tasks."""
        if holds is Holding.TRIGGER:
            self.pool(task.route.pool).deferred += task.route.pool_slots
        for limit in limits:
            limit.used += limit.counts_parked

    def unpark(self, task: ActiveTask, held: Holding, limits: tuple[Limit, ...]) -> None:
        """Undo `park`, and let the tasks that wait for these limits compete."""
        full = [limit for limit in limits if limit.counts_parked and not limit.has_room()]
        if held is Holding.TRIGGER:
            self.pool(task.route.pool).deferred -= task.route.pool_slots
        for limit in limits:
            limit.used -= limit.counts_parked
        self._reopen(full)

    def withdrawn(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Note that a task no longer waits. The pool finds out when it looks at the lane's entry."""
        lane = self._lanes.get((self.pool(task.route.pool), task.route.pool_slots, limits))
        if lane is not None and lane.head() is None:
            self._forget(lane)

    def forget(self, run: ActiveRun) -> None:
        """Drop the limits of a run that is no longer active, with every task that waits under them."""
        limit = self._run(run)
        del self._runs[run.key]
        self._tasks.pop(run.key, None)
        for lane in list(limit.lanes):
            lane.heap.clear()
            self._forget(lane)

    # Limits that other schedulers share

    def grants(self, granted: Iterable[ActiveTask]) -> list[SlotGrant]:
        """Return what granted tasks take of limits shared with other schedulers, in the order of the tasks."""
        grants = {grant.key: grant for grant in map(self._grant, granted)}
        return [grant for grant in grants.values() if grant.pool or grant.task is not None]

    def _grant(self, task: ActiveTask) -> SlotGrant:
        limit = self._shared(task)
        return SlotGrant(
            key=task.row_key,
            pool="" if self.pool(task.route.pool).capacity is None else task.route.pool,
            slots=task.route.pool_slots,
            task=None if limit is None else (task.run.key.dag_id, task.task_id),
            max_active=0 if limit is None else limit.capacity or 0,
        )

    def own_use(self, grants: Sequence[SlotGrant]) -> OwnUse:
        """Return this scheduler's use of the limits, without the grants."""
        slots: Counter[str] = Counter()
        for grant in grants:
            slots[grant.pool] += grant.slots
        n_granted = Counter(grant.task for grant in grants if grant.task is not None)
        pools = {name: self.pool(name) for name in slots if name}
        limits = {task: self._shared_of(task[0]).get(task[1]) for task in n_granted}
        return OwnUse(
            {name: pool.taken - pool.elsewhere - slots[name] for name, pool in pools.items()},
            {task: limit.used - n_granted[task] for task, limit in limits.items() if limit is not None},
        )

    def note_settled(self, settled: Settlement, retry_at: datetime | None) -> None:
        """Note pools' slots and other schedulers' use, and leave limits that they are settling alone until `retry_at`.

        A pool may have changed without a word of it yet: with its old slots, the same tasks would be refused at once.
        """
        for name, slots in settled.capacities.items():
            self.pool(name).capacity = None if slots == UNLIMITED else slots
        for name, used in settled.pools.items():
            self.pool(name).elsewhere = used
        for (dag_id, task_id), n in settled.tasks.items():
            if (limit := self._shared_of(dag_id).get(task_id)) is not None:
                before, limit.elsewhere = limit.elsewhere, n
                if n < before:
                    self._reopen([limit])
        busy: list[Limit] = [self.pool(name) for name in settled.busy_pools]
        busy += [limit for dag_id in settled.busy_dags for limit in self._shared_of(dag_id).values()]
        for limit in busy:
            limit.is_busy = True
        if busy:
            self._busy += busy
            self.retry_at = retry_at

    def try_again(self, now: datetime) -> None:
        """Reopen the limits that others were settling, once it is time."""
        if self.retry_at is None or not has_come(self.retry_at, now, LONGEST_RETRY):
            return
        for limit in self._busy:
            limit.is_busy = False
        self._reopen(self._busy)
        self._busy.clear()
        self.retry_at = None

    def note_elsewhere(self, used: Mapping[str, int]) -> None:
        """Note others' use of the pools, and assume that they use nothing of the other limits any more."""
        for name, pool in self.pools.items():
            pool.elsewhere = used.get(name, 0)
        held_up = [limit for limit in self.all_shared if limit.elsewhere]
        for limit in held_up:
            limit.elsewhere = 0
        self._reopen(held_up)

    # Lanes

    @staticmethod
    def _reopen(limits: Iterable[Limit]) -> None:
        """Return the lanes whose limits may have room now to the competition."""
        for limit in limits:
            if limit.has_room():
                for lane in limit.lanes:
                    lane.pool.offer(lane)

    def _overdue(self, now: datetime) -> datetime | None:
        return None if self._keep_slots_after is None else now - self._keep_slots_after

    def _lane(self, task: ActiveTask, limits: tuple[Limit, ...]) -> Lane:
        key = (self.pool(task.route.pool), task.route.pool_slots, limits)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(*key)
            for limit in lane.closing:
                limit.lanes.add(lane)
        return lane

    def _forget(self, lane: Lane) -> None:
        for limit in lane.closing:
            limit.lanes.discard(lane)
        del self._lanes[(lane.pool, lane.slots, lane.limits)]

    # The limits of a task, beside the parallelism and its pool

    def _of(self, task: ActiveTask) -> tuple[Limit, ...]:
        """Return the limits of a task instance, always the same objects in the same order."""
        if task.limits is not None:
            return task.limits
        run = task.run
        limits = [self._dag(run.key.dag_id), self._run(run)]
        if task.task.max_active_tis_per_dag is not None:
            limits.append(self._task(run.key.dag_id, task, "max_active_tis_per_dag", task.task.max_active_tis_per_dag))
        if task.task.max_active_tis_per_dagrun is not None:
            capacity = task.task.max_active_tis_per_dagrun
            limits.append(self._task(run.key, task, "max_active_tis_per_dagrun", capacity))
        if self._default_executor is not None:
            limits.append(self._executor(task.route.executor or self._default_executor))
        task.limits = tuple(limits)
        return task.limits

    def _shared(self, task: ActiveTask) -> Limit | None:
        """Return a task's limit across all runs of its DAG, other schedulers' included; None if it has none."""
        if task.task.max_active_tis_per_dag is None:
            return None
        return self._task(task.run.key.dag_id, task, "max_active_tis_per_dag", task.task.max_active_tis_per_dag)

    def _shared_of(self, dag_id: str) -> dict[str, Limit]:
        """Return the limits that span the runs of a DAG, by task."""
        return {task_id: limit for task_id, (limit, _) in self._tasks.get(dag_id, {}).items()}

    @property
    def all_shared(self) -> list[Limit]:
        """The limits that span the runs of a DAG, for every DAG."""
        return [limit for owner in self._tasks if isinstance(owner, str) for limit in self._shared_of(owner).values()]

    def _executor(self, name: str) -> Limit:
        name = executor_called(name, self._executors)
        if name not in self._executors:
            known = (one for one, limit in self._executors.items() if limit.capacity != 0)
            what = f"there is no executor {name!r}; known: {', '.join(known)}"
            self._executors[name] = Limit(what, 0, release=f"the setting `executor` names {name}", is_wide=True)
        return self._executors[name]

    def _dag(self, dag_id: str) -> Limit:
        return self._dags.setdefault(dag_id, Limit(f"the DAG {dag_id} is paused", None, release="it is unpaused"))

    def _run(self, run: ActiveRun) -> Limit:
        capacity = run.structure.dag.max_active_tasks or self._max_active_tasks
        return self._runs.setdefault(run.key, Limit("max_active_tasks", capacity))

    def _task(self, owner: str | DagRunKey, task: ActiveTask, setting: str, capacity: int) -> Limit:
        limits, version_id = self._tasks.setdefault(owner, {}), task.run.version_id
        known = limits.get(task.task_id)
        limit, of_version = known or (Limit(f"{setting} of {task.task_id}", capacity, counts_parked=True), version_id)
        if version_id > of_version:
            # The newest version that is active decides for all: the limit spans its runs.
            limit.capacity, of_version = capacity, version_id
            self._reopen([limit])
        limits[task.task_id] = (limit, of_version)
        return limit


def _have_room(limits: tuple[Limit, ...]) -> bool:
    return all(limit.has_room() for limit in limits)


def _order(task: ActiveTask) -> Order:
    return (-task.route.priority_weight, task.run.run_after, *task.key)
