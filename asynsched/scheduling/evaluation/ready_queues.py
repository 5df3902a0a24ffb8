"""Tasks that are ready to run, and wait for room: nothing hides behind something else.

Every limit but the pool's makes a *lane*: the tasks that share pool, slots and limits wait in one heap, in one total
order (priority weight, then the run's age, then name). A lane is open while its limits have room. A pool holds its
open lanes in heaps, by the slots that they need and the executor that they are for. So granting the best task that fits
costs a few heap operations, whatever else waits: a full pool, or one DAG's backlog, is never looked through.
"""

import heapq
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from itertools import count

from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.limit import Limit
from asynsched.states import TaskInstanceState

Order = tuple[object, ...]
Entry = tuple[Order, int, "Lane"]
"""A lane's head that competes for its pool's slots: its order, its number, its lane."""
Needs = tuple[int, tuple[Limit, ...]]
"""How many slots of its pool a lane needs, and which limits it shares with lanes of all DAGs."""


class Lane:
    """Tasks that the same limits hold, best first."""

    def __init__(self, pool: "Pool", slots: int, limits: tuple[Limit, ...]) -> None:
        self.pool = pool
        self.slots = slots
        self.limits = limits
        self.needs: Needs = (slots, tuple(limit for limit in limits if limit.is_wide))
        self.closing = tuple(limit for limit in limits if not limit.is_wide)
        self.heap: list[tuple[Order, int, ActiveTask]] = []
        self.offered: int | None = None
        """Number of the entry that competes in the pool now."""

    @property
    def is_open(self) -> bool:
        """Whether every limit has room but the pool and those that a great many lanes share."""
        return all(limit.has_room() for limit in self.closing)

    def head(self) -> tuple[Order, int, ActiveTask] | None:
        """Return the best entry that still waits."""
        while self.heap and self.heap[0][2].state is not TaskInstanceState.SCHEDULED:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class Pool(Limit):
    """A pool's slots, and the lanes that wait for them: heaps of (head's order, lane), by what they need."""

    def __init__(self, name: str, capacity: int | None) -> None:
        super().__init__(f"pool {name}", capacity)
        self.waiting: dict[Needs, list[Entry]] = {}
        self.deferred = 0
        """Slots of deferred tasks; they count where `include_deferred` says so."""
        self.include_deferred = False

    @property
    def taken(self) -> int:
        return super().taken + self.deferred if self.include_deferred else super().taken

    def holds(self, task: ActiveTask) -> bool:
        return super().holds(task) or (self.include_deferred and task.state is TaskInstanceState.DEFERRED)

    def slots_of(self, task: ActiveTask) -> int:
        return task.task.pool_slots

    def offer(self, lane: Lane) -> None:
        """Let an open lane's head compete for the pool's slots."""
        head = lane.head()
        if head is not None and head[1] != lane.offered and lane.is_open:
            lane.offered = head[1]
            heapq.heappush(self.waiting.setdefault(lane.needs, []), (head[0], head[1], lane))

    def best(self, overdue: datetime | None) -> Entry | None:
        """Return the best head among the lanes whose slots are free; none while they are kept for a wider task.

        Args:
            overdue: Slots are kept for a task that has been ready since then or longer; None: for none.
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
        """Return the task that free slots are kept for, because narrower ones have taken them for too long."""
        entry = self._overdue_entry(overdue)
        return None if entry is None else entry[2].heap[0][2]

    def _overdue_entry(self, overdue: datetime | None) -> Entry | None:
        """Return the head that has waited longest, and too long, of those that need several slots."""
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
            head = lane.head()
            # An entry is out of date once its task was granted or withdrawn, or its lane closed: a lane offers itself
            # again when one of those changes.
            if head is not None and head[1] == number and lane.is_open:
                return heap[0]
            heapq.heappop(heap)
            if lane.offered == number:
                lane.offered = None
        return None


class ReadyQueues:
    """All ready tasks that were not granted yet.

    Args:
        parallelism: Tasks that may run at once.
        keep_slots_after: How long a task waits for slots of its pool before those that become free are kept for it;
            None: they never are, and whatever fits is started.
    """

    def __init__(self, parallelism: int, keep_slots_after: timedelta | None = None) -> None:
        self.parallelism = Limit("parallelism", parallelism)
        self._keep_slots_after = keep_slots_after
        self.pools: dict[str, Pool] = {}
        self._lanes: dict[tuple[Pool, int, tuple[Limit, ...]], Lane] = {}
        self._numbers = count()

    def pool(self, name: str) -> Pool:
        """Return a pool, one with no slots if nobody made it."""
        if name not in self.pools:
            self.pools[name] = Pool(name, 0)
        return self.pools[name]

    def obstacle(self, task: ActiveTask) -> str:
        """Return why a task's pool can never let it start as things are; empty if it can."""
        name, slots = task.task.pool, task.task.pool_slots
        pool = self.pool(name)
        if pool.capacity is None or slots <= pool.capacity:
            return ""
        if pool.capacity == 0:
            return f"the pool {name!r} has no slots, or does not exist: `asynsched pools set {name} SLOTS`"
        return f"it needs {slots} slots, and its pool {name!r} has {pool.capacity}"

    def kept_for(self, task: ActiveTask, now: datetime) -> ActiveTask | None:
        """Return the other task that the free slots of a task's pool are kept for."""
        other = self.pool(task.task.pool).kept_for(self._overdue(now))
        return None if other is task else other

    def lacking(self, task: ActiveTask, limits: tuple[Limit, ...]) -> list[Limit]:
        """Return those of a task's limits that have no room for it."""
        pool = self.pool(task.task.pool)
        found: list[Limit] = [] if pool.has_room(task.task.pool_slots) else [pool]
        return found + [limit for limit in (self.parallelism, *limits) if not limit.has_room()]

    def resize_pools(self, capacities: dict[str, int | None], include_deferred: Collection[str] = ()) -> None:
        """Take over what the pools hold now, and which count deferred tasks; a pool that is gone has no slots."""
        for name in capacities.keys() | self.pools.keys():
            self.pool(name).capacity = capacities.get(name, 0)
            self.pool(name).include_deferred = name in include_deferred

    def add(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Let a ready task wait under its pool and these limits."""
        lane = self._lane(task, limits)
        entry = (_order(task), next(self._numbers), task)
        before = lane.head()
        heapq.heappush(lane.heap, entry)
        if before is None or entry < before:
            lane.pool.offer(lane)

    @property
    def are_waiting(self) -> bool:
        """Whether any task waits for room."""
        return bool(self._lanes)

    def grant(self, now: datetime) -> ActiveTask | None:
        """Take the best task that every limit has room for, and count it against them; None when there is none."""
        if not self.parallelism.has_room():
            return None
        overdue = self._overdue(now)
        bests = [best for pool in self.pools.values() if (best := pool.best(overdue)) is not None]
        if not bests:
            return None
        lane = min(bests, key=lambda best: best[:2])[2]
        task = heapq.heappop(lane.heap)[2]
        self.occupy(task, lane.limits)
        lane.pool.offer(lane)
        if not lane.heap:
            self._forget(lane)
        return task

    def occupy(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Count a queued or running task against its limits."""
        self.pool(task.task.pool).used += task.task.pool_slots
        for limit in (self.parallelism, *limits):
            limit.used += 1

    def release(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Give back what a task occupied, and let those compete that waited for it: where room was, nobody did."""
        full = [limit for limit in limits if not limit.has_room()]
        self.pool(task.task.pool).used -= task.task.pool_slots
        for limit in (self.parallelism, *limits):
            limit.used -= 1
        self.reopen(full)

    def withdrawn(self, task: ActiveTask, limits: tuple[Limit, ...]) -> None:
        """Take note that a task which waited does so no more: the next of its lane competes."""
        lane = self._lanes.get((self.pool(task.task.pool), task.task.pool_slots, limits))
        if lane is not None and lane.head() is None:
            self._forget(lane)
        elif lane is not None:
            lane.pool.offer(lane)

    def forget(self, limit: Limit) -> None:
        """Drop every task that waits under a limit: their run is no longer active."""
        for lane in list(limit.lanes):
            lane.heap.clear()
            self._forget(lane)

    @staticmethod
    def reopen(limits: Iterable[Limit]) -> None:
        """Let the lanes of limits that may have room now compete again."""
        for limit in limits:
            if limit.has_room():
                for lane in limit.lanes:
                    lane.pool.offer(lane)

    def _overdue(self, now: datetime) -> datetime | None:
        return None if self._keep_slots_after is None else now - self._keep_slots_after

    def _lane(self, task: ActiveTask, limits: tuple[Limit, ...]) -> Lane:
        key = (self.pool(task.task.pool), task.task.pool_slots, limits)
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


def _have_room(limits: tuple[Limit, ...]) -> bool:
    return all(limit.has_room() for limit in limits)


def _order(task: ActiveTask) -> Order:
    return (-task.priority_weight, task.run.run_after, *task.key)
