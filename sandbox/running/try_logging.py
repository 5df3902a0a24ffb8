"""How a try's output looks: Python's logging and prints go to the try's log, line by line, in order."""

import io
import logging
import sys
import time

FORMAT = "[%(asctime)s.%(msecs)03dZ] {%(filename)s:%(lineno)d} %(levelname)s - %(message)s"


def configure_logging() -> None:
    """Set up this process, and those that it forks: standard output and error by the line, logging to it."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    handler = logging.StreamHandler(sys.stdout)
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
