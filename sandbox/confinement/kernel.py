"""Calls to Linux that Python has no function for: prctl, seccomp, unshare, capabilities, timers.

Everything here raises OSError where the kernel refuses. On other systems only `prctl` can be called.
"""

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_GET_NAME = 16
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECCOMP_MODE_FILTER = 2
CLOCK_BOOTTIME = 7
TFD_TIMER_ABSTIME = 1

CAP_DAC_READ_SEARCH = 2
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8

_CAPABILITY_VERSION_3 = 0x20080522
_NAME_BYTES = 16


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return libc


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    """Change something of the calling process; do nothing where there is no such call (not Linux)."""
    if sys.platform != "linux":
        return 0
    return _checked(_libc().prctl(option, *(*arguments, 0, 0, 0, 0)[:4]), f"prctl({option})")


def process_name() -> bytes:
    """Return the name of the calling process, as `ps` shows it."""
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    prctl(PR_GET_NAME, ctypes.addressof(buffer))
    return buffer.value


def set_process_name(name: bytes) -> None:
    """Give the calling process a name, of 15 bytes at most."""
    buffer = ctypes.create_string_buffer(name, _NAME_BYTES)
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install_filter(program: bytes) -> None:
    """Run this BPF program on every system call of this process and of its later children, by seccomp."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = _Filter(len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(described))


def has_filters() -> bool:
    """Whether this kernel runs seccomp filters: it takes a null program for a bad address, not for a bad request."""
    try:
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0)
    except OSError as exc:
        return exc.errno == errno.EFAULT
    return False


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_CapabilitySets = ctypes.c_uint32 * 6
"""Effective, permitted and inheritable, for the low 32 capabilities, then the same for the high ones."""


def permitted_capabilities() -> int:
    """Return the capabilities that this process has or may take, as bits."""
    sets = _CapabilitySets()
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked(int(_libc().capget(ctypes.byref(header), ctypes.byref(sets))), "capget")
    return int(sets[1]) | int(sets[4]) << 32


def keep_capabilities(bits: int) -> None:
    """Give up every capability but these, which programs that are started from here have too."""
    low, high = bits & 0xFFFFFFFF, bits >> 32
    sets = _CapabilitySets(low, low, low, high, high, high)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked(int(_libc().capset(ctypes.byref(header), ctypes.byref(sets))), "capset")


def make_timer() -> int:
    """Return the descriptor of a timer that is off. It is readable from its time on, until it is set again."""
    return _checked(int(_libc().timerfd_create(CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)), "timerfd_create")


def set_timer(descriptor: int, when: float) -> None:
    """Set a timer to an instant of CLOCK_BOOTTIME, in seconds, which may be past; 0 turns it off."""
    seconds = int(when)
    # The first two are an interval: it rings once.
    times = (ctypes.c_long * 4)(0, 0, seconds, int((when - seconds) * 1e9))
    _checked(int(_libc().timerfd_settime(descriptor, TFD_TIMER_ABSTIME, ctypes.byref(times), None)), "timerfd_settime")


def environment_addresses() -> list[tuple[int, bytes]]:
    """Return address and content of each `NAME=value` that this process was started with or has set."""
    pointers = ctypes.POINTER(ctypes.c_void_p).in_dll(_libc(), "environ")
    found: list[tuple[int, bytes]] = []
    while pointers and (address := pointers[len(found)]):
        found.append((address, ctypes.string_at(address)))
    return found


@cache
def _arguments_area() -> tuple[int, int]:
    """Return address and size of the command line of this process, or of the ancestor that was executed.

    Source: fields 48 and 49 of proc_pid_stat(5); they follow the name, which may have spaces and brackets in it.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    return start, end - start


def write_arguments(first: bytes, others: bytes) -> None:
    """Replace the command line of this process by one argument and others, each of which ends with a zero byte.

    Where there is no room for all of it, the first is cut. The first call here or in a parent reads a file.
    """
    start, room = _arguments_area()
    if room > len(others):
        arguments = first[: room - len(others) - 1] + b"\0" + others
        ctypes.memmove(start, arguments.ljust(room, b"\0"), room)


def overwrite(address: int, length: int) -> None:
    """Write zeros over memory of this process."""
    ctypes.memset(address, 0, length)
