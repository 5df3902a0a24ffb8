"""The processes below this one, however they were forked: finding them, measuring them, ending them all.

The caller has made itself a subreaper: what a dead child leaves behind becomes a child of the caller, so that killing
children until there is none reaches every descendant, in a session of its own or not.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
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


def end_all(leader: int) -> tuple[int | None, bool]:
    """Kill a child, its process group and every descendant, and reap them.

    A parse cannot leave its process group where seccomp holds: then the first signal reaches all of it at once, however
    fast it forks. The child must not have been reaped, or its group could be somebody else's by now.

    Returns:
        The child's status as `os.waitpid` gives it, None if it did not end; and whether no process is left.
    """
    deadline = time.monotonic() + KILL_SECONDS
    status: int | None = None
    for kill in (os.killpg, os.kill):
        # The child may not have made its group yet.
        with contextlib.suppress(OSError):
            kill(leader, signal.SIGKILL)
    while time.monotonic() < deadline:
        reaped, any_left = _reap()
        status = reaped.get(leader, status)
        if not any_left:
            return status, True
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_SECONDS)
    return status, False


def _reap() -> tuple[dict[int, int], bool]:
    """Reap what has ended; return the statuses, and whether any child is left."""
    reaped: dict[int, int] = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            reaped[ended[0]] = ended[1]
    except ChildProcessError:
        return reaped, False
    return reaped, True


def end_strangers(known: Collection[int]) -> None:
    """Kill and reap every child that is not known, and what they leave behind in turn.

    They came to this process, a subreaper, because the process that had started them was killed.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while (strangers := set(children_of(os.getpid())).difference(known)) and time.monotonic() < deadline:
        for pid in strangers:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
