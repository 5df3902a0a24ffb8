"""Who kills the process group of a parse when the process that watches it is killed itself."""

import contextlib
import os
import signal
import struct
from typing import Protocol

GROUP = struct.Struct("=i")
"""How the number of a process group is written to a pipe; 0 for none."""


class Lifeline(Protocol):
    """Somebody outside of this process who is told which process group to end when this process is gone."""

    def hold(self, group: int) -> None:
        """From now on, this group ends with this process."""
        ...

    def release(self) -> None:
        """The group has ended: its number may be somebody else's soon."""
        ...


class HelperLifeline:
    """A process of its own for each group, which waits for the end of a pipe that nobody else has.

    It is a child like any other: `tree.end_all` ends it.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def hold(self, group: int) -> None:
        """Fork the process that sees to it."""
        theirs, ours = os.pipe()
        if os.fork():
            os.close(theirs)
            self._descriptor = ours
            return
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(theirs, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        os.read(0, 1)
        end_group(group)
        os._exit(0)

    def release(self) -> None:
        """Have the process end, if `tree.end_all` has not done it."""
        os.close(self._descriptor)


class PipeLifeline:
    """The parse server, which reads the group's number from a pipe. Costs no process.

    Args:
        descriptor: The writing end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def hold(self, group: int) -> None:
        """Tell the server of the group. One that is gone has told this process to end."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, GROUP.pack(group))

    def release(self) -> None:
        """Tell the server that there is no group any more."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, GROUP.pack(0))


def end_group(group: int) -> None:
    """Kill a process group, if there is one."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
