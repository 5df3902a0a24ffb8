"""The processes below this one: who has exited, and who was left behind.

The keeper is a subreaper, and so is each try while it lives. What a try's processes leave behind becomes the keeper's
child at the moment the try dies, whatever session or group it has put itself into; there is no other way to become a
child of the keeper without its knowledge.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from sandbox.confinement import kernel


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own. Where the kernel has no such thing, do nothing."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent process ends, also if it has ended already."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_readable(*, readable: bool) -> None:
    """Let other processes of this user read this one's memory, or not."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_DUMPABLE, int(readable))


def reap() -> Iterator[tuple[int, int]]:
    """Yield process and exit status of each child that has exited.

    The process group that the child led is killed first: while the child is not reaped its number names that group
    and no other.
    """
    with suppress(ChildProcessError):
        while pid := _exited():
            kill_group(pid)
            yield os.waitpid(pid, 0)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of that number, if there is one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_strangers(known: Callable[[], Collection[int]]) -> None:
    """Send SIGKILL to every child that is not known: what ended tries have left behind.

    Args:
        known: Called when it is certain who is a child: those that become one meanwhile are not looked at.
    """
    children = _children()
    for pid in set(children).difference(known()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_all_children() -> None:
    """Kill every descendant of a process that adopts orphans, and return when all are gone."""
    with suppress(ChildProcessError):
        while True:
            kill_strangers(frozenset)
            os.waitpid(-1, 0)


def is_child(pid: int) -> bool:
    """Return whether this is a child of this process that is not reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _exited() -> int:
    """Return a child that has exited and is not reaped, 0 for none. Raises ChildProcessError without any child."""
    info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return 0 if info is None else info.si_pid


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]
