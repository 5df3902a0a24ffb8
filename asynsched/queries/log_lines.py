"""Where lines of a log begin. These read a log by blocks, and block: call them in a thread, or without a loop."""

from asynsched.queries.log_sources import LogSource

BLOCK_BYTES = 1024**2


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
