"""Which paths a parse may read: the system's libraries, Python with its packages, and what it is told.

Landlock grants whole hierarchies and takes nothing back. Where something hidden lies inside a granted folder, the
folder's other entries are granted one by one instead.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

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
"""Libraries, programs, certificates, and what numeric libraries ask the machine. None of it tells of a process."""

OF_THE_PROCESS = (
    "auxv", "cgroup", "cmdline", "comm", "fd", "limits", "maps", "mountinfo", "mounts", "smaps", "stat", "statm",
    "status",
)  # fmt: skip
"""What a parse may read of itself below /proc/PID; of others, nothing."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that may be read and written: they keep nothing."""
_MODULE_SUFFIXES = (".py", ".so", ".egg-info")


@cache
def of_the_machine() -> tuple[str, ...]:
    """Return the paths, without symbolic links, that every parse may read; looked up once, for all forks of a server.

    A server is replaced when what is installed changes.
    """
    return tuple(sorted({os.path.realpath(path) for path in (*SYSTEM, *python_paths())}))


def python_paths() -> Iterator[str]:
    """Yield the paths of this interpreter and its packages.

    What the interpreter's own prefixes hold is granted as a whole. Another entry of `sys.path`, like the checkout of a
    project that was installed as editable, may be a folder of anything: only modules and packages in it are granted.
    """
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    yield from prefixes
    yield str(Path(sys.executable).resolve().parent)
    for entry in sys.path:
        real = os.path.realpath(entry)
        if not any(is_within(real, prefix) for prefix in prefixes):
            yield from _importable(real)
    for module in list(sys.modules.values()):
        # setuptools makes such a module for an editable install that is no folder of `sys.path`.
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


def link_outside(folder: str, path: str) -> tuple[str, str] | None:
    """Return the first symbolic link on the way from a folder to a path in it that leads out of it, and where to.

    A link to what is in the folder, by whatever way, is none of these.
    """
    inside = os.path.realpath(folder)
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        name = "/".join(parts[:length])
        target = os.path.realpath(f"{folder}/{name}")
        if not is_within(target, inside):
            return name, target
    return None


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it. Both are absolute and without symbolic links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def without_hidden(path: str, hidden: Iterable[str]) -> list[str]:
    """Return what to grant so that `path` is readable and nothing below a hidden path is.

    Symbolic links in a folder that is granted by its entries are left out: they could lead to what is hidden.
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
