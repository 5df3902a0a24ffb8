"""The evaluation as simple as it can be: after each event, every state is recomputed from scratch.

Instances of mapped tasks are compared by where they stand in each mapped group, not by arithmetic on map indexes.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from copy import copy
from math import prod

from asynsched.scheduling.rules.trigger_rule import UpstreamCounts, evaluate, evaluate_setups, mapped_upstream
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import (
    MapConcat,
    MapLength,
    MapLiteral,
    MapProduct,
    MapResult,
    MapZip,
    SerializedDag,
    SerializedTask,
)  # fmt: skip
from asynsched.states import FINISHED_TASK_STATES, TaskInstanceState
from tests.support.naive_branches import Decided, Decision, left_out_by, reachable

State = TaskInstanceState
Key = tuple[str, int]


class NaiveEvaluator:
    """Knows a DAG, and the end of each task instance.

    Args:
        dag: The DAG, its tasks in topological order.
        kept: Task instances of an earlier attempt at the run, with their states: None for one that was cleared.
        lengths: How many values the results of those that ran before have.
        under_way: Those that were ready or had begun, and run regardless of their upstreams.
        decisions: The decisions of the branches and short circuits among those that ran before.
    """

    def __init__(
        self,
        dag: SerializedDag,
        kept: Mapping[Key, State | None] | None = None,
        lengths: Mapping[Key, int | None] | None = None,
        under_way: Collection[Key] = (),
        decisions: Mapping[Key, Decision] | None = None,
    ) -> None:
        self._tasks = {task.task_id: task for task in dag.tasks}
        self._groups = {group.group_id: group for group in dag.task_groups}
        self._upstream = {name: [t.task_id for t in dag.tasks if name in t.downstream_task_ids] for name in self._tasks}
        self._lengths = dict(lengths or {})
        self._under_way = set(under_way)
        self.states = {key: None if state is None else State(state) for key, state in (kept or {}).items()}
        self._left_out = {
            key: left_out_by(key[0], decision, self._tasks) for key, decision in (decisions or {}).items()
        }
        self._unfitted = {name for name, index in self.states if index >= 0}
        for task in dag.tasks:
            if not any(name == task.task_id for name, _ in self.states):
                n_instances = self._count(task) if self._factors(task) else None
                self.states |= {(task.task_id, index): None for index in (range(n_instances) if n_instances else [-1])}

    def copy(self) -> "NaiveEvaluator":
        """Return one that goes on from here by itself."""
        other = copy(self)
        for name in ("states", "_lengths", "_left_out", "_under_way", "_unfitted"):
            setattr(other, name, copy(getattr(self, name)))
        return other

    def known(self) -> Hashable:
        """Return all that later states depend on."""
        left_out = frozenset((key, frozenset(names)) for key, names in self._left_out.items())
        known = (self.states.items(), self._lengths.items(), self._under_way, self._unfitted)
        return (left_out, *map(frozenset, known))

    def take_up(
        self,
        ran: Mapping[Key, tuple[State | None, int | None]],
        decided: Mapping[Key, Decided] | None = None,
        going_on: Collection[Key] = (),
    ) -> None:
        """Take over the ends of the task instances that really ran, and settle the rest again.

        Args:
            ran: Their states, and how many values their results have.
            decided: The decisions of branches and short circuits that have ended since the last call.
            going_on: Those that had begun before these ends. If they might, they go on whatever the ends are, such as
                instances of an earlier attempt beside the task that they are mapped over.
        """
        was_ready = self.may_run() if decided or going_on else set()
        self._under_way |= was_ready.intersection(going_on)
        for key, (state, length) in ran.items():
            if state in FINISHED_TASK_STATES and self.states.get(key) is not State.REMOVED:
                self.states[key], self._lengths[key] = State(state), length
        for key, found in (decided or {}).items():
            begun = {*found.begun, *was_ready.intersection(found.begun_if_ready)}
            self._under_way |= {other for other in begun if self.states[other] is None}
            self._leave_out(key, found.decision, spared={*begun, *found.restarting})
        for task in self._tasks.values():
            self._fit(task)
            for index in self._indexes(task.task_id):
                self._settle(task, index)
                if self._waits(task, index) and self._are_alike(task):
                    # Tasks with the same dependencies follow the first one, so that none is settled while that waits.
                    break

    def finished(self) -> dict[Key, State]:
        """Return the state of each task instance that has ended."""
        return {key: state for key, state in self.states.items() if state is not None}

    def may_run(self) -> set[Key]:
        """Return the unfinished task instances that may run."""
        return {
            (name, index)
            for (name, index), state in self.states.items()
            if state is None and not self._is_unexpanded(name, index) and self._verdict(self._tasks[name], index).met
        }

    def has_lost_a_place(self) -> bool:
        """Whether instances stand in a group in a group whose length is not known any more: what it comes from was
        cleared, or is no list now. Then nothing tells which instances belong together.
        """
        return any(
            len(self._mapped_groups(task)) > 1 and self._indexes(name) != [-1] and self._count(task) is None
            for name, task in self._tasks.items()
        )

    def _leave_out(self, key: Key, decision: Decision, spared: Collection[Key]) -> None:
        name, index = key
        self._left_out[key] = left_out_by(name, decision, self._tasks)
        targets = [self._tasks[target] for target in self._left_out[key] if self._is_left_out_by_all(name, target)]
        for found in (found for target in targets for found in self._beside(self._tasks[name], index, target)):
            if self.states[found] in (None, State.UPSTREAM_FAILED) and found not in spared:
                self.states[found] = State.SKIPPED

    def _is_left_out_by_all(self, name: str, target: str) -> bool:
        """Whether all instances of a mapped task have decided against a task after them."""
        keys = [(name, index) for index in self._indexes(name)] if self._tasks[name].map_length is not None else []
        return all(self.states[key] is not None and target in self._left_out.get(key, ()) for key in keys)

    def _is_left_out(self, task: SerializedTask, index: int) -> bool:
        """Whether a direct upstream has decided against it, and was not cleared since."""
        upstream = [(name, index if (name, index) in self.states else -1) for name in self._upstream[task.task_id]]
        ended = [key for key in upstream if self.states.get(key) is not None]
        return any(task.task_id in self._left_out.get(key, ()) for key in ended)

    def _settle(self, task: SerializedTask, index: int) -> None:
        key = task.task_id, index
        if self.states[key] is not None or key in self._under_way:
            return
        verdict = self._verdict(task, index)
        if verdict.ends_as is not None:
            self.states[key] = verdict.ends_as
        elif verdict.met and self._is_unexpanded(*key):
            n_instances = self._count(task)
            if n_instances:
                del self.states[key]
                for new in range(n_instances):
                    self.states[task.task_id, new] = None
                    self._settle(task, new)
            else:
                self.states[key] = State.UPSTREAM_FAILED if n_instances is None else State.SKIPPED
        elif verdict.met and task.is_empty:
            self.states[key] = State.SUCCESS

    def _fit(self, task: SerializedTask) -> None:
        """Fit the number of instances of an earlier attempt to the present one, once its results are known."""
        sources = {source for length in self._factors(task) for source in _results(length)}
        kept = [index for index in self._indexes(task.task_id) if self.states[task.task_id, index] is not State.REMOVED]
        keys = [(task.task_id, index) for index in kept]
        has_ended = all(self.states[key] is not None for key in keys)
        if task.task_id not in self._unfitted or has_ended or not self._have_succeeded(sources):
            return
        self._unfitted.discard(task.task_id)
        n_instances = self._count(task)
        if n_instances is None:
            return
        for index in kept:
            if index >= n_instances:
                self.states[task.task_id, index] = State.REMOVED
        for index in range(n_instances):
            self.states.setdefault((task.task_id, index), None)

    def _waits(self, task: SerializedTask, index: int) -> bool:
        key = task.task_id, index
        return key in self.states and self.states[key] is None and not self._verdict(task, index).met

    def _are_alike(self, task: SerializedTask) -> bool:
        others = [self._tasks[name] for name in (*self._upstream[task.task_id], *self._setups(task))]
        return not any(set(self._mapped_groups(task)) & set(self._mapped_groups(other)) for other in others)

    def _have_succeeded(self, names: set[str]) -> bool:
        return all(self.states[name, index] in FINISHED_TASK_STATES for name in names for index in self._indexes(name))

    def _verdict(self, task: SerializedTask, index: int) -> Verdict:
        sources = {source for length in self._factors(task) for source in _results(length)}
        verdicts = [mapped_upstream([self.states[source, -1] for source in sources if (source, -1) in self.states])]
        if self._is_left_out(task, index):
            verdicts.append(Verdict(met=False, reason="it is left out", ends_as=State.SKIPPED))
        if setups := self._counts(task, index, self._setups(task)):
            verdicts.append(evaluate_setups(setups, map_index=index))
        counts = self._counts(task, index, self._upstream[task.task_id])
        verdicts.append(evaluate(task.trigger_rule, counts or UpstreamCounts(), map_index=index))
        between = [key for name in self._scope(task) for key in self._beside(task, index, self._tasks[name])]
        if any(self.states[key] is None for key in between):
            verdicts.append(Verdict(met=False, reason="tasks after its setup have not ended"))
        settled = [verdict for verdict in verdicts if verdict.ends_as is not None]
        return next(iter(settled), None) or next((verdict for verdict in verdicts if not verdict.met), MET)

    def _counts(self, task: SerializedTask, index: int, upstream: list[str]) -> UpstreamCounts | None:
        keys = [key for name in upstream for key in self._beside(task, index, self._tasks[name])]
        if not keys:
            return None
        ended = Counter(str(self.states[key]) for key in keys if self.states[key] is not None)
        setups = [self.states[key] for key in keys if self._tasks[key[0]].is_setup]
        return UpstreamCounts(
            total=len(keys),
            **ended,
            n_setups=len(setups),
            success_setup=setups.count(State.SUCCESS),
            skipped_setup=setups.count(State.SKIPPED),
        )

    def _beside(self, task: SerializedTask, index: int, other: SerializedTask) -> list[Key]:
        """Return the instances of another task that stand in the same place of the mapped groups around both."""
        common = [group for group in self._mapped_groups(task) if group in self._mapped_groups(other)]
        indexes = self._indexes(other.task_id)
        if not common or indexes == [-1]:
            return [(other.task_id, found) for found in indexes]
        if index < 0:
            return []
        place = self._place(task, index)[: len(common)]
        return [(other.task_id, found) for found in indexes if self._place(other, found)[: len(common)] == place]

    def _place(self, task: SerializedTask, index: int) -> list[int | str]:
        """Return where an instance stands in each mapped group around it; one that is no more stands nowhere."""
        lengths = [self._length(length) or 0 for length in self._factors(task)]
        if index >= prod(lengths):
            return ["nowhere"]
        place: list[int | str] = []
        for length in reversed(lengths):
            index, within = divmod(index, length)
            place.insert(0, within)
        return place

    def _setups(self, task: SerializedTask) -> list[str]:
        """Return the setups that a task needs, those directly upstream left out."""
        if task.is_teardown or task.trigger_rule == "always":
            return []
        below = reachable(task.task_id, {name: list(t.downstream_task_ids) for name, t in self._tasks.items()})
        found = []
        for name in reachable(task.task_id, self._upstream) - set(self._upstream[task.task_id]):
            own = {after for after in self._tasks[name].downstream_task_ids if self._tasks[after].is_teardown}
            if self._tasks[name].is_setup and (not own or own & below):
                found.append(name)
        return found

    def _scope(self, task: SerializedTask) -> set[str]:
        """Return the tasks, not directly upstream, between the setups of a teardown and itself."""
        if not task.is_teardown:
            return set()
        downstream = {name: list(other.downstream_task_ids) for name, other in self._tasks.items()}
        setups = [name for name in self._upstream[task.task_id] if self._tasks[name].is_setup]
        users = {name for setup in setups for name in reachable(setup, downstream)}
        return users & reachable(task.task_id, self._upstream) - set(self._upstream[task.task_id])

    def _mapped_groups(self, task: SerializedTask) -> list[str]:
        found, group = [], self._groups.get(task.group_id or "")
        while group is not None:
            found.insert(0, group.group_id)
            group = self._groups.get(group.parent_id or "")
        return [name for name in found if self._groups[name].map_length is not None]

    def _factors(self, task: SerializedTask) -> list[MapLength]:
        lengths = [self._groups[name].map_length for name in self._mapped_groups(task)]
        return [length for length in (*lengths, task.map_length) if length is not None]

    def _is_unexpanded(self, name: str, index: int) -> bool:
        return index < 0 and bool(self._factors(self._tasks[name]))

    def _indexes(self, name: str) -> list[int]:
        return sorted(index for other, index in self.states if other == name)

    def _count(self, task: SerializedTask) -> int | None:
        lengths = [self._length(length) for length in self._factors(task)]
        return None if None in lengths else prod(length for length in lengths if length is not None)

    def _length(self, length: MapLength) -> int | None:
        if isinstance(length, MapLiteral):
            return length.length
        if isinstance(length, MapResult):
            return self._result_length(self._tasks[length.task_id])
        parts = [self._length(part) for part in length.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        match length:
            case MapZip(_, is_filled):
                return max(known) if is_filled else min(known)
            case MapConcat():
                return sum(known)
            case MapProduct():
                return prod(known)

    def _result_length(self, task: SerializedTask) -> int | None:
        keys = [(name, index) for name, index in self.states if name == task.task_id]
        if task.map_length is not None:
            if (task.task_id, -1) in self.states or any(self.states[key] is None for key in keys):
                return None
            return sum(self._lengths.get(key) is not None for key in keys if self.states[key] is State.SUCCESS)
        length = None if self._mapped_groups(task) else self._lengths.get((task.task_id, -1))
        return None if length is None or length < 0 else length


def _results(length: MapLength) -> set[str]:
    if isinstance(length, MapResult):
        return {length.task_id}
    return set() if isinstance(length, MapLiteral) else {name for part in length.parts for name in _results(part)}
