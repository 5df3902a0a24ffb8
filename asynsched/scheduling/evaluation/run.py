"""A running DagRun as its scheduler holds it in memory under its lease: a cache of the run's rows.

Every state change updates the counters of upstream ends, so that examining a task costs the same however many tasks its
DAG has. All instances of a task share one counter, except for upstreams in an instance of the same mapped group.
Nothing here decides or stores.

Source: Apache Airflow's expand inputs and `get_relevant_upstream_map_indexes`, for mapped tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from math import prod
from typing import TYPE_CHECKING, Any

from asynsched.keys import DagRunKey, TaskInstanceKey, instance_name
from asynsched.protocol.messages import CodeVersion, Route
from asynsched.scheduling.evaluation.changes import Change, NewInstances, RunChange, Stopped, StoredDeferral, TaskChange
from asynsched.scheduling.evaluation.structure import DagStructure, Link
from asynsched.scheduling.rules.past_depends import GOOD_STATES, PastTask, past_depends
from asynsched.scheduling.rules.run_end import RunStop, TaskEnd
from asynsched.scheduling.rules.trigger_rule import UpstreamCounts
from asynsched.serialization.schema import (
    MapConcat,
    MapLength,
    MapLiteral,
    MapProduct,
    MapResult,
    MapZip,
    SerializedTask,
    for_try,
)
from asynsched.states import (
    FINISHED_TASK_STATES,
    SLOT_TASK_STATES,
    DagRunState,
    check_run_transition,
    check_task_transition,
)
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs.transitions import TaskRowKey

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.ready import Limit

WAITING: frozenset[State | None] = frozenset({None})
"""States in which a task instance starts only when another one of its run ends."""
_AFTER_A_START = FINISHED_TASK_STATES | SLOT_TASK_STATES | {State.UP_FOR_RETRY}
"""The states of a task instance whose `try_number` includes its present or last try."""
MOST_INSTANCES = 100_000
"""Of one task in a run. A product of a few long lists has billions, for which no scheduler has the memory."""


@dataclass(slots=True)
class UpstreamEnds:
    """How direct upstreams ended and, counted separately, needed setups that are not direct upstreams."""

    direct: UpstreamCounts = field(default_factory=UpstreamCounts)
    setups: UpstreamCounts = field(default_factory=UpstreamCounts)

    def of(self, link: Link) -> UpstreamCounts:
        return self.setups if link.is_setup_constraint else self.direct

    def count(self, link: Link, upstreams: Iterable[ActiveTask], *, is_setup: bool) -> None:
        counts, states = self.of(link), [upstream.state for upstream in upstreams]
        counts.add_expected(len(states), is_setup=is_setup)
        for state in states:
            if state in FINISHED_TASK_STATES:
                counts.add(state, is_setup=is_setup)


@dataclass(slots=True, eq=False)
class ActiveTask:
    """One task instance of an active run.

    Attributes:
        map_index: -1 for a task that is not mapped, or that was not expanded yet.
        deferral: The trigger that it waits for as deferred, then the trigger's outcome, until the try ends.
        result_length: The number of values that `expand` over its result gives, -1 if it is not a list or dict; None
            without a result.
        skips: The tasks that it decided to skip, as a branch or short circuit.
        ignored: The dependencies that do not count, because the task was forced.
        own_counts: How those upstream instances ended that belong to the same instances of mapped groups; other task
            instances share these counts.
        limits: The limits that it shares with other tasks, once `ReadyQueues` has made them: they stay the same while
            its route does.
        route: Where its try waits and runs. It changes when the instance is made ready for the next try, never while
            slots are held.
        stored_state: The state in the database; `stored_try` is the try number there.
    """

    run: ActiveRun
    task: SerializedTask
    map_index: int = -1
    state: State | None = None
    reason: str = ""
    try_number: int = 0
    max_tries: int = 0
    machine_kills: int = 0
    token: str | None = None
    scheduled_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_try_at: datetime | None = None
    rendered_map_index: str | None = None
    deferral: StoredDeferral | None = None
    result_length: int | None = None
    skips: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    own_counts: tuple[UpstreamEnds, ...] = ()
    limits: tuple[Limit, ...] | None = None
    stored_state: State | None = None
    stored_try: int = 0
    is_stored: bool = False
    route: Route = field(init=False)

    def __post_init__(self) -> None:
        is_counted = self.try_number > 0 and self.state in _AFTER_A_START
        self.route = self.route_after(self.try_number - is_counted)

    def route_after(self, n_tries: int) -> Route:
        """Return the route of the try that follows `n_tries` others."""
        return for_try(self.run.structure.routes[self.task.task_id], n_tries)

    @property
    def task_id(self) -> str:
        return self.task.task_id

    @property
    def name(self) -> str:
        """Its name within its run: `load`, or `load[3]` if the task is mapped."""
        return instance_name(self.task.task_id, self.map_index)

    @property
    def key(self) -> TaskInstanceKey:
        return TaskInstanceKey(*self.run.key, self.task.task_id, self.map_index)

    @property
    def row_key(self) -> TaskRowKey:
        return (self.run.id, self.task.task_id, self.map_index)

    @property
    def is_unexpanded(self) -> bool:
        """Whether it stands for the instances of a mapped task whose number is not known yet."""
        return self.map_index < 0 and self.run.structure.is_mapped(self.task.task_id)

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_TASK_STATES


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One DagRun and its task instances.

    Attributes:
        instances: The task instances, by task_id and map index.
        shared_counts: How the upstreams ended that count for all instances of a task, by task_id.
        group_ends: How the upstreams ended that count for the instances in one instance of a mapped group: by task_id,
            by the mapped groups around both, and by the number of the group's instance.
        n_expanded: How many instances each mapped task was expanded to, without removed ones.
        group_counts: How many instances the innermost of these mapped groups has.
        key_before: The run before, if a task depends on it.
        past: How the tasks that depend on the past went in the run before, by task_id; a missing task has no past.
        to_be_remapped: Mapped tasks, expanded earlier, whose number of instances may have changed.
        n_waiting: How many instances start only when another one of this run ends.
        waiting_of: How many such instances each task has.
        unfinished_of: How many instances of each task have not ended.
        bad_of: How many instances of each task have not succeeded, nor been skipped.
        forced: The instances of each task that ignore some of its dependencies.
        stop: Why and how the run is being stopped, if it is.
    """

    id: int
    key: DagRunKey
    structure: DagStructure
    code: CodeVersion
    version_id: int
    run_type: str
    run_after: datetime
    queued_at: datetime
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    conf: dict[str, Any] = field(default_factory=dict)
    state: DagRunState = DagRunState.QUEUED
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    partition_key: str | None = None
    partition_date: datetime | None = None
    backfill_id: int | None = None
    key_before: DagRunKey | None = None
    stored_state: DagRunState = DagRunState.QUEUED
    stored_epoch: int = 0
    instances: dict[str, dict[int, ActiveTask]] = field(default_factory=dict)
    shared_counts: dict[str, UpstreamEnds] = field(default_factory=dict)
    group_ends: dict[str, dict[tuple[str, ...], dict[int, UpstreamEnds]]] = field(default_factory=dict)
    n_expanded: dict[str, int] = field(default_factory=dict)
    group_counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    past: dict[str, PastTask] = field(default_factory=dict)
    to_be_remapped: set[str] = field(default_factory=set)
    n_unfinished: int = 0
    n_waiting: int = 0
    waiting_of: Counter[str] = field(default_factory=Counter)
    unfinished_of: Counter[str] = field(default_factory=Counter)
    bad_of: Counter[str] = field(default_factory=Counter)
    forced: dict[str, list[ActiveTask]] = field(default_factory=dict)
    stop: RunStop | None = None

    @property
    def over_at(self) -> datetime | None:
        """When its `dagrun_timeout` is over; None: it has not started, or has none."""
        timeout = self.structure.dag.dagrun_timeout
        return None if timeout is None or self.started_at is None else self.started_at + timedelta(seconds=timeout)

    # Changes

    def take(self, change: Change) -> Iterable[ActiveTask]:
        """Apply a change, update the counters, and return the task instances to examine because of it.

        Each change must be computed from the run as it is now. The consequences of a `TaskChange` are found with that
        change alone, without the changes applied after it: so a rule must end all instances of a task alike.

        Raises:
            InvalidTransition: The change's state cannot follow the present one.
        """
        if isinstance(change, TaskChange):
            task = change.task
            check_task_transition(change.before, change.state)
            task.state, task.reason = change.state, change.reason
            for name, value in change.values.items():
                setattr(task, name, value)
            self._count_change(task, change.before)
            return self._after(task, change.before)
        if isinstance(change, NewInstances):
            self.to_be_remapped.discard(change.task_id)
            if change.new is not None:
                self.replace(change.task_id, gone=() if change.gone is None else (change.gone,), new=change.new)
            # Instances of a mapped group depend on others now.
            return [*(change.new or ()), *self._waiting(change.task_id), *self.waiting_after(change.task_id)]
        if isinstance(change, RunChange):
            return self._take_run_change(change)
        if isinstance(change, Stopped):
            self.stop = change.stop
        return ()

    def _take_run_change(self, change: RunChange) -> Iterable[ActiveTask]:
        if change.before is not change.state:
            check_run_transition(change.before, change.state)
        else:
            self.to_be_remapped = {task_id for task_id, n_expanded in self.n_expanded.items() if n_expanded}
        self.state, self.reason = change.state, change.reason
        self.started_at, self.ended_at = change.started_at, change.ended_at
        return self.all_instances() if change.state is DagRunState.RUNNING else ()

    def _after(self, task: ActiveTask, before: State | None) -> list[ActiveTask]:
        """Return the task instances to examine after a task instance has left a state."""
        found = self._next_alike(task) if before in WAITING else []
        if task.state in FINISHED_TASK_STATES:
            if self.to_be_remapped:
                found += self._mapped_over(task)
            found += self.dependents(task)
            if task.map_index < 0:
                for mapped_id in self.structure.mapped_over[task.task_id]:
                    found += self._waiting(mapped_id)
            for teardown_id in self.structure.scoped_by.get(task.task_id, ()):
                if teardown_id in self.structure.split:
                    found += (one for one in self.instances_beside(task, teardown_id) if one.state in WAITING)
                elif not self.unfinished_of[task.task_id]:
                    found += self._waiting(teardown_id)
        elif task.state in WAITING:
            found.append(task)
        return found

    def _next_alike(self, task: ActiveTask) -> list[ActiveTask]:
        """Return the next instance with exactly the same dependencies, which ends alike."""
        if task.map_index < 0 or task.task_id in self.structure.split or not self.waiting_of[task.task_id]:
            return []
        instances, index = self.instances[task.task_id], task.map_index + 1
        while index in instances:
            if instances[index].state in WAITING:
                return [instances[index]]
            index += 1
        return []

    def _mapped_over(self, source: ActiveTask) -> list[ActiveTask]:
        """Return an instance of each task that is mapped over an ended one.

        Under its trigger rule, its instances may already run or wait for room; the task is refitted all the same.
        """
        sources = self.structure.map_sources
        mapped = [task_id for task_id in sorted(self.to_be_remapped) if source.task_id in sources[task_id]]
        return [next(iter(self.instances[task_id].values())) for task_id in mapped]

    # Task instances

    def new_instance(self, task: SerializedTask, map_index: int) -> ActiveTask:
        """Return a new instance of a task, not yet part of the run."""
        return ActiveTask(self, task, map_index=map_index, max_tries=task.retries)

    def first_instances(self, known: Collection[str] = ()) -> Iterator[ActiveTask]:
        """Make the instances that tasks have when their run begins: one each, or as many as are known to be mapped.

        Args:
            known: Ids of the tasks that have instances already.
        """
        for task in self.structure.dag.tasks:
            if task.task_id not in known:
                n_instances = self.map_count(task.task_id) if self.structure.is_mapped(task.task_id) else None
                # Without a usable number, an unexpanded one stands for all; its expansion says why.
                is_usable = n_instances and n_instances <= MOST_INSTANCES
                for map_index in range(n_instances or 0) if is_usable else (-1,):
                    yield self.new_instance(task, map_index)

    def instance(self, task_id: str, map_index: int = -1) -> ActiveTask:
        """Return a task instance. Raises KeyError if it does not exist."""
        return self.instances[task_id][map_index]

    def all_instances(self) -> Iterator[ActiveTask]:
        """Yield every task instance, in topological order of their tasks."""
        for found in self.instances.values():
            yield from found.values()

    def add_tasks(self, tasks: Iterable[ActiveTask]) -> None:
        """Take up the task instances, stored or new, and count their upstream ends."""
        for _ in self.adding_tasks(tasks):
            pass

    def adding_tasks(self, tasks: Iterable[ActiveTask]) -> Iterator[None]:
        """Take up the task instances in small steps, between which their run must not be used."""
        self.instances = {task.task_id: {} for task in self.structure.dag.tasks}
        self.n_expanded = dict.fromkeys(self.instances, 0)
        for task in tasks:
            self._add(task)
            yield
        for task_id in filter(self.structure.is_mapped, self.instances):
            self._count_expanded(task_id)
        for task_id in self.instances:
            self._recount(task_id)
            yield

    def replace(self, task_id: str, *, gone: Iterable[ActiveTask], new: Collection[ActiveTask]) -> None:
        """Remove instances of a task, add others, and count again the ends on which their dependents depend."""
        for task in gone:
            del self.instances[task_id][task.map_index]
            self._tally(task_id, task.state, -1)
        self.instances[task_id].update({task.map_index: task for task in new})
        for state, times in Counter(task.state for task in new).items():
            self._tally(task_id, state, times)
        self._count_expanded(task_id)
        for changed in dict.fromkeys((task_id, *(link.task_id for link in self.structure.links_from[task_id]))):
            self._recount(changed)

    def ends_of(self, task: ActiveTask) -> UpstreamEnds:
        """Return the counts of the ends of a task instance's upstreams."""
        ends = self.shared_counts[task.task_id]
        for own in task.own_counts:
            ends = UpstreamEnds(ends.direct.together(own.direct), ends.setups.together(own.setups))
        return ends

    def _count_change(self, task: ActiveTask, before: State | None) -> None:
        """Update the counters after `task` went from `before` to its state."""
        after = task.state
        self._tally(task.task_id, before, -1)
        self._tally(task.task_id, after, 1)
        if before not in FINISHED_TASK_STATES and after not in FINISHED_TASK_STATES:
            return
        is_setup = task.task.is_setup
        for link in self.structure.links_from[task.task_id]:
            for counts in self._counters(link, task):
                if before in FINISHED_TASK_STATES:
                    counts.add(before, is_setup=is_setup, times=-1)
                if after in FINISHED_TASK_STATES:
                    counts.add(after, is_setup=is_setup)

    def dependents(self, task: ActiveTask) -> Iterator[ActiveTask]:
        """Yield the waiting instances that depend on this one.

        Among instances with exactly the same dependencies, the first stands for all: the others follow it. Instances of
        a mapped group are left out while nothing that could decide about them has changed.
        """
        for link in self.structure.links_from[task.task_id]:
            if self.waiting_of[link.task_id]:
                is_split = link.task_id in self.structure.split
                found = self._affected(link, task) if is_split else self._waiting(link.task_id)
                yield from (target for target in found if target.state in WAITING)

    def _affected(self, link: Link, task: ActiveTask) -> list[ActiveTask]:
        """Return the instances of a link's task about which its upstream's instance may have decided."""
        targets = self.instances[link.task_id]
        counters = list(self._counters(link, task))
        if task.map_index < 0 or not counters or any(counts.has_news for counts in counters):
            for counts in counters:
                counts.has_news = False
            indexes = self._relevant(link, task) if link.common_groups and task.map_index >= 0 else targets
        else:
            # A branch's decision concerns one instance.
            indexes = (task.map_index,) if link.upstream_id in self.structure.deciders[link.task_id] else ()
        return [targets[index] for index in indexes if index in targets]

    def waiting_after(self, task_id: str) -> Iterator[ActiveTask]:
        """Yield the waiting instances that depend on a task, one for all that have exactly the same dependencies."""
        for link in self.structure.links_from[task_id]:
            yield from self._waiting(link.task_id)

    def _waiting(self, task_id: str) -> Iterator[ActiveTask]:
        waiting = (found for found in self.instances[task_id].values() if found.state in WAITING)
        if task_id in self.structure.split:
            return waiting
        # Forced ones may start where the others wait.
        forced = (found for found in self.forced.get(task_id, ()) if found.state in WAITING)
        return chain(islice(waiting, 1), forced)

    def instances_beside(self, task: ActiveTask, other_id: str) -> list[ActiveTask]:
        """Return the instances of another task that belong to the same instance of the mapped groups around both."""
        found = self.instances[other_id]
        groups = self.structure.mapped_groups
        common = tuple(group for group in groups[task.task_id] if group in groups[other_id])
        if not common or task.map_index < 0 or -1 in found:
            return list(found.values())
        indexes = self._relevant(Link(task.task_id, other_id, common), task)
        return [found[index] for index in indexes if index in found]

    def map_count(self, task_id: str) -> int | None:
        """Return the number of instances that a mapped task needs; None if a result to map over is missing."""
        return length_of(MapProduct(self.structure.map_factors[task_id]), self._result_length)

    def last_end(self, now: datetime) -> datetime:
        """Return when the last task instance ended; its report may come late, as when the database was away."""
        if self.n_unfinished or self.started_at is None:
            return now
        last = max((task.ended_at or now for task in self.all_instances()), default=now)
        return min(now, max(self.started_at, last))

    @property
    def may_have_ended(self) -> bool:
        """Whether no task instance is unfinished, or each of them waits for another one."""
        return self.n_unfinished == self.n_waiting

    def ends(self) -> list[TaskEnd]:
        """Return the task instances on which the run's end depends: all but those that have ended well."""
        deciding = self.structure.deciding
        return [
            TaskEnd(
                task.task_id,
                task.state,
                task.task_id in deciding,
                self._waits_for_this_run(task),
                task.name,
                task.reason,
                task.ended_at,
            )
            for task in self.all_instances()
            if task.state not in GOOD_STATES
        ]

    def _waits_for_this_run(self, task: ActiveTask) -> bool:
        past = past_depends(task.task, self.past.get(task.task_id))
        return task.state in WAITING and (past.met or "depends_on_past" in task.ignored)

    def _add(self, task: ActiveTask) -> None:
        self.instances[task.task_id][task.map_index] = task
        if task.ignored:
            self.forced.setdefault(task.task_id, []).append(task)
        self._tally(task.task_id, task.state, 1)

    def _tally(self, task_id: str, state: State | None, times: int) -> None:
        """Add an instance in a state to the counters, or remove it."""
        if state not in FINISHED_TASK_STATES:
            self.n_unfinished += times
            self.unfinished_of[task_id] += times
        if state in WAITING:
            self.n_waiting += times
            self.waiting_of[task_id] += times
        if state not in GOOD_STATES:
            self.bad_of[task_id] += times

    def _recount(self, task_id: str) -> None:
        shared = self.shared_counts[task_id] = UpstreamEnds()
        own = self.group_ends[task_id] = {}
        instances = self.instances[task_id]
        for link in self.structure.links_to[task_id]:
            groups, is_setup = link.common_groups, self.structure.tasks[link.upstream_id].is_setup
            if not groups:
                shared.count(link, self.instances[link.upstream_id].values(), is_setup=is_setup)
                continue
            if groups not in own:
                own[groups] = {self._position(task_id, groups, index): UpstreamEnds() for index in instances}
            for position, ends in own[groups].items():
                ends.count(link, self._upstreams_at(link, position), is_setup=is_setup)
        if own:
            for index, task in instances.items():
                task.own_counts = tuple(found[self._position(task_id, groups, index)] for groups, found in own.items())

    def _position(self, task_id: str, groups: tuple[str, ...], map_index: int) -> int:
        """Return the instance of mapped groups that a task's instance belongs to; negative for none."""
        n_instances = self.n_expanded[task_id]
        return map_index * self._group_count(groups) // n_instances if map_index >= 0 and n_instances else -1

    def _upstreams_at(self, link: Link, position: int) -> Iterator[ActiveTask]:
        """Yield the upstream instances in an instance of a mapped group; an unexpanded instance belongs to all."""
        found = self.instances[link.upstream_id]
        if -1 in found:
            yield found[-1]
        if position >= 0:
            n_instances, n_common = self.n_expanded[link.upstream_id], self._group_count(link.common_groups)
            indexes = indexes_at(position, n_instances=n_instances, n_common=n_common)
            yield from (found[index] for index in indexes if index in found)

    def _counters(self, link: Link, task: ActiveTask) -> Iterator[UpstreamCounts]:
        """Yield the counters that an upstream instance of a link is counted in."""
        if not link.common_groups:
            yield self.shared_counts[link.task_id].of(link)
            return
        by_position = self.group_ends[link.task_id][link.common_groups]
        if task.map_index < 0:
            yield from (ends.of(link) for ends in by_position.values())
            return
        position = self._position(task.task_id, link.common_groups, task.map_index)
        if position >= 0 and position in by_position:
            yield by_position[position].of(link)

    def _relevant(self, link: Link, task: ActiveTask) -> Iterable[int]:
        """Return the map indexes of a link's task that depend on an upstream instance."""
        n_common = self._group_count(link.common_groups)
        n_own, n_other = self.n_expanded[link.upstream_id], self.n_expanded[link.task_id]
        if not n_common or not n_own or not n_other:
            return ()
        return indexes_at(task.map_index * n_common // n_own, n_instances=n_other, n_common=n_common)

    def _count_expanded(self, task_id: str) -> None:
        removed = State.REMOVED
        self.n_expanded[task_id] = sum(
            index >= 0 and task.state is not removed for index, task in self.instances[task_id].items()
        )
        self.group_counts.clear()

    def _group_count(self, groups: tuple[str, ...]) -> int:
        if groups not in self.group_counts:
            factors = tuple(self.structure.group_factors[group] for group in groups)
            # Unknown while the task that the group is mapped over runs again: an instance waits for all upstream ones.
            self.group_counts[groups] = length_of(MapProduct(factors), self._result_length) or 1
        return self.group_counts[groups]

    def _result_length(self, task_id: str) -> int | None:
        """Return the number of values that a task gives to map over; in a mapped group it gives none, as in Airflow."""
        found = self.instances.get(task_id, {})
        if not self.structure.is_mapped(task_id):
            length = found[-1].result_length if -1 in found else None
            return None if length is None or length < 0 else length
        is_expanded = found and -1 not in found and not self.unfinished_of[task_id]
        if not is_expanded or self.structure.tasks[task_id].map_length is None:
            return None
        return sum(task.result_length is not None for task in found.values() if task.state is not State.REMOVED)


def length_of(length: MapLength, result_length: Callable[[str], int | None]) -> int | None:
    """Return the number of values to map over; None if a result is missing.

    Args:
        result_length: Returns the number of values in a task's result, None if it has none.
    """
    if isinstance(length, MapLiteral):
        return length.length
    if isinstance(length, MapResult):
        return result_length(length.task_id)
    parts = [length_of(part, result_length) for part in length.parts]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    match length:
        case MapZip(_, is_filled):
            return max(known, default=0) if is_filled else min(known, default=0)
        case MapConcat():
            return sum(known)
        case MapProduct():
            return prod(known)


def indexes_at(position: int, *, n_instances: int, n_common: int) -> range:
    """Return a task's map indexes in the instance of a mapped group with the number `position`.

    Instances are numbered with the innermost group running fastest.

    The number of instances need not divide evenly: the group may have had another size before.
    """
    first, end = (-(-number * n_instances // n_common) for number in (position, position + 1))
    return range(first, end)
