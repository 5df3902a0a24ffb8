"""How a try's output looks: Python's logging and prints go to the try's log, line by line, in order."""

import io
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TRY_FORMAT = "{%(filename)s:%(lineno)d} %(levelname)s - %(message)s"
"""Without the time: the keeper puts that before every line."""
KEEPER_FORMAT = f"[%(asctime)s.%(msecs)03dZ] {TRY_FORMAT}"

_handler = logging.StreamHandler()
_TRY_FORMATTER = logging.Formatter(TRY_FORMAT)


def configure_logging() -> None:
    """Set up this process, and those that it forks: standard output and error by the line, logging to it."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    _handler.setStream(sys.stdout)
    formatter = logging.Formatter(KEEPER_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    _handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [_handler]
    root.setLevel(logging.INFO)


@contextmanager
def logging_nowhere() -> Iterator[None]:
    """Format log records without writing them."""
    stream = _handler.stream
    with Path(os.devnull).open("w") as nowhere:
        _handler.setStream(nowhere)
        try:
            yield
        finally:
            _handler.setStream(stream)


def leave_time_to_keeper() -> None:
    """Log without the time from now on: the keeper adds it to each line of a try's log."""
    _handler.setFormatter(_TRY_FORMATTER)


def flush_streams() -> None:
    """Flush standard output and error, which user code may have closed, or replaced by anything."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
