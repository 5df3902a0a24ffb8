"""The kernel's restrictions of a process that runs a DAG file, and how to request them.

`confine` is called in the process itself, before anything of the DAG folder can be imported, and cannot be undone. It
goes from outside in: resource limits, a user of its own (for root), Landlock for files, TCP and signals, seccomp for
the rest. `available` names everything that a kernel lacks.

Landlock grants whole hierarchies and takes nothing back. Where something hidden lies inside a granted folder, the
folder's other entries are granted one by one instead.

The kernel does not count root's processes, and root may change everything: a parse under root becomes a user that no
other process has. It keeps one capability, to read all files that root can read, because a DAG folder and a Python
under /root must stay readable; Landlock bounds this capability.

The scheduler's side imports this module and no other of the sandbox.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from asynsched.protocol.parse_messages import ParseLimits
from sandbox.confinement import kernel, seccomp
from sandbox.processes import die_with as die_with  # for the scheduler's side, too

if TYPE_CHECKING:
    from landlockpy import AccessFS, Ruleset


class ConfinementError(Exception):
    """The kernel cannot enforce the confinement that the settings require."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rights of one parse."""

    limits: ParseLimits
    dags_folder: str
    """Readable, even inside something hidden."""
    scratch: str
    """Readable and writable, as otherwise only what the limits name is."""


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
_BY_FILTER = {3: "truncate any file of its user", FIRST_ABI_WITH_SCOPES: "signal other processes"}
"""The operations that only the seccomp filter forbids where Landlock is older."""


@cache
def available() -> Strength:
    """Return the restrictions that this machine can enforce on a parse of this user."""
    if sys.platform != "linux":
        return Strength(
            ("limits",), (f"{sys.platform} has neither Landlock nor seccomp: a parse reads and writes all",)
        )
    import landlockpy

    return strength_with(
        landlockpy.abi_version(),
        has_filter=os.uname().machine in seccomp.MACHINES and kernel.has_filters(),
        is_root=os.geteuid() == 0,
        own_user=can_become_user(),
    )


def strength_with(landlock_abi: int, *, has_filter: bool, is_root: bool, own_user: bool) -> Strength:
    """Return the restrictions that can be enforced on a parse.

    `landlock_abi` is 0 without Landlock; `own_user`: the parse can become a user that no other process has.
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
    stricter: list[str] = []
    if landlock_abi == 1:
        stricter.append(
            "before Landlock 2 (Linux 5.19), a parse may move no file into another folder, not even in its own"
        )
    if landlock_abi < FIRST_ABI_WITH_SCOPES and has_filter:
        stricter.append(
            "before Landlock 6 (Linux 6.12), a parse may signal no process but itself, not even one that it started"
        )
    return Strength(
        tuple(part for part, is_there in parts.items() if is_there),
        tuple(missing),
        tuple(stricter),
        landlock_abi,
        own_user,
        may_fork,
        has_filter,
    )


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


def close_memory() -> None:
    """Keep other processes of this user from reading this one's memory."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def prepare(limits: ParseLimits) -> None:
    """Prepare everything that all parses with these limits share, so that forks of this process need not."""
    strength = available()
    of_the_machine_without(hidden_paths(limits))
    if strength.landlock_abi:
        for kind in _RIGHTS:
            right(kind)
    if strength.seccomp:
        seccomp.program(may_fork=strength.may_fork, network=limits.network)


def confine(policy: Policy) -> tuple[str, ...]:
    """Confine this process, and return the short names of the enforced restrictions.

    Raises ConfinementError if something that is required is missing, OSError if the kernel refuses something.
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
        _forbid(strength, rules, policy)
    return strength.enforced


def _forbid(strength: Strength, rules: "Ruleset | None", policy: Policy) -> None:
    """Give up privileges, then ways to use them. The order matters: each step needs rights that the next one takes."""
    if strength.own_user:
        uid = FIRST_UID + os.getpid() % (LAST_UID - FIRST_UID + 1)
        os.chown(policy.scratch, uid, uid)
        become_user(uid, keep_reading=rules is not None)
    else:
        give_up_capabilities(keep_reading=rules is not None)
    # A change of user clears the first and sets the second.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError):
        # When memory runs out for all, the kernel ends this process first. Simpler than a stream: each parse does it.
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, b"1000")
        os.close(descriptor)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if rules is not None:
        rules.restrict()
        rules.close()
    if strength.seccomp:
        kernel.install_filter(seccomp.program(may_fork=strength.may_fork, network=policy.limits.network))
        if strength.landlock_abi < FIRST_ABI_WITH_SCOPES:
            kernel.install_filter(seccomp.assemble(seccomp.signals_to_others(os.getpid())))


_RESERVED_BYTES = 64 * 1024**2
_RESERVED_FILES = 16


def apply_limits(limits: ParseLimits, *, max_tasks: int) -> None:
    """Bound this process and its later children; `max_tasks` bounds the processes and threads of its whole user."""
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
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                # The name before these fields may have any character.
                count += int((process / "stat").read_text().rpartition(")")[2].split()[17])
    return count


FIRST_UID, LAST_UID = 61184, 65519
"""The range that systemd gives to dynamic users, which belongs to no account."""
_NEEDED = 1 << kernel.CAP_SETUID | 1 << kernel.CAP_SETGID | 1 << kernel.CAP_SETPCAP


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
    """Become this user and give up every capability, except to read files if `keep_reading`."""
    # Programs that this process starts gain no capability either, except to read files.
    for capability in range(64):
        if capability != kernel.CAP_DAC_READ_SEARCH:
            try:
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
            except OSError:
                break  # the kernel knows fewer of them
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    # Otherwise access(), and so `shutil.which`, ignores the capability to read files, and finds no program in /root.
    with contextlib.suppress(OSError):  # a service manager may have locked these
        kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECBIT_NO_SETUID_FIXUP)
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


SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store",
    "/etc/alternatives", "/etc/ca-certificates", "/etc/fonts", "/etc/group", "/etc/hosts", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/localtime", "/etc/magic", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/pki/tls/certs", "/etc/protocols", "/etc/services",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/timezone",
    "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/uptime",
    "/proc/version", "/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
"""Libraries, programs, certificates, and facts about the machine for numeric libraries. None of it shows a process."""
OF_THE_NETWORK = ("/etc/gai.conf", "/etc/resolv.conf")
"""What else a parse with `parse.network` reads, to find the addresses of names."""
OF_THE_PROCESS = (
    "auxv", "cgroup", "cmdline", "comm", "fd", "limits", "maps", "mountinfo", "mounts", "smaps", "stat", "statm",
    "status",
)  # fmt: skip
"""The files about itself that a parse may read below /proc/PID; it reads none about other processes."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that may be read and written: they keep nothing."""
_RIGHTS = {
    "read": "READ_FILE READ_DIR EXECUTE",
    "look": "READ_DIR",
    "use": "READ_FILE WRITE_FILE",
    "change": (
        "READ_FILE READ_DIR WRITE_FILE TRUNCATE REFER MAKE_DIR MAKE_REG MAKE_SYM MAKE_FIFO REMOVE_DIR REMOVE_FILE"
    ),
    "of a file": "READ_FILE WRITE_FILE TRUNCATE EXECUTE",
}
"""Landlock's rights on a path and everything below it; the last are all that a file can have."""


@cache
def right(kind: str) -> "AccessFS":
    """Return the rights of a kind. Called before the first fork, all forks have them."""
    from landlockpy import AccessFS

    return reduce(or_, (AccessFS[name] for name in _RIGHTS[kind].split()))


def rules_of(policy: Policy) -> "Ruleset":
    """Return the rules of the parse that this process is for. Raises ConfinementError."""
    from landlockpy import AccessNet, Ruleset, Scope

    refused = AccessNet.BIND_TCP if policy.limits.network else None  # None: all of the network
    rules = Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET, handled_net=refused)
    for path in _readable(policy):
        _allow(rules, path, right("read"))
    _allow(rules, policy.dags_folder, right("look"))
    for path in DEVICES:
        _allow(rules, path, right("use"))
    for path in (policy.scratch, *_shown(policy.limits.writable, hidden_paths(policy.limits))):
        _allow(rules, path, right("change"))
    return rules


def _readable(policy: Policy) -> Iterator[str]:
    """Yield the readable paths of a parse: of the machine, the DAG folder, its own process, and others."""
    hidden = hidden_paths(policy.limits)
    whole, in_part = of_the_machine_without(hidden)
    yield from whole
    around = {
        path for place in (*in_part, os.path.realpath(policy.dags_folder)) for path in without_hidden(place, hidden)
    }
    names = OF_THE_NETWORK if policy.limits.network else ()
    yield from sorted({*around, *_shown((*policy.limits.readable, *names), hidden)})
    for name in OF_THE_PROCESS:
        yield f"/proc/{os.getpid()}/{name}"


def _shown(paths: Iterable[str], hidden: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths without what is hidden in them."""
    for path in map(os.path.realpath, paths):
        if not any(is_within(path, home) for home in hidden):
            yield from without_hidden(path, hidden)


def _allow(rules: "Ruleset", path: str, access: "AccessFS") -> None:
    """Grant access to a path, if it is there."""
    from landlockpy import LandlockError

    try:
        rules.allow_path(path, access if os.path.isdir(path) else access & right("of a file"))  # noqa: PTH112 - often
    except LandlockError as exc:
        raise ConfinementError(f"{path} cannot be granted: {exc}") from exc
    except OSError:
        # It is not there, or cannot be reached: there is nothing to grant.
        return


def hidden_paths(limits: ParseLimits) -> tuple[str, ...]:
    """Return the paths that no parse may read, without symbolic links."""
    return tuple(map(os.path.realpath, limits.hidden))


@cache
def of_the_machine_without(hidden: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the readable folders of the machine: those readable as a whole, and those that contain hidden paths."""
    whole: list[str] = []
    in_part: list[str] = []
    for path in of_the_machine():
        if any(is_within(home, path) for home in hidden):
            in_part.append(path)
        elif not (whole and is_within(path, whole[-1])):
            whole.append(path)
    return tuple(whole), tuple(in_part)


@cache
def of_the_machine() -> tuple[str, ...]:
    """Return the paths, without symbolic links, that every parse may read; looked up once, for all forks of a server.

    A server is replaced when the installed packages change.
    """
    return tuple(sorted({os.path.realpath(path) for path in (*SYSTEM, *python_paths())}))


def python_paths() -> Iterator[str]:
    """Yield the paths of this interpreter and its packages.

    The interpreter's own prefixes are granted as a whole. Another entry of `sys.path`, like the checkout of a project
    that was installed as editable, may hold other files: only modules and packages in it are granted.
    """
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    yield from prefixes
    yield str(Path(sys.executable).resolve().parent)
    for entry in sys.path:
        real = os.path.realpath(entry)
        if not any(is_within(real, prefix) for prefix in prefixes):
            yield from _importable(real)
    for module in list(sys.modules.values()):
        # setuptools makes such a module for an editable install that is not a folder of `sys.path`.
        if module.__name__.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _importable(entry: str) -> Iterator[str]:
    try:
        children = list(os.scandir(entry))
    except NotADirectoryError:
        yield entry
        return
    except OSError:
        return
    if any(child.name.endswith(".dist-info") for child in children):
        # Packages were installed here, of every kind and with libraries beside.
        yield entry
        return
    for child in children:
        if child.name.endswith((".py", ".so", ".egg-info")) or _has_modules(child):
            yield child.path


def _has_modules(child: "os.DirEntry[str]") -> bool:
    """Whether this is a package, also one without an `__init__.py`."""
    try:
        return child.is_dir() and any(file.name.endswith(".py") for file in os.scandir(child.path))
    except OSError:
        return False


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it. Both are absolute and without symbolic links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def without_hidden(path: str, hidden: Iterable[str]) -> list[str]:
    """Return the paths to grant so that `path` is readable and nothing below a hidden path is.

    Symbolic links in a folder that is granted by its entries are left out: they could lead to hidden files.
    """
    inside = [other for other in hidden if is_within(other, path)]
    if not inside:
        return [path]
    if path in inside:
        return []
    try:
        children = [child.path for child in os.scandir(path) if not child.is_symlink()]
    except OSError:
        return []
    return [granted for child in children for granted in without_hidden(child, inside)]
