"""The picture of a changed DAG: its changed tasks and edges with their neighbours, for Mermaid and Graphviz."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from asynsched.serialization.schema import SerializedDag

Change = Literal["added", "removed", "changed", "same"]
MOST_NODES = 100
"""Tasks in a picture: neither a browser nor a reader copes with very many."""


class GraphNode(Struct, frozen=True):
    """A task."""

    task_id: str
    change: Change


class GraphEdge(Struct, frozen=True):
    """An edge, with its label after the change, or before it if the edge is removed."""

    source_id: str
    target_id: str
    change: Change
    label: str = ""


class ChangedGraph(Struct, frozen=True):
    """The changed tasks and edges of a DAG, and what is directly before and after them.

    `n_left_out`: the tasks of these for which the picture has no room.
    """

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    n_left_out: int = 0

    @property
    def changed_edges(self) -> tuple[GraphEdge, ...]:
        """The edges without those that stay as they are."""
        return tuple(edge for edge in self.edges if edge.change != "same")


def edges_of(dag: SerializedDag) -> dict[tuple[str, str], str]:
    """Return the label of each edge of a DAG, in its order; the key is the source and the target."""
    return {
        (task.task_id, target): task.edge_labels.get(target, "")
        for task in dag.tasks
        for target in task.downstream_task_ids
    }


def compare_edges(before: SerializedDag, after: SerializedDag) -> tuple[GraphEdge, ...]:
    """Return the edges of two versions of a DAG; one with another label is changed."""
    old, new = edges_of(before), edges_of(after)

    def change_of(edge: tuple[str, str]) -> Change:
        if edge not in old or edge not in new:
            return "added" if edge in new else "removed"
        return "same" if old[edge] == new[edge] else "changed"

    edges = dict.fromkeys([*new, *old])
    return tuple(GraphEdge(*edge, change_of(edge), new.get(edge, old.get(edge, ""))) for edge in edges)


def changed_graph(before: SerializedDag, after: SerializedDag, changed: frozenset[str]) -> ChangedGraph:
    """Return the picture of a change.

    Args:
        changed: The tasks of both versions that differ.
    """
    old, new = ({task.task_id: task for task in dag.tasks} for dag in (before, after))
    edges = compare_edges(before, after)
    marked = {name for edge in edges if edge.change != "same" for name in (edge.source_id, edge.target_id)}
    marked |= (old.keys() ^ new.keys()) | changed
    ends = [(edge.source_id, edge.target_id) for edge in edges]
    near = {name for pair in ends if marked & set(pair) for name in pair} - marked
    known = [*new, *(name for name in old if name not in new)]
    wanted = [*(name for name in known if name in marked), *(name for name in known if name in near)]
    shown = set(wanted[:MOST_NODES])

    def change_of(name: str) -> Change:
        if name not in old or name not in new:
            return "added" if name in new else "removed"
        return "changed" if name in changed else "same"

    return ChangedGraph(
        tuple(GraphNode(name, change_of(name)) for name in known if name in shown),
        tuple(edge for edge in edges if edge.source_id in shown and edge.target_id in shown),
        len(wanted) - len(shown),
    )


_COLOURS: dict[Change, str] = {"added": "#1a7f37", "removed": "#cf222e", "changed": "#9a6700", "same": "#57606a"}
_ARROWS: dict[Change, str] = {"added": "==>", "removed": "-.->", "changed": "-->", "same": "-->"}


def as_mermaid(graph: ChangedGraph) -> str:
    """Return a picture in Mermaid's language: bold edges are added, dotted ones removed."""
    names = {node.task_id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    lines += [f'  {names[node.task_id]}["{_for_mermaid(_title(node))}"]:::{node.change}' for node in graph.nodes]
    for edge in graph.edges:
        label = f'|"{_for_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"  {names[edge.source_id]} {_ARROWS[edge.change]}{label} {names[edge.target_id]}")
    if graph.n_left_out:
        lines.append(f'  more["and {graph.n_left_out} more tasks"]:::same')
    used = {node.change for node in graph.nodes} | ({"same"} if graph.n_left_out else set())
    dashes = {"removed": ",stroke-dasharray:5 5"}
    lines += [
        f"  classDef {change} stroke:{colour},stroke-width:2px{dashes.get(change, '')}"
        for change, colour in _COLOURS.items()
        if change in used
    ]
    return "\n".join([*lines, ""])


def _title(node: GraphNode) -> str:
    sign = {"added": "+ ", "removed": "- ", "changed": "~ ", "same": ""}[node.change]
    return f"{sign}{node.task_id}"


def _for_mermaid(text: str) -> str:
    """Return a text in which all that could mean something to Mermaid or HTML is a character code."""
    return "".join(c if c.isalnum() or c in " _-.+~" else f"#{ord(c)};" for c in text)


def as_dot(dag_id: str, graph: ChangedGraph) -> str:
    """Return a picture in the DOT language, in the same colours."""
    return "\n".join([f"digraph {for_dot(dag_id)} {{", *_dot_lines(graph), "}", ""])


def _dot_lines(graph: ChangedGraph) -> Iterator[str]:
    yield "  rankdir=LR"
    yield "  node [shape=box]"
    for node in graph.nodes:
        style = "rounded,dashed" if node.change == "removed" else "rounded"
        yield f'  {for_dot(node.task_id)} [color="{_COLOURS[node.change]}", style="{style}"]'
    for edge in graph.edges:
        label = f", label={for_dot(edge.label)}" if edge.label else ""
        style = {"added": "bold", "removed": "dashed"}.get(edge.change, "solid")
        ends = f"{for_dot(edge.source_id)} -> {for_dot(edge.target_id)}"
        yield f'  {ends} [color="{_COLOURS[edge.change]}", style={style}{label}]'
    if graph.n_left_out:
        yield f"  {for_dot(f'and {graph.n_left_out} more tasks')} [shape=plaintext]"


def for_dot(text: str) -> str:
    """Return a text in quotes, for the DOT language; control characters, which labels may hold, become spaces."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
