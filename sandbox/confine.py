"""The kernel's restrictions of a process that runs a DAG file, and how to request them.

`confine` is called in the process itself, before anything of the DAG folder can be imported, and cannot be undone. It
goes from outside in: resource limits, a user of its own (for root), Landlock for files, TCP and signals, seccomp for
the rest. `available` names everything that a kernel lacks.

The scheduler's side imports this module and no other of the sandbox.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from asynsched.protocol.parse_messages import ParseLimits
from sandbox.confinement import kernel, privileges, seccomp
from sandbox.confinement.file_rules import (
    ConfinementError,
    hidden_paths,
    is_within,
    of_the_machine,
    of_the_machine_without,
    rights,
    rules_of,
)

if TYPE_CHECKING:
    import landlockpy

_RESERVED_BYTES = 64 * 1024**2
_RESERVED_FILES = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """The rights of one parse."""

    limits: ParseLimits
    dags_folder: str
    """Readable, even inside something hidden."""
    scratch: str
    """Readable and writable, the only such folder."""


@dataclass(frozen=True, slots=True)
class Strength:
    """The restrictions that this machine can enforce on a parse started by this user."""

    enforced: tuple[str, ...]
    """Short names, as a ParseReport's `confinement` has them."""
    missing: tuple[str, ...] = ()
    """Sentences: the restrictions that cannot be enforced, and why."""
    stricter: tuple[str, ...] = ()
    """Sentences: harmless operations that are refused, which a newer kernel can tell from harmful ones."""
    landlock_abi: int = 0
    own_user: bool = False
    may_fork: bool = True
    seccomp: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for people."""
        said = ", ".join(self.enforced) or "nothing"
        return (f"enforced on each parse: {said}", *self.missing, *self.stricter)


FIRST_ABI_WITH_TCP, FIRST_ABI_WITH_SCOPES = 4, 6
"""Versions of Landlock. With scopes (Linux 6.12) it knows which processes are a parse's own."""


@cache
def available() -> Strength:
    """Return the restrictions that this machine can enforce on a parse of this user."""
    if sys.platform != "linux":
        return Strength(
            ("limits",), (f"{sys.platform} has neither Landlock nor seccomp: a parse reads and writes all",)
        )
    return strength_with(
        _landlock_abi(),
        has_filter=seccomp.is_known_machine() and kernel.has_filters(),
        is_root=os.geteuid() == 0,
        own_user=privileges.can_become_user(),
    )


def strength_with(landlock_abi: int, *, has_filter: bool, is_root: bool, own_user: bool) -> Strength:
    """Return the restrictions that can be enforced on a parse.

    Args:
        landlock_abi: The version of Landlock that the kernel has, 0 for none.
        has_filter: Whether it runs our seccomp filter.
        is_root: Whether root starts the parse.
        own_user: Whether the parse can become a user that no other process has.
    """
    may_fork = own_user or not is_root
    parts = {
        f"landlock {landlock_abi}": landlock_abi > 0, "seccomp": has_filter, "limits": True, "own user": own_user,
        "no fork": has_filter and not may_fork,
    }  # fmt: skip
    missing: list[str] = []
    if not landlock_abi:
        missing.append(
            "this kernel has no Landlock (Linux 5.13, `lsm=landlock`): a parse may read and write any file that its"
            " user may, and through /proc other processes of that user"
        )
    if not has_filter:
        missing.append(_without_filter(landlock_abi))
        if not may_fork:
            missing.append("root cannot become another user here: a parse may start any number of processes")
    return Strength(
        tuple(part for part, is_there in parts.items() if is_there),
        tuple(missing),
        tuple(_stricter(landlock_abi, has_filter=has_filter)),
        landlock_abi,
        own_user,
        may_fork,
        has_filter,
    )


def _stricter(landlock_abi: int, *, has_filter: bool) -> Iterator[str]:
    if landlock_abi == 1:
        yield "before Landlock 2 (Linux 5.19), a parse may move no file into another folder, not even in its own"
    if landlock_abi < FIRST_ABI_WITH_SCOPES and has_filter:
        yield "before Landlock 6 (Linux 6.12), a parse may signal no process but itself, not even one that it started"


_BY_FILTER = {3: "truncate any file of its user", FIRST_ABI_WITH_SCOPES: "signal other processes"}
"""The operations that only the seccomp filter forbids where Landlock is older."""


def _without_filter(landlock_abi: int) -> str:
    sockets = "open sockets" if landlock_abi < FIRST_ABI_WITH_TCP else "open sockets other than those of TCP"
    open_to_parses = [sockets, *(what for abi, what in _BY_FILTER.items() if landlock_abi < abi)]
    return (
        f"no seccomp filter for this machine ({os.uname().machine}): a parse may {', '.join(open_to_parses)},"
        " and change modes and owners of files, and limits and priorities of other processes"
    )


def refused_link(path: str, dags_folder: str, limits: ParseLimits) -> str:
    """Return why no parse may read the DAG file at `path`, with advice; empty unless a link leads out of the folder.

    Empty as well where nothing is kept from reading it: by the setting parse.confinement, or for want of Landlock.
    """
    link = _link_outside(dags_folder, path)
    if link is None or limits.confinement == "off" or not available().landlock_abi:
        return ""
    name, target = link
    if any(is_within(target, os.path.realpath(home)) for home in limits.hidden):
        return f"{name} is a link to {target}, in the scheduler's home, which no parse may read"
    granted = (*of_the_machine(), *map(os.path.realpath, limits.readable))
    if any(is_within(target, place) for place in granted):
        return ""
    return (
        f"{name} is a link to {target}, out of the DAG folder, which a parse may read only if parse.readable"
        f" has it; add {target}, or a folder that it is in, to parse.readable"
    )


def _link_outside(folder: str, path: str) -> tuple[str, str] | None:
    """Return the first symbolic link on the way from a folder to a path in it that leads out of it, and where to.

    A link that stays in the folder does not count.
    """
    inside = os.path.realpath(folder)
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        name = "/".join(parts[:length])
        target = os.path.realpath(f"{folder}/{name}")
        if not is_within(target, inside):
            return name, target
    return None


def _landlock_abi() -> int:
    import landlockpy

    return landlockpy.abi_version()


def close_memory() -> None:
    """Keep other processes of this user from reading this one's memory."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def prepare(limits: ParseLimits) -> None:
    """Prepare everything that all parses with these limits share, so that forks of this process need not."""
    strength = available()
    of_the_machine_without(hidden_paths(limits))
    if strength.landlock_abi:
        rights()
    if strength.seccomp:
        seccomp.program(may_fork=strength.may_fork)


def confine(policy: Policy) -> tuple[str, ...]:
    """Confine this process, and return the short names of the enforced restrictions.

    Raises:
        ConfinementError: `confinement` is `required`, and something is missing.
        OSError: The kernel refused a restriction that it had announced.
    """
    limits = policy.limits
    if limits.confinement == "off":
        return ()
    strength = available()
    if limits.confinement == "required" and strength.missing:
        raise ConfinementError("; ".join(strength.missing))
    rules = rules_of(policy) if strength.landlock_abi else None
    apply_limits(limits, max_tasks=limits.max_processes + (0 if strength.own_user else tasks_of_user(os.getuid())))
    if sys.platform == "linux":
        _forbid(strength, rules, policy.scratch)
    return strength.enforced


def _forbid(strength: Strength, rules: "landlockpy.Ruleset | None", scratch: str) -> None:
    """Give up privileges, then ways to use them. The order matters: each step needs rights that the next one takes."""
    if strength.own_user:
        uid = privileges.own_uid(os.getpid())
        os.chown(scratch, uid, uid)
        privileges.become_user(uid, keep_reading=rules is not None)
    else:
        privileges.give_up_capabilities(keep_reading=rules is not None)
    # A change of user clears the first and sets the second.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    _be_killed_first()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if rules is not None:
        rules.restrict()
        rules.close()
    if strength.seccomp:
        kernel.install_filter(seccomp.program(may_fork=strength.may_fork))
        if strength.landlock_abi < FIRST_ABI_WITH_SCOPES:
            kernel.install_filter(seccomp.program_for_signals(os.getpid()))


def _be_killed_first() -> None:
    """Make the kernel end this process before others when memory runs out for all."""
    with contextlib.suppress(OSError):
        # Simpler than a stream, for each parse does it.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"1000")
        os.close(descriptor)


def apply_limits(limits: ParseLimits, *, max_tasks: int) -> None:
    """Bound this process and its later children.

    Args:
        limits: The bounds.
        max_tasks: Processes and threads that this process's user may have in all.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds, reserve=1)
    # RLIMIT_AS would count memory that is reserved and never used, such as stacks of threads.
    _lower(resource.RLIMIT_DATA, limits.memory_bytes, reserve=_RESERVED_BYTES)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files, reserve=_RESERVED_FILES)
    _lower(resource.RLIMIT_NPROC, max_tasks)


def use_reserves() -> None:
    """Give this process the memory and open files that were reserved for error reports."""
    for which in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE):
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, (hard, hard))


def _lower(which: int, value: int, reserve: int = 0) -> None:
    """Lower a limit to `value`; the process itself may raise it by `reserve`."""
    hard = resource.getrlimit(which)[1]
    most = value + reserve if hard == resource.RLIM_INFINITY else min(value + reserve, hard)
    resource.setrlimit(which, (min(value, most), most))


def tasks_of_user(uid: int) -> int:
    """Return how many processes and threads this user has now; 0 where /proc does not tell."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                count += _threads((process / "stat").read_text())
        except OSError:
            continue
    return count


def _threads(stat: str) -> int:
    """Return the number of threads in the text of /proc/PID/stat; the name in it may have any character."""
    return int(stat.rpartition(")")[2].split()[17])
