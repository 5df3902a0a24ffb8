"""The processes below this one, however they were forked: finding them, measuring them, ending them all.

The caller has made itself a subreaper: what a dead child leaves behind becomes a child of the caller, so that killing
children until there is none reaches every descendant, in a session of its own or not.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

KILL_SECONDS = 5.0
_KILL_PAUSE_SECONDS = 0.001


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none when it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def descendants() -> list[int]:
    """Return all processes below this one, at this moment."""
    found: list[int] = []
    todo = children_of(os.getpid())
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children_of(pid)
    return found


def memory_of(pids: list[int]) -> int:
    """Return the bytes of memory that processes take together; what they share is counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def kill_all(group: int) -> bool:
    """Kill a process group and every descendant, and reap them. Return whether none is left."""
    deadline = time.monotonic() + KILL_SECONDS
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    while time.monotonic() < deadline:
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not _reap():
            return True
        time.sleep(_KILL_PAUSE_SECONDS)
    return False


def _reap() -> bool:
    """Reap what has ended, and return whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
