"""Parts of one log that several homes have: how two relate, and their lines in the order of their times.

The keeper stamps each line. A line without a stamp, as of a log at its limit, belongs to the line before it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import reduce
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import BinaryIO, Literal

from asynsched.executors.log_stores import ELSEWHERE

Relation = Literal["extends", "contained", "differs"]
_COMPARED = 1024**2
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] ")


def relation_of(local: BinaryIO, stored: BinaryIO) -> Relation:
    """Return how a log relates to the stored one.

    Returns:
        `extends`: it begins with the stored one. `contained`: the stored one begins or ends with it, so it was stored
        before. `differs`: it may have lines that the stored one lacks.
    """
    n_local, n_stored = local.seek(0, 2), stored.seek(0, 2)
    if _are_equal(local, stored, min(n_local, n_stored)):
        return "extends" if n_local > n_stored else "contained"
    if n_local < n_stored and _are_equal(local, stored, n_local, n_stored - n_local):
        return "contained"
    return "differs"


def write_joined(whole: BinaryIO, first: BinaryIO, second: BinaryIO) -> None:
    """Write the lines of two parts of a log to a file; see `joined`."""
    for part in (first, second):
        part.seek(0)
    whole.writelines(joined(first, second))
    whole.flush()


def joined(first: Iterable[bytes], second: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of two parts of a log in the order of their times, and once those that both have.

    Each part is in the order of its times; where its clock was set back, lines keep the time of the line before. The
    line that stands for other parts is left out. Every line ends with a line end.
    """
    by_time = merge(_by_time(first), _by_time(second), key=itemgetter(0))
    for _, found in groupby(by_time, key=itemgetter(0)):
        yield from reduce(_united, (lines for _, lines in found))


def _by_time(part: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    for time, lines in groupby(_timed(part), key=itemgetter(0)):
        yield time, [line for _, line in lines]


def _timed(part: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    time = b""
    for line in part:
        if found := _STAMP.match(line):
            time = max(time, found[0])
        elif ELSEWHERE.startswith(line.strip()):
            continue
        yield time, line.removesuffix(b"\n") + b"\n"


def _united(some: list[bytes], others: list[bytes]) -> list[bytes]:
    """Return the lines of one part at a time, then those of the other that it lacks."""
    n_left = Counter(some)
    more = []
    for line in others:
        if n_left[line]:
            n_left[line] -= 1
        else:
            more.append(line)
    return some + more


def _are_equal(local: BinaryIO, stored: BinaryIO, n_bytes: int, start_stored: int = 0) -> bool:
    local.seek(0)
    stored.seek(start_stored)
    while n_bytes > 0:
        block = local.read(min(n_bytes, _COMPARED))
        if not block or block != stored.read(len(block)):
            return False
        n_bytes -= len(block)
    return True
