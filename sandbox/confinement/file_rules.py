"""Which files a parse may touch, as a Landlock ruleset: the system's libraries, Python with its packages, its folders.

Landlock grants whole hierarchies and takes nothing back. Where something hidden lies inside a granted folder, the
folder's other entries are granted one by one instead.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asynsched.protocol.parse_messages import ParseLimits

if TYPE_CHECKING:
    from landlockpy import AccessFS, Ruleset

    from sandbox.confine import Policy

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

OF_THE_PROCESS = (
    "auxv", "cgroup", "cmdline", "comm", "fd", "limits", "maps", "mountinfo", "mounts", "smaps", "stat", "statm",
    "status",
)  # fmt: skip
"""The files about itself that a parse may read below /proc/PID; it reads none about other processes."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that may be read and written: they keep nothing."""
_MODULE_SUFFIXES = (".py", ".so", ".egg-info")


class ConfinementError(Exception):
    """The kernel cannot enforce the confinement that the settings require."""


class Rights(NamedTuple):
    """The rights on a path and everything below it."""

    read: "AccessFS"
    look: "AccessFS"
    use: "AccessFS"
    change: "AccessFS"
    of_a_file: "AccessFS"
    """The rights that a file can have; a folder has all."""


def rules_of(policy: "Policy") -> "Ruleset":
    """Return the rules of the parse that this process is for. Raises ConfinementError."""
    from landlockpy import Ruleset, Scope

    rules = Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET)
    for path in _readable(policy):
        _allow(rules, path, rights().read)
    _allow(rules, policy.dags_folder, rights().look)
    for path in DEVICES:
        _allow(rules, path, rights().use)
    _allow(rules, policy.scratch, rights().change)
    return rules


def _readable(policy: "Policy") -> Iterator[str]:
    """Yield the readable paths of a parse: of the machine, the DAG folder, its own process, and others."""
    hidden = hidden_paths(policy.limits)
    whole, in_part = of_the_machine_without(hidden)
    yield from whole
    asked = [*in_part, os.path.realpath(policy.dags_folder)]
    asked += [
        path
        for path in map(os.path.realpath, policy.limits.readable)
        if not any(is_within(path, home) for home in hidden)
    ]
    yield from sorted({path for around in asked for path in without_hidden(around, hidden)})
    for name in OF_THE_PROCESS:
        yield f"/proc/{os.getpid()}/{name}"


def _allow(rules: "Ruleset", path: str, access: "AccessFS") -> None:
    """Grant access to a path, if it is there."""
    from landlockpy import LandlockError

    try:
        rules.allow_path(path, access if os.path.isdir(path) else access & rights().of_a_file)  # noqa: PTH112 - often
    except LandlockError as exc:
        raise ConfinementError(f"{path} cannot be granted: {exc}") from exc
    except OSError:
        # It is not there, or cannot be reached: there is nothing to grant.
        return


@cache
def rights() -> Rights:
    """Return the rights that are granted. Called before the first fork, all forks have them."""
    from landlockpy import AccessFS

    read = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    write = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.REFER
    make = AccessFS.MAKE_DIR | AccessFS.MAKE_REG | AccessFS.MAKE_SYM | AccessFS.MAKE_FIFO
    remove = AccessFS.REMOVE_DIR | AccessFS.REMOVE_FILE
    return Rights(
        read=read,
        look=AccessFS.READ_DIR,
        use=AccessFS.READ_FILE | AccessFS.WRITE_FILE,
        change=write | make | remove,
        of_a_file=AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.EXECUTE,
    )


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
        if child.name.endswith(_MODULE_SUFFIXES) or Path(child.path, "__init__.py").exists():
            yield child.path


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
