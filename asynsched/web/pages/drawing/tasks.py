"""The nodes and edges of a DAG's graph: its tasks, and its groups, some of them folded to one node."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from asynsched.queries.changed_graph import ChangedGraph, edges_of
from asynsched.queries.grid import GridCell, folded
from asynsched.serialization.schema import SerializedDag
from asynsched.web.pages.drawing.graph import MOST_LETTERS, Box, Link
from asynsched.web.pages.showing import NO_STATE, STATES, shortened, state_class

Address = Callable[[str], str | None]


class Group(NamedTuple):
    """A group of a DAG.

    Attributes:
        depth: 0 for one that is in no other group.
        is_folded: Whether it is one node.
        is_hidden: Whether it is part of a folded group.
    """

    group_id: str
    depth: int
    n_tasks: int
    is_folded: bool
    is_hidden: bool


class TaskGraph(NamedTuple):
    """What is drawn."""

    boxes: list[Box]
    links: list[Link]
    groups: list[Group]


def task_graph(
    dag: SerializedDag, is_folded: Callable[[str], bool], cells: Mapping[str, GridCell], *, task_at: Address,
    group_at: Address,
) -> TaskGraph:  # fmt: skip
    """Return the graph of a DAG.

    Args:
        is_folded: Tells of a group whether it is one node.
        cells: The states of a run's tasks; empty: of no run.
        task_at: The address of a task.
        group_at: The address of the graph in which a folded group is open.
    """
    parents = _parents(dag)
    shown_as = {task.task_id: _shown_as(task.task_id, task.group_id, parents, is_folded) for task in dag.tasks}
    members: dict[str, list[str]] = {}
    for task_id, name in shown_as.items():
        members.setdefault(name, []).append(task_id)
    frames = {task.task_id: task.group_id or "" for task in dag.tasks}
    mapped = {task.task_id for task in dag.tasks if task.map_length is not None}
    boxes = [
        _task_box(name, cells, task_at(name), frames[name], is_mapped=name in mapped)
        if name in frames and shown_as[name] == name
        else _group_box(name, tasks, cells, group_at(name), parents.get(name) or "")
        for name, tasks in members.items()
    ]
    labels = edges_of(dag)
    links: dict[tuple[str, str], Link] = {}
    for (source, target), label in labels.items():
        ends = shown_as[source], shown_as[target]
        if ends[0] != ends[1] and (ends not in links or label):
            links[ends] = Link(*ends, label)
    return TaskGraph(boxes, list(links.values()), _groups(dag, parents, is_folded))


def _parents(dag: SerializedDag) -> dict[str, str | None]:
    known = {group.group_id for group in dag.task_groups}
    return {group.group_id: group.parent_id if group.parent_id in known else None for group in dag.task_groups}


def _above(group_id: str | None, parents: Mapping[str, str | None]) -> list[str]:
    """Return a group and the groups around it, the innermost first."""
    found: list[str] = []
    while group_id is not None and group_id in parents and group_id not in found:
        found.append(group_id)
        group_id = parents[group_id]
    return found


def _shown_as(
    task_id: str, group_id: str | None, parents: Mapping[str, str | None], is_folded: Callable[[str], bool]
) -> str:
    """Return the outermost folded group of a task; the task itself if there is none."""
    return next((name for name in reversed(_above(group_id, parents)) if is_folded(name)), task_id)


def _groups(dag: SerializedDag, parents: Mapping[str, str | None], is_folded: Callable[[str], bool]) -> list[Group]:
    n_tasks = dict.fromkeys(parents, 0)
    for task in dag.tasks:
        for name in _above(task.group_id, parents):
            n_tasks[name] += 1
    found = []
    for group in dag.task_groups:
        above = _above(group.group_id, parents)[1:]
        is_hidden = any(is_folded(name) for name in above)
        found.append(Group(group.group_id, len(above), n_tasks[group.group_id], is_folded(group.group_id), is_hidden))
    return [group for group in found if group.n_tasks]


def _task_box(task_id: str, cells: Mapping[str, GridCell], href: str | None, frame: str, *, is_mapped: bool) -> Box:
    cell = cells.get(task_id)
    some = "" if cell is None or cell.n_instances == 1 else f", {cell.n_of_state} of {cell.n_instances} instances"
    title = task_id if cell is None else f"{task_id}: {_state_name(cell.state)}{some}"
    name = shortened(task_id.removeprefix(f"{frame}.") if frame else task_id, MOST_LETTERS)
    kind, sign = _kind_and_sign(cell, known=bool(cells))
    return Box(task_id, name, title, kind, sign, href, is_mapped, frame)


def _group_box(group_id: str, tasks: Sequence[str], cells: Mapping[str, GridCell], href: str | None, frame: str) -> Box:
    found = [cells[task_id] for task_id in tasks if task_id in cells]
    cell = folded(found) if found else None
    state = "" if cell is None else f", {_state_name(cell.state)}: {cell.n_of_state} of {cell.n_instances}"
    short = group_id.removeprefix(f"{frame}.") if frame else group_id
    kind, sign = _kind_and_sign(cell, known=bool(cells))
    name = f"{shortened(short, MOST_LETTERS - 8)} ({len(tasks)})"
    title = f"Open the group {group_id} of {len(tasks)} tasks{state}"
    return Box(group_id, name, title, f"group {kind}", sign or "+", href, True, frame)


def _state_name(state: str | None) -> str:
    return (state or "no state").replace("_", " ")


def _kind_and_sign(cell: GridCell | None, *, known: bool) -> tuple[str, str]:
    if not known:
        return "plain", ""
    state = None if cell is None else cell.state
    return state_class(state), STATES.get(state or NO_STATE, " ")


CHANGE_SIGNS = {"added": "+", "removed": "−", "changed": "~", "same": ""}


def changed_task_graph(graph: ChangedGraph) -> tuple[list[Box], list[Link]]:
    """Return the drawing of a change of a DAG: its tasks and edges in the colours of their changes."""
    boxes = [
        Box(node.task_id, shortened(node.task_id, MOST_LETTERS), f"{node.task_id}: {node.change}",
            f"change-{node.change}", CHANGE_SIGNS[node.change])
        for node in graph.nodes
    ]  # fmt: skip
    links = [Link(edge.source_id, edge.target_id, edge.label, f"change-{edge.change}") for edge in graph.edges]
    return boxes, links
