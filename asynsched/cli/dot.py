"""A DAG as a drawing for Graphviz: tasks as boxes, task groups as frames."""

from collections.abc import Iterator

from asynsched.serialization.schema import SerializedDag, SerializedTask


def as_dot(dag: SerializedDag) -> str:
    """Return a DAG in the DOT language."""
    lines = [f"digraph {_quoted(dag.dag_id)} {{", "  rankdir=LR", "  node [shape=box, style=rounded]"]
    lines += _frame(dag, None, "  ")
    lines += [line for task in dag.tasks for line in _edges(task)]
    return "\n".join([*lines, "}", ""])


def _frame(dag: SerializedDag, group_id: str | None, indent: str) -> Iterator[str]:
    """Yield the tasks of a group, and the groups within it as frames."""
    for task in dag.tasks:
        if task.group_id == group_id:
            yield f"{indent}{_quoted(task.task_id)}"
    for group in dag.task_groups:
        if group.parent_id == group_id and group.group_id != group_id:
            yield f"{indent}subgraph {_quoted(f'cluster_{group.group_id}')} {{"
            yield f"{indent}  label={_quoted(group.group_id)}"
            yield from _frame(dag, group.group_id, indent + "  ")
            yield f"{indent}}}"


def _edges(task: SerializedTask) -> Iterator[str]:
    for target in task.downstream_task_ids:
        label = task.edge_labels.get(target)
        attributes = f" [label={_quoted(label)}]" if label else ""
        yield f"  {_quoted(task.task_id)} -> {_quoted(target)}{attributes}"


def _quoted(text: str) -> str:
    """Quote a text; control characters, which labels may hold, become spaces."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
