"""The structure of one DAG version, compiled for decisions: each task's upstream and downstream."""

from collections.abc import Mapping
from dataclasses import dataclass

from asynsched.protocol.messages import Route
from asynsched.scheduling.rules.branching import descendants, reversed_edges
from asynsched.scheduling.rules.priority import total_weights
from asynsched.serialization.schema import (
    MapLength,
    SerializedDag,
    SerializedRoute,
    SerializedTask,
    for_try,
    results_in,
)

_Tasks = Mapping[str, SerializedTask]
_Edges = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Link:
    """One task that decides about another one.

    Attributes:
        upstream_id: The task whose end counts.
        task_id: The task that waits for it.
        common_groups: The mapped task groups that both are in, outermost first: where there are any, an instance
            depends only on those of its own group's instance.
        is_setup_constraint: The upstream is a setup that the task needs, though it is not directly downstream of it.
    """

    upstream_id: str
    task_id: str
    common_groups: tuple[str, ...] = ()
    is_setup_constraint: bool = False


@dataclass(frozen=True, slots=True)
class DagStructure:
    """A DAG version's tasks and edges, by task_id.

    Attributes:
        position: A task's place in topological order.
        links_to: The links from the tasks that decide about a task.
        links_from: The links to the tasks about which a task decides.
        split: The tasks whose instances each depend on different ones: those with an upstream in the same mapped group.
        deciders: The branches and short circuits directly upstream of a task.
        map_factors: The factors of a task's number of instances; empty for a task that is not mapped.
        map_sources: The tasks whose results a task is mapped over.
        mapped_over: The tasks that are mapped over a task, with a group, without being directly downstream of it.
        mapped_groups: The mapped task groups that a task is in, outermost first.
        group_factors: How many instances a mapped task group has in each instance of its parent.
        scopes: The tasks between each teardown and its setups, without those directly upstream of it.
        scoped_by: The teardowns in whose scope a task is.
        routes: The routes of a task's tries, the first one's first; later tries have the last one.
        deciding: The tasks whose ends decide the run's: its leaves, once the teardowns that do not fail the run are
            left out.
        depend_on_past: The tasks that depend on the run before.
    """

    dag: SerializedDag
    tasks: Mapping[str, SerializedTask]
    downstream: Mapping[str, tuple[str, ...]]
    upstream: Mapping[str, tuple[str, ...]]
    links_to: Mapping[str, tuple[Link, ...]]
    links_from: Mapping[str, tuple[Link, ...]]
    split: frozenset[str]
    deciders: Mapping[str, tuple[str, ...]]
    map_factors: Mapping[str, tuple[MapLength, ...]]
    map_sources: Mapping[str, tuple[str, ...]]
    mapped_over: Mapping[str, tuple[str, ...]]
    mapped_groups: Mapping[str, tuple[str, ...]]
    group_factors: Mapping[str, MapLength]
    routes: Mapping[str, tuple[Route, ...]]
    position: Mapping[str, int]
    teardowns: frozenset[str]
    scopes: Mapping[str, tuple[str, ...]]
    scoped_by: Mapping[str, tuple[str, ...]]
    deciding: frozenset[str]
    depend_on_past: frozenset[str]

    def is_mapped(self, task_id: str) -> bool:
        """Whether a task is expanded into instances, by itself or with its group."""
        return bool(self.map_factors[task_id])

    def fits(self, task_id: str, map_index: int) -> bool:
        """Whether the version has such a task instance; any map index fits a mapped task."""
        return task_id in self.tasks and (map_index < 0 or self.is_mapped(task_id))


def compile_structure(dag: SerializedDag) -> DagStructure:
    """Return the structure of a serialized DAG."""
    tasks = {task.task_id: task for task in dag.tasks}
    downstream = {task.task_id: task.downstream_task_ids for task in dag.tasks}
    upstream = reversed_edges(downstream)
    mapped_groups, group_factors = _mapped_groups(dag)
    map_factors = {
        task.task_id: (
            *(group_factors[group] for group in mapped_groups[task.task_id]),
            *((task.map_length,) if task.map_length is not None else ()),
        )
        for task in dag.tasks
    }
    map_sources = {
        task_id: tuple(dict.fromkeys(source for factor in factors for source in results_in(factor)))
        for task_id, factors in map_factors.items()
    }
    links_to = _links(tasks, upstream, downstream, mapped_groups)
    scopes = _scopes(tasks, upstream, downstream)
    weights = total_weights(dag.tasks)
    links_from: dict[str, list[Link]] = {task_id: [] for task_id in tasks}
    for links in links_to.values():
        for link in links:
            links_from[link.upstream_id].append(link)
    return DagStructure(
        dag=dag,
        tasks=tasks,
        downstream=downstream,
        upstream=upstream,
        links_to=links_to,
        links_from={task_id: tuple(links) for task_id, links in links_from.items()},
        split=frozenset(task_id for task_id, links in links_to.items() if any(link.common_groups for link in links)),
        deciders={
            task_id: tuple(other for other in found if tasks[other].is_branch or tasks[other].is_short_circuit)
            for task_id, found in upstream.items()
        },
        map_factors=map_factors,
        map_sources=map_sources,
        mapped_over=reversed_edges(
            {name: [one for one in sources if one not in upstream[name]] for name, sources in map_sources.items()}
        ),
        mapped_groups=mapped_groups,
        group_factors=group_factors,
        routes={task.task_id: _routes(task, weights[task.task_id]) for task in dag.tasks},
        position={task.task_id: place for place, task in enumerate(dag.tasks)},
        teardowns=frozenset(task.task_id for task in dag.tasks if task.is_teardown),
        scopes=scopes,
        scoped_by=reversed_edges({task_id: scopes.get(task_id, ()) for task_id in tasks}),
        deciding=_deciding(dag.tasks),
        depend_on_past=frozenset(task.task_id for task in dag.tasks if task.depends_on_past),
    )


def _routes(task: SerializedTask, total_weight: int) -> tuple[Route, ...]:
    """Return the routes of a task's tries: those of a policy, or else the task's own with the weight of each try."""
    found: tuple[SerializedRoute | SerializedTask, ...] = task.routes or (task,)
    weights = task.try_weights or (total_weight,)
    n_tries = max(len(found), len(weights))
    return tuple(_route(for_try(found, n), for_try(weights, n)) for n in range(n_tries))


def _route(found: SerializedRoute | SerializedTask, weight: int) -> Route:
    own = found.priority_weight if isinstance(found, SerializedRoute) else None
    weight = weight if own is None else own
    return Route(found.pool, found.pool_slots, found.queue, found.executor, found.executor_config, weight)


def _mapped_groups(dag: SerializedDag) -> tuple[dict[str, tuple[str, ...]], dict[str, MapLength]]:
    """Return the mapped groups of each task, and the map factors of each mapped group."""
    groups = {group.group_id: group for group in dag.task_groups}
    factors = {group.group_id: group.map_length for group in dag.task_groups if group.map_length is not None}
    around: dict[str, tuple[str, ...]] = {}
    for task in dag.tasks:
        found, group = [], groups.get(task.group_id or "")
        while group is not None:
            found.append(group.group_id)
            group = groups.get(group.parent_id or "")
        around[task.task_id] = tuple(group_id for group_id in reversed(found) if group_id in factors)
    return around, factors


def _links(tasks: _Tasks, upstream: _Edges, downstream: _Edges, mapped_groups: _Edges) -> dict[str, tuple[Link, ...]]:
    """Return the links to each task from the tasks that decide about it."""
    needed_setups = _needed_setups(tasks, upstream, downstream)
    found = {}
    for task_id, task in tasks.items():
        direct, own_groups = upstream[task_id], mapped_groups[task_id]
        setups = () if task.is_teardown or task.trigger_rule == "always" else needed_setups[task_id]
        others = [(other, False) for other in direct] + [(other, True) for other in setups if other not in direct]
        found[task_id] = tuple(
            Link(other, task_id, tuple(group for group in own_groups if group in mapped_groups[other]), is_setup)
            for other, is_setup in others
        )
    return found


def _needed_setups(tasks: _Tasks, upstream: _Edges, downstream: _Edges) -> dict[str, list[str]]:
    """Return for each task the setups above it that have their teardowns below it or no teardown, as in Airflow."""
    needed: dict[str, list[str]] = {task_id: [] for task_id in tasks}
    for setup in (task_id for task_id, task in tasks.items() if task.is_setup):
        users = descendants([setup], downstream)
        teardowns = [other for other in downstream[setup] if tasks[other].is_teardown]
        if teardowns:
            users &= descendants(teardowns, upstream)
        for task_id in users:
            needed[task_id].append(setup)
    return needed


def _scopes(tasks: _Tasks, upstream: _Edges, downstream: _Edges) -> dict[str, tuple[str, ...]]:
    """Return the scope of each teardown that has one.

    Source: `_evaluate_teardown_scope` in Apache Airflow's `TriggerRuleDep`.
    """
    scopes = {}
    for task_id in (task_id for task_id, task in tasks.items() if task.is_teardown):
        setups = [other for other in upstream[task_id] if tasks[other].is_setup]
        above = descendants([task_id], upstream) - set(upstream[task_id])
        if found := above & descendants(setups, downstream):
            scopes[task_id] = tuple(sorted(found))
    return scopes


def _deciding(tasks: tuple[SerializedTask, ...]) -> frozenset[str]:
    """Return the leaves of the DAG once the teardowns that do not fail the run are taken out of it."""
    ignored = {task.task_id for task in tasks if task.is_teardown and not task.on_failure_fail_dagrun}
    leaves = (
        task.task_id for task in tasks if task.task_id not in ignored and ignored.issuperset(task.downstream_task_ids)
    )
    return frozenset(leaves) or frozenset(task.task_id for task in tasks if not task.downstream_task_ids)
