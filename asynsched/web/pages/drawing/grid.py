"""The grid's rows: groups and tasks below each other, a cell for each run."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from markupsafe import Markup, escape

from asynsched.queries.grid import Grid, GridCell, GridRun, folded
from asynsched.serialization.schema import SerializedDag, SerializedTask
from asynsched.web.pages.showing import NO_STATE, STATES, state_class

MOST_LINKED_CELLS = 4000
"""A larger grid has links in its head and at its left only: more elements would make the browser slow."""
Address = Callable[..., str]
_EMPTY = "<td></td>"


class GridRows(NamedTuple):
    """The rows as HTML. `is_linked`: whether each cell is a link."""

    html: Markup
    is_linked: bool
    n_rows: int


class _Row(NamedTuple):
    name: str
    title: str
    depth: int
    group_id: str | None
    task_ids: tuple[str, ...]


def grid_rows(dag: SerializedDag, grid: Grid, address: Address) -> GridRows:
    """Return the rows of a DAG's grid. Tasks that only earlier versions have come last."""
    rows = [*_rows(dag), *_former(dag, grid)]
    is_linked = len(rows) * len(grid.runs) <= MOST_LINKED_CELLS
    html = "".join(_html(dag.dag_id, row, grid, address, is_linked=is_linked) for row in rows)
    return GridRows(Markup(html), is_linked, len(rows))  # noqa: S704 - every name in it is escaped


def _rows(dag: SerializedDag) -> Iterator[_Row]:
    places = {task.task_id: place for place, task in enumerate(dag.tasks)}
    groups = {group.group_id: group for group in dag.task_groups}
    members: dict[str | None, list[SerializedTask]] = {}
    for task in dag.tasks:
        members.setdefault(task.group_id if task.group_id in groups else None, []).append(task)
    children: dict[str | None, list[str]] = {}
    for group in dag.task_groups:
        parent = group.parent_id if group.parent_id in groups and group.parent_id != group.group_id else None
        children.setdefault(parent, []).append(group.group_id)

    def tasks_of(group_id: str) -> tuple[str, ...]:
        own = (task.task_id for task in members.get(group_id, ()))
        return (*own, *(task_id for child in children.get(group_id, ()) for task_id in tasks_of(child)))

    def below(group_id: str | None, depth: int) -> Iterator[_Row]:
        found: list[tuple[int, SerializedTask | str]] = [
            (places[task.task_id], task) for task in members.get(group_id, ())
        ]
        of_groups = ((child, tasks_of(child)) for child in children.get(group_id, ()))
        found += [(min(places[task_id] for task_id in tasks), child) for child, tasks in of_groups if tasks]
        for _, one in sorted(found, key=lambda pair: pair[0]):
            name = (one if isinstance(one, str) else one.task_id).removeprefix(f"{group_id}." if group_id else "")
            if isinstance(one, str):
                yield _Row(name, one, depth, one, tasks_of(one))
                yield from below(one, depth + 1)
            else:
                yield _Row(f"{name} [ ]" if one.map_length else name, one.task_id, depth, None, (one.task_id,))

    return below(None, 0)


def _former(dag: SerializedDag, grid: Grid) -> list[_Row]:
    known = {task.task_id for task in dag.tasks}
    found = dict.fromkeys(task_id for cells in grid.cells.values() for task_id in cells if task_id not in known)
    return [_Row(task_id, f"{task_id}: not in the newest version", 0, None, (task_id,)) for task_id in sorted(found)]


def _html(dag_id: str, row: _Row, grid: Grid, address: Address, *, is_linked: bool) -> str:
    kind = "group" if row.group_id else "task"
    head = (
        f'<tr class="{kind} d{min(row.depth, 6)}"><th scope="row" title="{escape(row.title)}">{escape(row.name)}</th>'
    )
    return (
        head + "".join(_cell(dag_id, row, run, grid.cells[run.id], address, is_linked) for run in grid.runs) + "</tr>"
    )


_PLAIN = {state: f'<td class="{state_class(state)}">{sign}</td>' for state, sign in STATES.items()}
"""The cells of a large grid, which has very many: only their states."""


def _cell(dag_id: str, row: _Row, run: GridRun, cells: dict[str, GridCell], address: Address, is_linked: bool) -> str:
    if not is_linked and row.group_id is None:
        only = cells.get(row.task_ids[0])
        return _EMPTY if only is None else _PLAIN.get(only.state or NO_STATE, _EMPTY)
    found = [cells[task_id] for task_id in row.task_ids if task_id in cells]
    if not found:
        return _EMPTY
    cell = folded(found)
    state = cell.state or NO_STATE
    shown, sign = state_class(cell.state), STATES.get(state, " ")
    if not is_linked:
        return _PLAIN.get(state, _EMPTY)
    if row.group_id:
        where = address("dags", dag_id, "runs", run.run_id)
    elif cell.is_mapped:
        where = address("dags", dag_id, "runs", run.run_id, task_id=row.task_ids[0])
    else:
        where = address("dags", dag_id, "runs", run.run_id, "tasks", row.task_ids[0])
    some = "" if cell.n_instances == 1 else f", {cell.n_of_state} of {cell.n_instances}"
    told = escape(f"{row.name}: {state.replace('_', ' ')}{some}")
    return f'<td class="{shown}"><a href="{escape(where)}" title="{told}" aria-label="{told}">{sign}</a></td>'
