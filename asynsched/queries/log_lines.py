"""Where lines of a log begin, and which have a text.

These read a log by blocks, and block: call them in a thread, or without a loop.
"""

from collections.abc import Iterator

from msgspec import Struct

from asynsched.queries.log_sources import LogSource

BLOCK_BYTES = 1024**2
MOST_FOUND = 500
"""Lines that a search returns."""


class FoundLine(Struct, frozen=True):
    """A line with a text that was looked for, and its first byte."""

    start: int
    text: str


def start_of_line(log: LogSource, number: int, *, start: int = 0) -> int:
    """Return the first byte of a line, counted from 1 at a byte; of an absent line the end of the log."""
    to_skip = number - 1
    if to_skip <= 0:
        return start
    for block in log.blocks(start, BLOCK_BYTES):
        n_ends = block.count(b"\n")
        if n_ends < to_skip:
            to_skip -= n_ends
            start += len(block)
            continue
        place = -1
        for _ in range(to_skip):
            place = block.index(b"\n", place + 1)
        return start + place + 1
    return start


def start_of_tail(log: LogSource, n_lines: int) -> int:
    """Return the first byte of the last lines of a log."""
    start, missing, is_end = log.size, n_lines, True
    while start > 0:
        n_bytes = min(start, BLOCK_BYTES)
        start -= n_bytes
        block = log.read(start, n_bytes)
        # The end of the last line separates no lines.
        place = len(block) - 1 if is_end and block.endswith(b"\n") else len(block)
        is_end = False
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
    return 0


def find_lines(log: LogSource, wanted: str) -> list[FoundLine]:
    """Return the first lines of a log that have a text, in either case."""
    wanted = wanted.lower()
    found: list[FoundLine] = []
    start = 0
    for line in _lines(log):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if wanted in text.lower():
            found.append(FoundLine(start, text))
            if len(found) == MOST_FOUND:
                break
        start += len(line)
    return found


def _lines(log: LogSource) -> Iterator[bytes]:
    """Yield the lines of a log; of a longer one than BLOCK_BYTES, pieces."""
    rest = b""
    for block in log.blocks(0, BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) >= BLOCK_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest
