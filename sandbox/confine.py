"""What the kernel can forbid a process that runs a DAG file, and how to ask for it.

`confine` is called in the process itself, before anything of the DAG folder can be imported, and cannot be undone. It
goes from outside in: resource limits, a user of its own (for root), Landlock for files, TCP and signals, seccomp for
the rest. What a kernel lacks is named by `available`, never passed over in silence.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sandbox.confinement.file_rules import ConfinementError, FileRules, of_the_machine, rights
from sandbox.confinement.limits import ParseLimits, apply_limits, tasks_of_user

if TYPE_CHECKING:
    import landlockpy


@dataclass(frozen=True, slots=True)
class Policy:
    """What one parse may do."""

    limits: ParseLimits
    dags_folder: str
    """Readable, even inside something hidden."""
    scratch: str
    """Readable and writable, the only such folder."""


@dataclass(frozen=True, slots=True)
class Strength:
    """What this machine can enforce on a parse started by this user."""

    enforced: tuple[str, ...]
    """Short names, as a ParseReport's `confinement` has them."""
    missing: tuple[str, ...] = ()
    """Sentences: what cannot be enforced, and why."""
    stricter: tuple[str, ...] = ()
    """Sentences: what a newer kernel would allow, because it can tell it from what must be forbidden."""
    landlock_abi: int = 0
    own_user: bool = False
    may_fork: bool = True
    seccomp: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """What to tell a person."""
        said = ", ".join(self.enforced) or "nothing"
        return (f"enforced on each parse: {said}", *self.missing, *self.stricter)

    @property
    def complete(self) -> bool:
        """Whether everything is enforced that asynsched asks for."""
        return not self.missing


FIRST_ABI_WITH_TCP, FIRST_ABI_WITH_SCOPES = 4, 6
"""Versions of Landlock. With scopes (Linux 6.12) it knows which processes are a parse's own."""


@cache
def available() -> Strength:
    """Return what this kernel gives to a parse started by this user. Costs no process."""
    if sys.platform != "linux":
        return Strength(
            ("limits",), (f"{sys.platform} has neither Landlock nor seccomp: a parse reads and writes all",)
        )
    from sandbox.confinement import kernel, privileges, seccomp

    return strength_with(
        _landlock_abi(),
        has_filter=seccomp.is_known_machine() and kernel.has_filters(),
        is_root=os.geteuid() == 0,
        own_user=privileges.can_become_user(),
    )


def strength_with(landlock_abi: int, *, has_filter: bool, is_root: bool, own_user: bool) -> Strength:
    """Return what can be enforced on a parse.

    Args:
        landlock_abi: The version of Landlock that the kernel has, 0 for none.
        has_filter: Whether it runs our seccomp filter.
        is_root: Whether root starts the parse.
        own_user: Whether the parse can become a user that nobody else is.
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
"""What only the seccomp filter forbids where Landlock is older."""


def _without_filter(landlock_abi: int) -> str:
    sockets = "open sockets" if landlock_abi < FIRST_ABI_WITH_TCP else "open sockets other than those of TCP"
    open_to_parses = [sockets, *(what for abi, what in _BY_FILTER.items() if landlock_abi < abi)]
    return (
        f"no seccomp filter for this machine ({os.uname().machine}): a parse may {', '.join(open_to_parses)},"
        " and change modes and owners of files, and limits and priorities of other processes"
    )


def _landlock_abi() -> int:
    import landlockpy

    return landlockpy.abi_version()


def prepare() -> None:
    """Find out what is the same for all parses, so that forks of this process need not."""
    strength = available()
    of_the_machine()
    if strength.landlock_abi:
        rights()
    if strength.seccomp:
        from sandbox.confinement import seccomp

        seccomp.program(may_fork=strength.may_fork)


def begin(policy: Policy, file_rules: FileRules) -> None:
    """Have ready what the next fork of this process is confined with, and what no fork of it may get back."""
    if policy.limits.confinement == "off":
        return
    strength = available()
    if strength.own_user:
        from sandbox.confinement import privileges

        privileges.drop_bounding()
    if strength.landlock_abi:
        file_rules.begin(policy)


def confine(policy: Policy, file_rules: FileRules) -> tuple[str, ...]:
    """Confine this process, and return the short names of what is enforced.

    Args:
        policy: What it may do.
        file_rules: Makes the rules for files, or has begun them.

    Raises:
        ConfinementError: `confinement` is `required`, and something is missing.
        OSError: The kernel refused what it had announced.
    """
    limits = policy.limits
    if limits.confinement == "off":
        return ()
    strength = available()
    if limits.confinement == "required" and strength.missing:
        raise ConfinementError("; ".join(strength.missing))
    rules = file_rules.complete(policy) if strength.landlock_abi else None
    apply_limits(limits, max_tasks=limits.max_processes + (0 if strength.own_user else tasks_of_user(os.getuid())))
    if sys.platform == "linux":
        _forbid(strength, rules, policy.scratch)
    return strength.enforced


def _forbid(strength: Strength, rules: "landlockpy.Ruleset | None", scratch: str) -> None:
    """Give up privileges, then ways to use them. The order matters: each step needs what the next one takes."""
    from sandbox.confinement import kernel, privileges, seccomp

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
    """Have the kernel end this process before others where memory runs out for all."""
    with contextlib.suppress(OSError):
        # Simpler than a stream, for each parse does it.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"1000")
        os.close(descriptor)
