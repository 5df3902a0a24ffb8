"""Which processes an installation has, and which part each plays in it.

A process is named by its number and the instant of its start, and signals go through a descriptor of it: so none ever
hits another one that has got the same number.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROLES = (
    "scheduler", "keeper", "zygote", "template", "task", "ready process", "trigger host", "parse server", "guardian",
    "parse",
)  # fmt: skip


class Stat(NamedTuple):
    """What the kernel says of a process."""

    pid: int
    name: str
    parent: int
    session: int
    state: str
    started: int
    """In ticks of the clock since the machine has started."""
    command: str

    @property
    def leads_session(self) -> bool:
        return self.pid == self.session

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
        """Send a signal. Returns whether there was somebody to get it."""
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
    """Return what the kernel says of a process, None when it is gone."""
    folder = Path("/proc", str(pid))
    try:
        named, _, text = (folder / "stat").read_text().rpartition(")")
        fields = text.split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, IndexError):
        return None
    return Stat(pid, named.partition("(")[2], int(fields[1]), int(fields[3]), fields[0], int(fields[19]), command)


def census(root: Path, schedulers: Collection[int], running: Collection[int]) -> dict[str, list[Victim]]:
    """Return the living processes of an installation by their role.

    Args:
        root: The folder that is named on the command line of each of them.
        schedulers: Process ids of the schedulers.
        running: Process ids of those that are in a task's body.
    """
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (stat := read_stat(int(folder.name))) is not None and str(root) in stat.command:
            stats[stat.pid] = stat
    found: dict[str, list[Victim]] = defaultdict(list)
    for stat in stats.values():
        role = _role(stat, stats, schedulers, running)
        if role is not None and stat.state != "Z":
            found[role].append(Victim(stat, role))
    return found


def _role(stat: Stat, stats: dict[int, Stat], schedulers: Collection[int], running: Collection[int]) -> str | None:
    if stat.pid in schedulers:
        return "scheduler"
    if _is_of_keeper(stat):
        return _role_below_keeper(stat, stats, running)
    if "sandbox.parse_server" in stat.command:
        return _role_below_parse_server(stat, stats)
    return "parse" if "sandbox.parse" in stat.command else None


def _role_below_keeper(stat: Stat, stats: dict[int, Stat], running: Collection[int]) -> str | None:
    if stat.pid in running:
        return "task"
    parent = stats.get(stat.parent)
    if stat.leads_session:
        if parent is not None and not _is_of_keeper(parent):
            return None  # it starts a keeper, and is gone in a moment
        return "trigger host" if _has_threads_or_loop(stat.pid) else "ready process"
    if parent is None or not _is_of_keeper(parent):
        return "keeper"
    return "zygote" if stat.name.startswith("zygote") else "template"


def _is_of_keeper(stat: Stat) -> bool:
    """Whether a process is a keeper, or a fork of one, or of a zygote that was executed when the first had died."""
    return "sandbox.keeper" in stat.command or "sandbox.zygote" in stat.command


def _has_threads_or_loop(pid: int) -> bool:
    """Whether a process waits in an event loop, as of the forks only the hosts of triggers do."""
    with suppress(OSError):
        return any(
            "eventpoll" in os.readlink(entry)  # noqa: PTH115 - such a link names no path
            for entry in Path("/proc", str(pid), "fd").iterdir()
        )
    return False


def _role_below_parse_server(stat: Stat, stats: dict[int, Stat]) -> str:
    depth = 0
    while (parent := stats.get(stat.parent)) is not None and "sandbox.parse_server" in parent.command:
        stat, depth = parent, depth + 1
    return ("parse server", "guardian", "parse")[min(depth, 2)]
