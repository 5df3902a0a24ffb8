"""Which processes an installation has, and which part each plays in it.

A process is named by its number and the instant of its start, and signals go through a descriptor of it: so none ever
hits another one that has got the same number.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple


class Stat(NamedTuple):
    """The kernel's view of a process."""

    pid: int
    name: str
    parent: int
    state: str
    started: int
    """In ticks of the clock since the machine has started."""
    command: str

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Victim:
    """A process that something may be done to."""

    stat: Stat
    role: str

    def send(self, number: signal.Signals) -> bool:
        """Send a signal. Returns whether the process existed."""
        try:
            descriptor = os.pidfd_open(self.stat.pid)
        except ProcessLookupError:
            return False
        try:
            now = read_stat(self.stat.pid)
            if now is None or now.started != self.stat.started or now.state == "Z":
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)


def read_stat(pid: int) -> Stat | None:
    """Return the kernel's view of a process; None when it is gone."""
    folder = Path("/proc", str(pid))
    try:
        named, _, text = (folder / "stat").read_text().rpartition(")")
        fields = text.split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, IndexError):
        return None
    return Stat(pid, named.partition("(")[2], int(fields[1]), fields[0], int(fields[19]), command)


def census(
    root: Path, schedulers: Collection[int], running: Collection[int], others: Mapping[int, str] = MappingProxyType({})
) -> dict[str, list[Victim]]:
    """Return the living processes of an installation by their role.

    Args:
        root: The folder that is named on the command line of each of them.
        schedulers: Process ids of the schedulers.
        running: Process ids of those that are in a task's body.
        others: The roles of processes that are known by their ids.
    """
    found: dict[str, list[Victim]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        stat = read_stat(int(folder.name))
        if stat is None or stat.state == "Z" or not (str(root) in stat.command or stat.pid in others):
            continue
        if (role := others.get(stat.pid) or _role(stat, schedulers, running)) is not None:
            found[role].append(Victim(stat, role))
    return found


_ROLES = {
    "keeper": "keeper",
    "zygote": "zygote",
    "full zygote": "full zygote",
    "template of ": "template",
    "ready for ": "ready process",
    "try ": "ready process",
    "callback of ": "ready process",
    "triggers of ": "trigger host",
    "parse server": "parse server",
    "guardian of parses": "guardian",
    "guardian of the parse of ": "parse",
    "parse of ": "parse",
}
"""By how their titles begin."""


def _role(stat: Stat, schedulers: Collection[int], running: Collection[int]) -> str | None:
    if stat.pid in schedulers:
        return "scheduler"
    if stat.pid in running:
        return "task"
    title = stat.command.partition("asynsched: ")[2]
    return next((role for beginning, role in _ROLES.items() if title.startswith(beginning)), None)
