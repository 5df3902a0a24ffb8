"""The processes below this one: adopting them, reaping, measuring, killing.

The keeper is a subreaper, and so are each try and each guardian of a parse: a process that loses its parent becomes a
child of its nearest ancestor of that kind, regardless of its session and group. So the processes that a try leaves
behind become the keeper's children at the moment the try dies; no other process becomes a child of the keeper without
its knowledge; and killing children until none is left reaches every descendant.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from sandbox.confinement import kernel

KILL_SECONDS = 5.0
_KILL_PAUSE_SECONDS = 0.001


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own. Does nothing where the kernel cannot (not Linux)."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent process ends, also if it has ended already."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_readable(*, readable: bool) -> None:
    """Allow or forbid other processes of this user to read this one's memory."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_DUMPABLE, int(readable))


def keep_only(*descriptors: int) -> None:
    """Close every descriptor but these and the standard ones."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none when it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are enough
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def descendants() -> list[int]:
    """Return all processes below this one, at this moment."""
    found = children_of(os.getpid())
    for pid in found:  # it grows meanwhile
        found += children_of(pid)
    return found


def is_child(pid: int) -> bool:
    """Return whether this is an unreaped child of this process."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def memory_of(pids: list[int]) -> int:
    """Return the bytes of memory that processes take together; shared pages are counted once."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def reap() -> Iterator[tuple[int, int]]:
    """Yield process and exit status of each child that has exited.

    The process group that the child led is killed first: until the child is reaped, its number names that group and no
    other.
    """
    with suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            kill_group(info.si_pid)
            yield os.waitpid(info.si_pid, 0)


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it is there and may be killed."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of that number, if it is there and may be killed."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_strangers(known: Callable[[], Collection[int]]) -> set[int]:
    """Send SIGKILL to every child that is not known, and return these: they were left behind by ended processes.

    Args:
        known: Called once the children are listed: later children are spared.
    """
    strangers = set(children_of(os.getpid()))
    strangers.difference_update(known())
    for pid in strangers:
        kill(pid)
    return strangers


def end_strangers(known: Collection[int]) -> None:
    """Kill and reap every child that is not known, and the processes that it leaves behind in turn."""
    deadline = time.monotonic() + KILL_SECONDS
    while (strangers := kill_strangers(lambda: known)) and time.monotonic() < deadline:
        for pid in strangers:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def end_all_children() -> None:
    """Kill every descendant of a process that adopts orphans, and return when all are gone."""
    with suppress(ChildProcessError):
        while True:
            kill_strangers(frozenset)
            os.waitpid(-1, 0)


def end_tree(leader: int) -> tuple[int | None, bool]:
    """Kill a child, its process group and every descendant of this process, and reap them.

    A parse cannot leave its process group where seccomp holds: then the first signal reaches all of it at once, however
    fast it forks. The child must not have been reaped, or its group's number could belong to other processes by now.

    Returns:
        The child's status as `os.waitpid` gives it, None if it did not end; and whether no process is left.
    """
    deadline = time.monotonic() + KILL_SECONDS
    status: int | None = None
    kill_group(leader)
    kill(leader)  # it may not have made its group yet
    while time.monotonic() < deadline:
        reaped, any_left = _reap_all()
        status = reaped.get(leader, status)
        if not any_left:
            return status, True
        for pid in descendants():
            kill(pid)
        time.sleep(_KILL_PAUSE_SECONDS)
    return status, False


def _reap_all() -> tuple[dict[int, int], bool]:
    """Reap the ended children; return their statuses, and whether any child is left."""
    reaped: dict[int, int] = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            reaped[ended[0]] = ended[1]
    except ChildProcessError:
        return reaped, False
    return reaped, True
