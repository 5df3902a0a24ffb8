"""The seccomp filter of a parse: which system calls are refused, assembled to BPF for this machine.

Landlock confines files, TCP, signals and abstract sockets; what it does not know is refused here with EPERM: sockets,
metadata, other processes' limits and priorities, namespaces, and the kernel's rarer doors. A call that is newer than
the table does not exist (ENOSYS), so libc falls back to what is known.

Source: seccomp(2); `linux/filter.h`; `struct seccomp_data` of `linux/seccomp.h`.
"""

import errno
import os
import struct
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sandbox.confinement import syscalls

# fmt: off
_SOCKETS = (
    "socket", "bind", "connect", "listen", "accept", "accept4",
)
"""No conversation with anything: a pair of connected streams is all that is left."""
_METADATA = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr",
    "fremovexattr", "setxattrat", "removexattrat", "file_setattr", "mknod", "mknodat",
)
"""Changes of a file's metadata, which Landlock does not know."""
_OTHER_PROCESSES = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp",
    "pidfd_getfd", "migrate_pages", "move_pages", "setsid", "setpgid",
)
"""Looking into, steering or leaving the family of processes."""
_SHARED_BY_NAME = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv",
    "msgctl", "mq_open", "mq_unlink",
)
"""System V and POSIX objects that other processes of the same user could have."""
_NAMESPACES = (
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "open_tree_attr", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
)
"""Mounts and namespaces."""
_KERNEL = (
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd",
    "fanotify_init", "fanotify_mark", "add_key", "request_key", "keyctl", "name_to_handle_at",
    "open_by_handle_at", "quotactl", "quotactl_fd", "lookup_dcookie", "personality", "modify_ldt", "uselib",
    "nfsservctl", "_sysctl", "sysfs", "lsm_set_self_attr",
)
"""Parts of the kernel that nobody needs to define a DAG, many with a history of holes."""
_MACHINE = (
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "create_module", "delete_module", "reboot",
    "swapon", "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "acct", "syslog",
    "sethostname", "setdomainname", "vhangup", "iopl", "ioperm",
)
"""The machine as a whole."""
# fmt: on

FIRST_ABI_WITH_SCOPES = 6
"""Version of Landlock that knows which processes are a parse's own."""
AF_UNIX = 1
SOCK_STREAM, SOCK_SEQPACKET, SOCK_TYPE_MASK = 1, 5, 0xF
PR_SET_PDEATHSIG = 1
IOPRIO_WHO_PROCESS = 1
CLONE_THREAD = 0x10000
CLONE_NEW_ANYTHING = 0x7E020000
"""NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; NEWTIME exists with clone3 only."""
OPEN_ACCESS_OR_TRUNCATE, OPEN_READ_AND_TRUNCATE = os.O_ACCMODE | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC
FORBIDDEN_IOCTLS = (0x40086602, 0x401C5820, 0x5412, 0x541C)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR (a file's attributes), TIOCSTI and TIOCLINUX (a terminal's input)."""


class Condition(NamedTuple):
    """What must hold of one argument: `argument & mask`, 32 bits of it, is (or is not) `value`."""

    argument: int
    value: int
    equal: bool = True
    mask: int = 0xFFFFFFFF
    high: bool = False


class Refusal(NamedTuple):
    """A system call that fails with `error`: always, or when all conditions of one of `when` hold."""

    call: str
    error: int = errno.EPERM
    when: tuple[tuple[Condition, ...], ...] = ()


def _unless_zero(*calls: str) -> list[Refusal]:
    """Refuse calls whose first argument names a process other than the caller."""
    return [Refusal(call, when=((Condition(0, 0, equal=False),),)) for call in calls]


def _process_rules() -> list[Refusal]:
    not_self = Condition(0, 0, equal=False)
    return [
        *_unless_zero("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr"),
        # The new limits are a pointer: null only asks for the present ones.
        Refusal(
            "prlimit64",
            when=((not_self, Condition(2, 0, equal=False)), (not_self, Condition(2, 0, equal=False, high=True))),
        ),
        Refusal("setpriority", when=((not_self,), (Condition(1, 0, equal=False),))),
        Refusal("ioprio_set", when=((Condition(0, IOPRIO_WHO_PROCESS, equal=False),), (Condition(1, 0, equal=False),))),
        Refusal("prctl", when=((Condition(0, PR_SET_PDEATHSIG),),)),
    ]


def _fork_rules(*, may_fork: bool) -> list[Refusal]:
    new_namespace = (Condition(0, 0, equal=False, mask=CLONE_NEW_ANYTHING),)
    # The flags of clone3 are in memory, which a filter cannot see: libc falls back to clone.
    rules = [Refusal("clone3", errno.ENOSYS)]
    if may_fork:
        return [*rules, Refusal("clone", when=(new_namespace,))]
    no_thread = (Condition(0, 0, mask=CLONE_THREAD),)
    return [*rules, Refusal("fork"), Refusal("vfork"), Refusal("clone", when=(new_namespace, no_thread))]


def _socket_rules() -> list[Refusal]:
    # A datagram socket of a pair could still be sent from to any other; a stream cannot.
    stream = (
        Condition(1, SOCK_STREAM, equal=False, mask=SOCK_TYPE_MASK),
        Condition(1, SOCK_SEQPACKET, equal=False, mask=SOCK_TYPE_MASK),
    )
    return [
        Refusal("socketpair", when=((Condition(0, AF_UNIX, equal=False),), stream)),
        Refusal("sendto", when=((Condition(4, 0, equal=False),), (Condition(4, 0, equal=False, high=True),))),
    ]


def _rules_for_old_landlock(abi: int, pid: int) -> list[Refusal]:
    """Refuse what newer versions of Landlock would."""
    rules: list[Refusal] = []
    if abi < 3:
        rules += [Refusal("truncate"), Refusal("openat2", errno.ENOSYS)]
        for call, flags in (("open", 1), ("openat", 2)):
            truncating = Condition(flags, OPEN_READ_AND_TRUNCATE, mask=OPEN_ACCESS_OR_TRUNCATE)
            rules.append(Refusal(call, when=((truncating,),)))
    if abi < FIRST_ABI_WITH_SCOPES:
        other = ((Condition(0, pid, equal=False),),)
        rules += [Refusal(call, when=other) for call in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")]
        rules += [Refusal("tkill"), Refusal("pidfd_send_signal")]
    return rules


def refusals(*, landlock_abi: int, pid: int, may_fork: bool) -> list[Refusal]:
    """Return every system call that a parse is refused.

    Args:
        landlock_abi: What Landlock already does; 0 for nothing.
        pid: The parse's own process, the only one it may signal when Landlock cannot tell its family.
        may_fork: False where the number of its processes cannot be limited.
    """
    always = (*_SOCKETS, *_METADATA, *_OTHER_PROCESSES, *_SHARED_BY_NAME, *_NAMESPACES, *_KERNEL, *_MACHINE)
    return [
        *(Refusal(call) for call in always),
        *_socket_rules(),
        *_process_rules(),
        *_fork_rules(may_fork=may_fork),
        *_rules_for_old_landlock(landlock_abi, pid),
        Refusal("ioctl", when=tuple((Condition(1, command),) for command in FORBIDDEN_IOCTLS)),
    ]


def program(landlock_abi: int, pid: int, *, may_fork: bool) -> bytes:
    """Return the filter of a parse, see `refusals`. Made once for all forks, where it is the same for all."""
    return _program(landlock_abi, pid if landlock_abi < FIRST_ABI_WITH_SCOPES else 0, may_fork)


@cache
def _program(landlock_abi: int, pid: int, may_fork: bool) -> bytes:
    return assemble(refusals(landlock_abi=landlock_abi, pid=pid, may_fork=may_fork))


_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _AND, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_MACHINES = {"x86_64": (0xC000003E, syscalls.X86_64), "aarch64": (0xC00000B7, syscalls.AARCH64)}

Instruction = tuple[int, int, int, int]
"""Code, steps to skip when true, steps to skip when false, operand."""


def is_known_machine() -> bool:
    """Whether there is a table of system calls for this machine."""
    return os.uname().machine in _MACHINES


def assemble(rules: Iterable[Refusal]) -> bytes:
    """Return the BPF program that refuses these calls and allows every other. Raises KeyError: unknown machine."""
    architecture, numbers = _MACHINES[os.uname().machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_GREATER, 0, 1, syscalls.LAST_KNOWN),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for rule in rules:
        if rule.call in numbers:
            body = _body(rule)
            program += [(_JUMP_EQUAL, 0, len(body), numbers[rule.call]), *body]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _body(rule: Refusal) -> list[Instruction]:
    """Return what decides a call once its number has matched: every path through it returns."""
    if not rule.when:
        return [(_RETURN, 0, 0, _FAIL | rule.error)]
    body: list[Instruction] = []
    for conditions in rule.when:
        body += _all_of(conditions, rule.error)
    return [*body, (_RETURN, 0, 0, _ALLOW)]


def _all_of(conditions: tuple[Condition, ...], error: int) -> list[Instruction]:
    """Return instructions that fail the call when all conditions hold, and run on past their end when one does not."""
    size = 3 * len(conditions) + 1
    body: list[Instruction] = []
    for condition in conditions:
        body.append((_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument + 4 * condition.high))
        body.append((_AND, 0, 0, condition.mask))
        past_end = size - len(body) - 1
        skip = (0, past_end) if condition.equal else (past_end, 0)
        body.append((_JUMP_EQUAL, *skip, condition.value))
    return [*body, (_RETURN, 0, 0, _FAIL | error)]
