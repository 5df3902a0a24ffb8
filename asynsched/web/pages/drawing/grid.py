"""The grid's rows: groups and tasks below each other, a cell for each run. The tasks of a folded group are left out."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from markupsafe import Markup, escape

from asynsched.queries.grid import Grid, GridCell, GridRun, folded
from asynsched.serialization.schema import SerializedDag, SerializedTask
from asynsched.web.pages.drawing.folding import Folding
from asynsched.web.pages.showing import NO_STATE, STATES, state_class

MOST_LINKED_CELLS = 4000
"""In a larger grid, page.js makes a cell a link when it is pointed at: more elements would make the browser slow."""
N_WIDE_ROWS = 20
"""Rows of a large grid that a browser always lays out, so that the column of names fits the longest ones."""
Address = Callable[..., str]
Turned = Callable[[str], str]
"""Returns the address of the grid in which a group is open if it is folded now, and the other way round."""
SIGN_WIDTH = 2
"""Of the sign before the name of a group, in characters."""


class GridRows(NamedTuple):
    """The rows as HTML.

    Attributes:
        is_large: The cells have no links yet, and the browser lays out the rows that can be seen only. That needs rows
            that are no table rows for the browser, so each element has a role that says what it is.
    """

    html: Markup
    is_large: bool


class _Row(NamedTuple):
    name: str
    title: str
    depth: int
    group_id: str | None
    task_ids: tuple[str, ...]
    is_folded: bool = False


def grid_rows(dag: SerializedDag, grid: Grid, folding: Folding, address: Address, turned: Turned) -> GridRows:
    """Return the rows of a DAG's grid. Tasks that only earlier versions have come last."""
    rows = [*_rows(dag, folding), *_former(dag, grid)]
    is_large = len(rows) * len(grid.runs) > MOST_LINKED_CELLS
    if is_large:
        wide = set(heapq.nlargest(N_WIDE_ROWS, rows, key=_width))
        html = "".join(_large_row(row, grid, turned, is_wide=row in wide) for row in rows)
    else:
        html = "".join(_linked_row(dag.dag_id, row, grid, address, turned) for row in rows)
    return GridRows(Markup(html), is_large)  # noqa: S704 - every name in it is escaped


def _rows(dag: SerializedDag, folding: Folding) -> Iterator[_Row]:
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
                yield _Row(name, one, depth, one, tasks_of(one), folding.is_folded(one))
                if not folding.is_folded(one):
                    yield from below(one, depth + 1)
            else:
                yield _Row(f"{name} [ ]" if one.map_length else name, one.task_id, depth, None, (one.task_id,))

    return below(None, 0)


def _former(dag: SerializedDag, grid: Grid) -> list[_Row]:
    known = {task.task_id for task in dag.tasks}
    found = dict.fromkeys(task_id for cells in grid.cells.values() for task_id in cells if task_id not in known)
    return [_Row(task_id, f"{task_id}: not in the newest version", 0, None, (task_id,)) for task_id in sorted(found)]


def _kind(row: _Row) -> str:
    return f"{'group' if row.group_id else 'task'} d{min(row.depth, 6)}"


def _width(row: _Row) -> int:
    """Return about how wide the name of a row is, in characters: each depth indents by two."""
    return len(row.name) + (SIGN_WIDTH if row.group_id else 0) + 2 * min(row.depth, 6)


def _name(row: _Row, turned: Turned) -> str:
    """Return the name of a row; that of a group is a link, by which it opens or folds."""
    if row.group_id is None:
        return escape(row.name)
    verb, is_open = ("Open", "false") if row.is_folded else ("Fold", "true")
    link = '<a class="fold" href="{0}" hx-get="{0}" aria-expanded="{1}" title="{2} the group {3}">{4}</a>'
    return Markup(link).format(turned(row.group_id), is_open, verb, row.group_id, row.name)  # noqa: S704 - escaped


def _cell(row: _Row, cells: Mapping[str, GridCell]) -> GridCell | None:
    if row.group_id is None:
        return cells.get(row.task_ids[0])
    found = [cells[task_id] for task_id in row.task_ids if task_id in cells]
    return folded(found) if found else None


_EMPTY = '<td role="cell"></td>'
_PLAIN = {state: f'<td role="cell" class="{state_class(state)}">{sign}</td>' for state, sign in STATES.items()}
"""The cells of a large grid, which has very many: only their states."""
_MAPPED = {state: cell.replace(" class", " data-mapped class") for state, cell in _PLAIN.items()}


def _large_row(row: _Row, grid: Grid, turned: Turned, *, is_wide: bool) -> str:
    found = (_cell(row, grid.cells[run.id]) for run in grid.runs)
    cells = (_large_cell(cell) for cell in found)
    task = "" if row.group_id else f' data-task="{escape(row.task_ids[0])}"'
    head = f'<th role="rowheader"{task} title="{escape(row.title)}">{_name(row, turned)}</th>'
    return f'<tr role="row" class="{_kind(row)}{" wide" if is_wide else ""}">{head}{"".join(cells)}</tr>'


def _large_cell(cell: GridCell | None) -> str:
    if cell is None:
        return _EMPTY
    return (_MAPPED if cell.is_mapped else _PLAIN).get(cell.state or NO_STATE, _EMPTY)


def _linked_row(dag_id: str, row: _Row, grid: Grid, address: Address, turned: Turned) -> str:
    head = f'<th scope="row" title="{escape(row.title)}">{_name(row, turned)}</th>'
    cells = (_linked_cell(dag_id, row, run, _cell(row, grid.cells[run.id]), address) for run in grid.runs)
    return f'<tr class="{_kind(row)}">{head}{"".join(cells)}</tr>'


def _linked_cell(dag_id: str, row: _Row, run: GridRun, cell: GridCell | None, address: Address) -> str:
    if cell is None:
        return "<td></td>"
    state = cell.state or NO_STATE
    if row.group_id:
        where = address("dags", dag_id, "runs", run.run_id)
    elif cell.is_mapped:
        where = address("dags", dag_id, "runs", run.run_id, task_id=row.task_ids[0])
    else:
        where = address("dags", dag_id, "runs", run.run_id, "tasks", row.task_ids[0])
    some = "" if cell.n_instances == 1 else f", {cell.n_of_state} of {cell.n_instances}"
    told = escape(f"{row.name}: {state.replace('_', ' ')}{some}")
    link = f'<a href="{escape(where)}" title="{told}" aria-label="{told}">{STATES.get(state, " ")}</a>'
    return f'<td class="{state_class(cell.state)}">{link}</td>'
