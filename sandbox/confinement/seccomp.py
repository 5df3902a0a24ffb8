"""The seccomp filter of a parse: which system calls are refused, assembled to BPF for this machine.

Landlock confines files, TCP, signals and abstract sockets. The filter refuses with EPERM the calls that Landlock does
not cover: sockets, owners, other processes' limits and priorities, namespaces, and rarely used parts of the kernel. A
call that is newer than the table does not exist (ENOSYS), so libc falls back to older ones.

Source: seccomp(2); `linux/filter.h`; `struct seccomp_data` of `linux/seccomp.h`.
"""

import errno
import os
import struct
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sandbox.confinement import kernel

# The names of system calls, with their numbers: on x86_64 and aarch64, or one for both; `-` where there is none.
_CONNECTIONS = """
    socket 41 198, connect 42 203
"""
"""No connection to anything: only pairs of connected streams are left."""
_SERVERS = """
    bind 49 200, listen 50 201, accept 43 202, accept4 288 242
"""
"""No connection from anything."""
_METADATA = """
    chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,
    removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, setxattrat 463, removexattrat 466, file_setattr 469,
    mknod 133 -, mknodat 259 33, truncate 76 45
"""
"""Changes of a file's metadata, which Landlock does not know; of its length, only since ABI 3."""
_MODES = """
    chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452
"""
"""They change nothing and report success: a program that copies a file into the scratch folder (`shutil.copy`, in dbt's
processes, too) copies its mode and times as well, and takes an error of these for a failed copy."""
_TIMES = """
    utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88
"""
"""Likewise, but not with the present time, by which `Path.touch` learns whether a file exists."""
_TIMES_AT = {"utime": 1, "utimes": 1, "futimesat": 2, "utimensat": 2}
"""The argument with the times; null: the present one."""
_OTHER_PROCESSES = """
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440, process_mrelease 448,
    kcmp 312 272, pidfd_getfd 438, migrate_pages 256 238, move_pages 279 239, setsid 112 157, setpgid 109 154
"""
"""Looking into, steering or leaving the family of processes."""
_SHARED_BY_NAME = """
    shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semtimedop 220 192, semctl 66 191,
    msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181
"""
"""System V and POSIX objects that other processes of the same user could have."""
_NAMESPACES = """
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, open_tree 428,
    open_tree_attr 467, move_mount 429, fsopen 430, fsconfig 431, fsmount 432, fspick 433, mount_setattr 442
"""
"""Mounts and namespaces."""
_KERNEL = """
    io_uring_setup 425, io_uring_enter 426, io_uring_register 427, bpf 321 280, perf_event_open 298 241,
    userfaultfd 323 282, fanotify_init 300 262, fanotify_mark 301 263, add_key 248 217, request_key 249 218,
    keyctl 250 219, name_to_handle_at 303 264, open_by_handle_at 304 265, quotactl 179 60, quotactl_fd 443,
    lookup_dcookie 212 18, personality 135 92, modify_ldt 154 -, uselib 134 -, nfsservctl 180 42, _sysctl 156 -,
    sysfs 139 -, lsm_set_self_attr 460
"""
"""Parts of the kernel that no definition of a DAG needs, many with a history of vulnerabilities."""
_MACHINE = """
    kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, create_module 174 -,
    delete_module 176 106, reboot 169 142, swapon 167 224, swapoff 168 225, settimeofday 164 170, clock_settime 227 112,
    clock_adjtime 305 266, adjtimex 159 171, acct 163 89, syslog 103 116, sethostname 170 161, setdomainname 171 162,
    vhangup 153 58, iopl 172 -, ioperm 173 -
"""
"""The machine as a whole."""
_CONDITIONAL = """
    clone 56 220, clone3 435, fcntl 72 25, fork 57 -, ioctl 16 29, ioprio_set 251 30, kill 62 129, open 2 -,
    openat 257 56, openat2 437, pidfd_send_signal 424, prctl 157 167, prlimit64 302 261, rt_sigqueueinfo 129 138,
    rt_tgsigqueueinfo 297 240, sched_setaffinity 203 122, sched_setattr 314 274, sched_setparam 142 118,
    sched_setscheduler 144 119, sendto 44 206, setpriority 141 140, socketpair 53 199, tgkill 234 131, tkill 200 130,
    vfork 58 -
"""
"""Refused in part: see the rules below."""
_REFUSED = (
    _CONNECTIONS, _SERVERS, _METADATA, _OTHER_PROCESSES, _SHARED_BY_NAME, _NAMESPACES, _KERNEL, _MACHINE,
)  # fmt: skip

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_TYPE_MASK = 1, 2, 5, 0xF
IOPRIO_WHO_PROCESS = 1
CLONE_THREAD = 0x10000
CLONE_NEW_ANYTHING = 0x7E020000
"""NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; NEWTIME exists with clone3 only."""
PR_SCHED_CORE = 62
FORBIDDEN_PRCTLS = (kernel.PR_SET_PDEATHSIG, kernel.PR_SET_DUMPABLE, PR_SCHED_CORE)
"""Outliving the parent, hiding memory from being measured, and sharing a core with another process."""
OPEN_ACCESS_OR_TRUNCATE, OPEN_READ_AND_TRUNCATE = os.O_ACCMODE | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC
OPEN_FOR_IOCTLS = 3
"""An access mode that neither reads nor writes, for which Landlock asks no right. With O_TRUNC it still truncates."""
# fmt: off
ALLOWED_FCNTLS = (
    0, 1, 2, 3, 4,  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL
    5, 6, 7, 36, 37, 38,  # F_GETLK, F_SETLK, F_SETLKW, and the same of F_OFD_
    9, 11, 16,  # F_GETOWN, F_GETSIG, F_GETOWN_EX
    1025, 1027, 1028, 1030,  # F_GETLEASE, F_DUPFD_QUERY, F_CREATED_QUERY, F_DUPFD_CLOEXEC
    1031, 1032, 1033, 1034,  # F_SETPIPE_SZ, F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS
    1035, 1036, 1037, 1038,  # F_GET_RW_HINT, F_SET_RW_HINT, and the same of F_FILE_
)
"""Not F_SETOWN, F_SETOWN_EX and F_SETSIG: when a file becomes readable, the kernel signals the process they name."""
ALLOWED_IOCTLS = (
    0x5401, 0x802C542A, 0x5413, 0x540F,  # TCGETS, TCGETS2, TIOCGWINSZ, TIOCGPGRP: is this a terminal
    0x541B, 0x5411, 0x5421, 0x5450, 0x5451,  # FIONREAD, TIOCOUTQ, FIONBIO, FIONCLEX, FIOCLEX
    0x2, 0x80086601, 0xC020660B,  # FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FIEMAP: properties of a file
    0x40049409, 0x4020940D,  # FICLONE, FICLONERANGE: copies between open files
)
"""The ioctls of ordinary programs on pipes and files. Landlock knows ioctls since ABI 5, and those of devices only: not
FIOSETOWN and SIOCSPGRP, which are F_SETOWN, and not those that change files or folders that are open for reading
only."""
# fmt: on


class Condition(NamedTuple):
    """A condition on one argument: `argument & mask`, 32 bits of it, is (or is not) `value`."""

    argument: int
    value: int
    equal: bool = True
    mask: int = 0xFFFFFFFF
    high: bool = False


SUCCESS = 0


class Refusal(NamedTuple):
    """A system call that fails with `error`: always, or when all conditions of one of `when` hold.

    With `SUCCESS` as its error, it does nothing and returns 0. Where no condition holds, it ends with `otherwise`, or
    is made (None).
    """

    call: str
    error: int = errno.EPERM
    when: tuple[tuple[Condition, ...], ...] = ()
    otherwise: int | None = None


def _names(group: str) -> list[str]:
    return [entry.split()[0] for entry in group.split(",")]


def _time_rules() -> list[Refusal]:
    return [
        Refusal(call, when=((Condition(at, 0), Condition(at, 0, high=True)),), otherwise=SUCCESS)
        for call, at in _TIMES_AT.items()
    ]


def _process_rules() -> list[Refusal]:
    not_self = Condition(0, 0, equal=False)
    return [
        *(
            Refusal(call, when=((not_self,),))
            for call in ("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")
        ),
        # The new limits are a pointer: null only asks for the present ones.
        Refusal(
            "prlimit64",
            when=((not_self, Condition(2, 0, equal=False)), (not_self, Condition(2, 0, equal=False, high=True))),
        ),
        Refusal("setpriority", when=((not_self,), (Condition(1, 0, equal=False),))),
        Refusal("ioprio_set", when=((Condition(0, IOPRIO_WHO_PROCESS, equal=False),), (Condition(1, 0, equal=False),))),
        Refusal("prctl", when=tuple((Condition(0, option),) for option in FORBIDDEN_PRCTLS)),
    ]


def _fork_rules(*, may_fork: bool) -> list[Refusal]:
    new_namespace = (Condition(0, 0, equal=False, mask=CLONE_NEW_ANYTHING),)
    # The flags of clone3 are in memory, which a filter cannot see: libc falls back to clone.
    rules = [Refusal("clone3", errno.ENOSYS)]
    if may_fork:
        return [*rules, Refusal("clone", when=(new_namespace,))]
    no_thread = (Condition(0, 0, mask=CLONE_THREAD),)
    return [*rules, Refusal("fork"), Refusal("vfork"), Refusal("clone", when=(new_namespace, no_thread))]


def _socket_rules(*, network: bool) -> list[Refusal]:
    # A datagram socket of a pair could still be sent from to any other; a stream cannot.
    stream = (
        Condition(1, SOCK_STREAM, equal=False, mask=SOCK_TYPE_MASK),
        Condition(1, SOCK_SEQPACKET, equal=False, mask=SOCK_TYPE_MASK),
    )
    pairs = Refusal("socketpair", when=((Condition(0, AF_UNIX, equal=False),), stream))
    if not network:
        to_others = ((Condition(4, 0, equal=False),), (Condition(4, 0, equal=False, high=True),))
        return [pairs, Refusal("sendto", when=to_others)]
    # The sockets of other processes of this machine, netlink and raw packets are no network.
    no_address = (Condition(0, AF_INET, equal=False), Condition(0, AF_INET6, equal=False))
    no_usual_type = (
        Condition(1, SOCK_STREAM, equal=False, mask=SOCK_TYPE_MASK),
        Condition(1, SOCK_DGRAM, equal=False, mask=SOCK_TYPE_MASK),
    )
    return [pairs, Refusal("socket", when=(no_address, no_usual_type))]


def _file_rules() -> list[Refusal]:
    return [
        # The flags of openat2 are in memory, as those of clone3 are.
        Refusal("openat2", errno.ENOSYS),
        *(
            Refusal(
                call,
                when=(
                    (Condition(flags, OPEN_FOR_IOCTLS, mask=os.O_ACCMODE),),
                    (Condition(flags, OPEN_READ_AND_TRUNCATE, mask=OPEN_ACCESS_OR_TRUNCATE),),
                ),
            )
            for call, flags in (("open", 1), ("openat", 2))
        ),
        Refusal("fcntl", when=_none_of(ALLOWED_FCNTLS)),
        Refusal("ioctl", when=_none_of(ALLOWED_IOCTLS)),
    ]


def _none_of(allowed: tuple[int, ...]) -> tuple[tuple[Condition, ...], ...]:
    """Return the condition that the second argument, the command, is none of these."""
    return (tuple(Condition(1, value, equal=False) for value in allowed),)


def refusals(*, may_fork: bool, network: bool) -> list[Refusal]:
    """Return the system calls that every parse is refused.

    Args:
        may_fork: Its processes can be limited.
        network: It may connect to others by TCP and UDP.
    """
    groups = [group for group in _REFUSED if not (network and group is _CONNECTIONS)]
    return [
        *(Refusal(call) for group in groups for call in _names(group)),
        *(Refusal(call, SUCCESS) for call in _names(_MODES)),
        *_time_rules(),
        *_socket_rules(network=network),
        *_process_rules(),
        *_fork_rules(may_fork=may_fork),
        *_file_rules(),
    ]


def signals_to_others(pid: int) -> list[Refusal]:
    """Return the system calls by which the process `pid` signals any other. Its children are others."""
    other = ((Condition(0, pid, equal=False),),)
    by_process = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
    return [*(Refusal(call, when=other) for call in by_process), Refusal("tkill"), Refusal("pidfd_send_signal")]


@cache
def program(*, may_fork: bool, network: bool) -> bytes:
    """Return the filter of all parses, see `refusals`. Made once for all forks."""
    return assemble(refusals(may_fork=may_fork, network=network))


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST = 0x05, 0x15, 0x25, 0x35
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_WHOLE = 0xFFFFFFFF
_COMPARED_IN_A_ROW = 16
"""Calls: fewer make the program longer to compile, more longer to run, and each parse has the kernel do both."""
LAST_KNOWN = 469
"""The highest known system call; calls that a newer kernel adds do not exist for a parse."""


def _numbers(machine: int) -> dict[str, int]:
    """Return the numbers of all named system calls on the first or the second machine."""
    groups = (*_REFUSED, _MODES, _TIMES, _CONDITIONAL)
    entries = (entry.split() for group in groups for entry in group.split(","))
    found = {name: numbers[min(machine, len(numbers) - 1)] for name, *numbers in entries}
    return {name: int(number) for name, number in found.items() if number != "-"}


X86_64, AARCH64 = _numbers(0), _numbers(1)
MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}

Instruction = tuple[int, int, int, int]
"""Code, steps to skip when true, steps to skip when false, operand."""


def assemble(rules: Iterable[Refusal]) -> bytes:
    """Return the BPF program that refuses these calls and allows every other. Raises KeyError: unknown machine."""
    architecture, numbers = MACHINES[os.uname().machine]
    bodies = {numbers[rule.call]: _body(rule) for rule in rules if rule.call in numbers}
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_GREATER, 0, 1, LAST_KNOWN),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        *_search(sorted(bodies.items())),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _search(bodies: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return a binary search for the body of a call: for each parse, the kernel runs the filter once for every call.

    Source: `seccomp_cache_prepare` of Linux 5.11, which remembers the calls that are always allowed.
    """
    if len(bodies) <= _COMPARED_IN_A_ROW:
        found = [((_JUMP_EQUAL, 0, len(body), number), *body) for number, body in bodies]
        return [*(instruction for each in found for instruction in each), (_RETURN, 0, 0, _ALLOW)]
    half = len(bodies) // 2
    low, high = _search(bodies[:half]), _search(bodies[half:])
    # A conditional jump reaches no further than 255 steps.
    return [(_JUMP_AT_LEAST, 0, 1, bodies[half][0]), (_JUMP, 0, 0, len(low)), *low, *high]


def _body(rule: Refusal) -> list[Instruction]:
    """Return the instructions that decide a call once its number has matched: every path through them returns."""
    if not rule.when:
        return [(_RETURN, 0, 0, _FAIL | rule.error)]
    body: list[Instruction] = []
    for conditions in rule.when:
        body += _all_of(conditions, rule.error)
    return [*body, (_RETURN, 0, 0, _ALLOW if rule.otherwise is None else _FAIL | rule.otherwise)]


def _all_of(conditions: tuple[Condition, ...], error: int) -> list[Instruction]:
    """Return instructions that fail the call when all conditions hold, and run on past their end when one does not."""
    body: list[Instruction] = [(_RETURN, 0, 0, _FAIL | error)]
    for condition in reversed(conditions):
        skip = (0, len(body)) if condition.equal else (len(body), 0)
        test: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument + 4 * condition.high)]
        if condition.mask != _WHOLE:
            test.append((_AND, 0, 0, condition.mask))
        body = [*test, (_JUMP_EQUAL, *skip, condition.value), *body]
    return body
