"""The lines that differ between two versions of the code of a DAG, found within a bounded time."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

MOST_PAIRS = 2_000_000
"""Pairs of equal lines of two texts: one step of a comparison looks at all of them."""
CONTEXT = 4
"""Lines around a difference that are shown."""


class DifferenceLine(NamedTuple):
    """A line of a difference: `added`, `removed`, `same` or `place`."""

    kind: str
    text: str


class FileDifference(NamedTuple):
    """A file that differs, with both its texts. `lines` is None: the comparison would take too long."""

    path: str
    before: str
    after: str
    lines: tuple[DifferenceLine, ...] | None


class _TooLong(Exception):
    """The time for a comparison is over."""


class _Matcher(SequenceMatcher[str]):
    """Compares lines, and asks before each step whether it goes on."""

    def __init__(self, before: Sequence[str], after: Sequence[str], goes_on: Callable[[], bool]) -> None:
        super().__init__(None, before, after)
        self._goes_on = goes_on

    def find_longest_match(self, *place: Any, **more: Any) -> Any:
        if not self._goes_on():
            raise _TooLong
        return super().find_longest_match(*place, **more)


def compare(
    before: Mapping[str, str], after: Mapping[str, str], goes_on: Callable[[], bool]
) -> tuple[FileDifference, ...]:
    """Return the files that differ, by their paths.

    Args:
        before: The text of each file of a version, by its path.
        after: The same of the other version.
        goes_on: Whether there is time left; asked before each step, which takes a second at most.
    """
    paths = sorted({*before, *after})
    pairs = ((path, before.get(path, ""), after.get(path, "")) for path in paths)
    found = (FileDifference(*pair, _lines(*pair[1:], goes_on)) for pair in pairs if pair[1] != pair[2])
    return tuple(one for one in found if one.lines != ())


def _lines(before: str, after: str, goes_on: Callable[[], bool]) -> tuple[DifferenceLine, ...] | None:
    old, new = before.splitlines(), after.splitlines()
    n_old, n_new = Counter(old), Counter(new)
    if sum(n * n_new[line] for line, n in n_old.items()) > MOST_PAIRS:
        return None
    try:
        groups = list(_Matcher(old, new, goes_on).get_grouped_opcodes(CONTEXT))
    except _TooLong:
        return None
    return tuple(line for group in groups for line in _of_group(group, old, new))


def _of_group(
    group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str]
) -> Iterator[DifferenceLine]:
    """Yield one place of a difference, in the unified form."""
    (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
    place = f"@@ -{old_start + 1},{old_end - old_start} +{new_start + 1},{new_end - new_start} @@"
    yield DifferenceLine("place", place)
    for kind, i, i_end, j, j_end in group:
        if kind == "equal":
            yield from (DifferenceLine("same", f" {line}") for line in old[i:i_end])
        else:
            yield from (DifferenceLine("removed", f"-{line}") for line in old[i:i_end])
            yield from (DifferenceLine("added", f"+{line}") for line in new[j:j_end])
