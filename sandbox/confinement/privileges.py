"""Turns a parse that was started by root into an ordinary user's, of its own.

The kernel does not count root's processes, and root may change everything: a parse under root becomes a user that no
other process has. It keeps one capability, to read all files that root can read, because a DAG folder and a Python
under /root must stay readable; Landlock bounds this capability.
"""

import os
from pathlib import Path

from sandbox.confinement import kernel

FIRST_UID, LAST_UID = 61184, 65519
"""The range that systemd gives to dynamic users, which belongs to no account."""

_NEEDED = 1 << kernel.CAP_SETUID | 1 << kernel.CAP_SETGID | 1 << kernel.CAP_SETPCAP
_LAST_CAPABILITY = 63


def own_uid(pid: int) -> int:
    """Return the user id of the parse in process `pid`."""
    return FIRST_UID + pid % (LAST_UID - FIRST_UID + 1)


def can_become_user() -> bool:
    """Whether this process is root, with the capabilities and the user ids that it takes to become another user."""
    if os.geteuid() != 0 or kernel.permitted_capabilities() & _NEEDED != _NEEDED:
        return False
    return _maps_all("/proc/self/uid_map") and _maps_all("/proc/self/gid_map")


def _maps_all(path: str) -> bool:
    """Whether a user namespace knows every id of the range."""
    try:
        rows = [[int(field) for field in line.split()] for line in Path(path).read_text().splitlines()]
    except OSError:
        return False
    return any(inside <= FIRST_UID and inside + count > LAST_UID for inside, _, count in rows)


def become_user(uid: int, *, keep_reading: bool) -> None:
    """Become this user and give up every capability, except to read files if `keep_reading`.

    Raises:
        OSError: The kernel refused; `can_become_user` was False.
    """
    _drop_bounding()
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    give_up_capabilities(keep_reading=keep_reading)


def give_up_capabilities(*, keep_reading: bool) -> None:
    """Give up this process's rights beyond its user's, except to read files if `keep_reading`."""
    kept = kernel.permitted_capabilities() & (1 << kernel.CAP_DAC_READ_SEARCH if keep_reading else 0)
    kernel.keep_capabilities(kept)
    if kept:
        # User code often starts programs of Python's own, which may lie where only root can read.
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, kernel.CAP_DAC_READ_SEARCH)


def _drop_bounding() -> None:
    """Keep programs that this process starts from gaining a capability, except to read files."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability == kernel.CAP_DAC_READ_SEARCH:
            continue
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        except OSError:
            # The kernel knows fewer capabilities than 64.
            return
