"""Tables: on a terminal fitted to its width, in local time; for a program a line for each row, in UTC."""

import sys
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

from rich.console import Console
from rich.table import Table

from asynsched.cli.rendering import Listing, Record, Row, cell, note, printable
from asynsched.cli.table_layout import Cells, Layout, fits, fitted_table, whole_table

PIPE_WIDTH = 10_000
"""Columns of a table that no terminal shows: lines are never broken for a program that reads them."""


def show_tables(answer: Listing | Record, *, wide: bool = False) -> None:
    """Write a listing, or a record with its sections below, to standard output.

    Args:
        wide: With all columns and instants in full, also on a terminal.
    """
    show = _show_whole if wide or not sys.stdout.isatty() else _show_fitted
    if isinstance(answer, Listing):
        if answer.rows:
            show((not wide and answer.usual) or answer.columns, answer.rows, answer.spare)
        else:
            note(answer.nothing)
        for row in answer.rows:
            _show_texts(str(row.get(answer.columns[0])), row, answer.texts)
        return
    fields = {name: value for name, value in answer.fields.items() if name not in answer.sections}
    show(("field", "value"), [{"field": name, "value": value} for name, value in fields.items()], ())
    for name, spare in answer.sections.items():
        if rows := answer.fields[name]:
            sys.stdout.write(f"\n{name}\n")
            sys.stdout.flush()
            show(tuple(rows[0]), rows, spare)


def _show_texts(title: str, row: Row, names: Sequence[str]) -> None:
    for name in names:
        text = printable(row.get(name) or "", keep="\n\t").rstrip()
        if text:
            sys.stdout.write(f"\n{printable(title)}: {name}\n{text}\n")


def _show_whole(columns: Sequence[str], rows: Sequence[Row], _: Sequence[str]) -> None:
    cells: Cells = {column: [cell(row.get(column)) for row in rows] for column in columns}
    _print(cells, whole_table(cells), _numbers(rows), PIPE_WIDTH)


def _show_fitted(columns: Sequence[str], rows: Sequence[Row], spare: Sequence[str]) -> None:
    """Write a table for a terminal: fitted to its width, with short instants of local time."""
    width = Console().width
    instants = [column for column in columns if any(isinstance(row.get(column), datetime) for row in rows)]
    cells: Cells = {column: [cell(row.get(column), local=True) for row in rows] for column in columns}
    cells = {**cells, **{name: _without_seconds(cells[name]) for name in instants}}
    layout = whole_table(cells) if fits(cells, width) else fitted_table(cells, width, spare=spare, whole=instants)
    _print(cells, layout, _numbers(rows), width)
    if layout.left_out:
        note(f"No room for {', '.join(layout.left_out)}: a wider terminal shows them, and so does --wide.")


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
