"""Tables: on a terminal fitted to its width, in local time; for a program a line for each row, in UTC."""

import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from asynsched.cli.output import Listing, Record, Row, cell, note, printable

GAP = 2
"""Blanks between two columns."""
PROSE_WIDTH = 15
"""Least width of a column of prose, which is broken at its blanks."""
LONGEST_NAME = 48
"""Longer texts are broken even without a blank: no terminal has room for several of them."""
LONGEST_PART = 120
"""Longest part of a text that is cut, in characters: in a narrow column it has about seven lines."""
CUT = " …"
Cells = Mapping[str, Sequence[str]]
PIPE_WIDTH = 10_000
"""Width of a table that a program reads: no line is broken."""


class Layout(NamedTuple):
    """How a table is shown.

    Attributes:
        headers: The header of each column that is shown, by its name.
        breakable: Columns whose texts may be broken over lines.
        left_out: Columns for which there is no room.
    """

    headers: Mapping[str, str]
    breakable: frozenset[str]
    left_out: tuple[str, ...] = ()


def show_tables(answer: Listing | Record, *, wide: bool = False) -> None:
    """Write a listing, or a record with its sections below; `wide`: all columns and instants in full."""
    show = _show_whole if wide or not sys.stdout.isatty() else _show_fitted
    if isinstance(answer, Listing):
        rows = answer.cells()
        if rows:
            show((not wide and answer.usual) or answer.columns, rows, answer.spare, answer.cut)
        else:
            note(answer.nothing)
        for row in rows:
            _show_texts(str(row.get(answer.columns[0])), row, answer.texts)
        return
    shown = answer.fields if answer.table is None else answer.table
    fields = {name: value for name, value in shown.items() if name not in answer.sections}
    show(("field", "value"), [{"field": name, "value": value} for name, value in fields.items()])
    for name, spare in answer.sections.items():
        if rows := shown[name]:
            sys.stdout.write(f"\n{name}\n")
            sys.stdout.flush()
            show(tuple(rows[0]), rows, spare)


def _show_texts(title: str, row: Row, names: Sequence[str]) -> None:
    for name in names:
        text = printable(row.get(name) or "", keep="\n\t").rstrip()
        if text:
            sys.stdout.write(f"\n{printable(title)}: {name}\n{text}\n")


def _show_whole(columns: Sequence[str], rows: Sequence[Row], *_: Sequence[str]) -> None:
    cells: Cells = {column: [cell(row.get(column)) for row in rows] for column in columns}
    _print(cells, whole_table(cells), _numbers(rows), PIPE_WIDTH)


def _show_fitted(
    columns: Sequence[str], rows: Sequence[Row], spare: Sequence[str] = (), cut: Collection[str] = ()
) -> None:
    """Write a table for a terminal: fitted to its width, with short instants of local time."""
    width = Console().width
    instants = [column for column in columns if any(isinstance(row.get(column), datetime) for row in rows)]
    cells: dict[str, Sequence[str]] = {
        column: [cell(row.get(column), local=True) for row in rows] for column in columns
    }
    cells = {**cells, **{name: _without_seconds(cells[name]) for name in instants}}
    whole, layout = cells, whole_table(cells)
    if not fits(cells, width):
        cells = cells | {name: [_beginning(text) for text in cells[name]] for name in cells if name in cut}
        layout = fitted_table(cells, width, spare=spare, whole=instants)
    _print(cells, layout, _numbers(rows), width)
    if any(cells[name] != whole[name] for name in layout.headers):
        note("Long texts are cut (…): --wide shows them whole.")
    if layout.left_out:
        note(f"No room for {', '.join(layout.left_out)}: a wider terminal shows them, and so does --wide.")


def _beginning(text: str) -> str:
    """Return a text, or its first words and a mark."""
    if len(text) <= LONGEST_PART:
        return text
    part = text[:LONGEST_PART]
    return f"{part.rpartition(' ')[0] or part}{CUT}"


def _without_seconds(instants: Sequence[str]) -> Sequence[str]:
    """Return instants without seconds, where all are full minutes."""
    if all(text.endswith(":00") for text in instants if text):
        return [text.removesuffix(":00") for text in instants]
    return instants


def _numbers(rows: Sequence[Row]) -> set[str]:
    """Return the columns that have numbers and nothing else."""
    values = [item for row in rows for item in row.items() if item[1] is not None]
    others = {name for name, value in values if isinstance(value, bool) or not isinstance(value, int | float)}
    return {name for name, _ in values} - others


def _print(cells: Cells, layout: Layout, numbers: Collection[str], width: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, header in layout.headers.items():
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(header, overflow="fold", justify=justify, no_wrap=name not in layout.breakable)
    for texts in zip(*(cells[name] for name in layout.headers), strict=True):
        table.add_row(*texts)
    Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False).print(table)


def fits(cells: Cells, width: int) -> bool:
    """Return whether the whole table fits into that width of a terminal."""
    return _width({name: max(len(name), *map(len, texts)) for name, texts in cells.items()}) <= width


def whole_table(cells: Cells) -> Layout:
    """Return the layout of a table that has room."""
    return Layout({name: name for name in cells}, frozenset(cells))


def fitted_table(cells: Cells, width: int, *, spare: Sequence[str] = (), whole: Collection[str] = ()) -> Layout:
    """Return the layout of a table that is too wide for a terminal.

    Headers are broken at their underscores. Empty columns are not shown. Then spare columns are left out, in their
    order, until the names in the others are whole. If that is not enough, the widest columns are broken.

    Args:
        spare: Columns that may be left out, the least useful first.
        whole: Columns that contain blanks but must not be broken, such as instants.
    """
    shown = {name: texts for name, texts in cells.items() if any(texts)}
    breakable = {name for name, texts in shown.items() if name not in whole and any(map(_is_prose, texts))}
    headers = {name: _broken(name, max(map(len, texts)), name in breakable) for name, texts in shown.items()}
    least = {name: _least(headers[name], texts, name in breakable) for name, texts in shown.items()}
    left_out = []
    for name in spare:
        if _width(least) <= width:
            break
        if least.pop(name, None) is not None:
            left_out.append(name)
    while _width(least) > width and (names := set(least) - breakable):
        widest = max(names, key=lambda name: least[name])
        breakable.add(widest)
        least[widest] = min(least[widest], PROSE_WIDTH)
    kept = {name: headers[name] for name in least}
    return Layout(kept, frozenset(breakable & set(kept)), tuple(name for name in cells if name in left_out))


def _width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _least(header: str, texts: Sequence[str], is_breakable: bool) -> int:
    longest = max(map(len, texts))
    if is_breakable:
        longest = min(longest, PROSE_WIDTH)
    return max(longest, *map(len, header.splitlines()))


def _is_prose(text: str) -> bool:
    return " " in text or len(text) > LONGEST_NAME


def _broken(header: str, longest: int, is_breakable: bool) -> str:
    """Return a header broken at its underscores, so that it is not wider than the texts below or its longest word."""
    words = header.split("_")
    room = max(longest if not is_breakable else min(longest, PROSE_WIDTH), *map(len, words))
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f"_{word}"
        else:
            lines.append(word)
    return "\n".join(lines)
