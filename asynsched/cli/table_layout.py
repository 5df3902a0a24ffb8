"""How a table is fitted to the width of a terminal: what is shortened, broken over lines or left out. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

GAP = 2
"""Blanks between two columns."""
PROSE_WIDTH = 15
"""Columns that a text of several words has at least: it is broken at its blanks."""
LONGEST_NAME = 48
"""Longer texts without a blank are broken, too: no terminal has room for several of them."""

Cells = Mapping[str, Sequence[str]]


class Layout(NamedTuple):
    """How a table is shown.

    Attributes:
        headers: What stands above each column that is shown, by its name.
        breakable: Columns whose texts may be broken over lines.
        left_out: Columns for which there is no room.
    """

    headers: Mapping[str, str]
    breakable: frozenset[str]
    left_out: tuple[str, ...] = ()


def fits(cells: Cells, width: int) -> bool:
    """Return whether a table has room in so many columns of a terminal as it is."""
    return _width({name: max(len(name), *map(len, texts)) for name, texts in cells.items()}) <= width


def whole_table(cells: Cells) -> Layout:
    """Return the layout of a table that has room."""
    return Layout({name: name for name in cells}, frozenset(cells))


def fitted_table(cells: Cells, width: int, *, spare: Sequence[str] = (), whole: Collection[str] = ()) -> Layout:
    """Return how a table fits into so many columns of a terminal that has no room for all of it.

    Headers are broken at their underscores. Columns in which there is nothing are not shown. Then columns are left out,
    the spare ones in their order, until the names in the others are whole. If that is not enough, the widest break.

    Args:
        cells: The texts of each column, by its name.
        width: Of the terminal.
        spare: Columns that are not needed to understand the rest, the least useful first.
        whole: Columns of several words that should not be broken, such as instants.
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
    """Return a header broken at its underscores, into lines that are no longer than the texts below, or than a word."""
    words = header.split("_")
    room = max(longest if not is_breakable else min(longest, PROSE_WIDTH), *map(len, words))
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f"_{word}"
        else:
            lines.append(word)
    return "\n".join(lines)
