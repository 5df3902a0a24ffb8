"""The operations of a program's processes on files below a folder, in order, recorded by `strace`.

It sees SQLite's C code as well as Python, and every process that the program starts. Nothing of the machine is needed
but leave to trace: no kernel module, no file system of its own.
"""

import os
import posixpath
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat", "open", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "truncate",
    "fallocate", "sendfile", "copy_file_range", "fsync", "fdatasync", "sync_file_range", "rename", "renameat",
    "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir",
)  # fmt: skip
_ENDED = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(.*)")
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)(.*)")
_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|-?\d+)<([^>]*)>(\(deleted\))?")
_TEXT = re.compile(r'"([^"]*)"')


class Operation(NamedTuple):
    """A system call that has succeeded.

    `began` and `ended` count lines of the trace: operations that had ended when a sync began are synced at its end.
    """

    began: int
    ended: int
    name: str
    path: str
    data: bytes = b""
    offset: int | None = None
    target: str = ""
    flags: str = ""


def why_not() -> str:
    """Return why nothing can be recorded here, in a sentence; empty where it can be."""
    if shutil.which("strace") is None:
        return "strace is not installed: apt-get install strace"
    # As an ordinary user's tracer sees nothing of a process that keeps its memory to itself, as a keeper does.
    if os.geteuid() != 0:
        return "only root may trace a keeper, which keeps its memory to itself"
    traced = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=write", "true"], capture_output=True, check=False
    )
    return "" if traced.returncode == 0 else f"nothing can be traced here: {traced.stderr.decode(errors='replace')}"


def record(
    command: Sequence[str], folder: Path, trace: Path, env: Mapping[str, str], timeout: float
) -> list[Operation]:
    """Run a command to its end, and return the operations of all its processes below a folder."""
    traced = [
        "strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "20000000", "-e", "signal=none",
        "-e", f"trace={','.join(CALLS)}", "-o", str(trace), *command,
    ]  # fmt: skip
    ended = subprocess.run(traced, env=env, timeout=timeout, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    with trace.open() as lines:
        return [one for one in _operations(lines) if f"{one.path}/".startswith(f"{folder}/")]


def _operations(lines: Iterator[str]) -> Iterator[Operation]:
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        if found := _BEGUN.fullmatch(line.rstrip("\n")):
            begun[found[1]] = number, found[3]
            continue
        began, arguments = number, ""
        if found := _RESUMED.fullmatch(line.rstrip("\n")):
            began, arguments = begun.pop(found[1])
        elif (found := _ENDED.fullmatch(line.rstrip("\n"))) is None:
            continue  # of a process that has ended
        _, name, rest, returned, shown = found.groups()
        if int(returned) >= 0:
            yield from _operation(began, number, name, arguments + rest, int(returned), shown)


def _operation(began: int, ended: int, name: str, arguments: str, returned: int, shown: str) -> Iterator[Operation]:
    descriptors = [_plain(text) for text, _ in _DESCRIPTOR.findall(arguments)]
    is_deleted = any(deleted for _, deleted in _DESCRIPTOR.findall(arguments))
    texts = _TEXT.findall(_DESCRIPTOR.sub("", arguments))
    if name in ("openat", "open", "creat"):
        opened = _DESCRIPTOR.search(f"{returned}{shown}")
        if opened is not None and ("O_CREAT" in arguments or "O_TRUNC" in arguments or name == "creat"):
            yield Operation(began, ended, "open", _plain(opened[1]), flags=arguments)
    elif name in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
        if not is_deleted and descriptors:
            assert "..." not in arguments, "strace has cut off the written data"
            data = b"".join(bytes.fromhex(text.replace("\\x", "")) for text in texts)[:returned]
            offset = int(arguments.rsplit(", ", 1)[1]) if name.startswith("p") else None
            yield Operation(began, ended, "write", descriptors[0], data, offset)
    elif name == "ftruncate":
        if not is_deleted:
            yield Operation(began, ended, "truncate", descriptors[0], offset=int(arguments.rsplit(", ", 1)[1], 0))
    elif name in ("fsync", "fdatasync"):
        if not is_deleted:
            yield Operation(began, ended, "sync", descriptors[0])
    elif name in ("sendfile", "copy_file_range", "fallocate", "sync_file_range", "truncate"):
        yield Operation(began, ended, name, (descriptors or [_plain(texts[0])])[0])
    else:
        paths = [_plain(text) for text in texts]
        folders = descriptors if name.endswith(("at", "at2")) else []
        paths = [
            posixpath.join(folders[min(n, len(folders) - 1)], path) if folders else path for n, path in enumerate(paths)
        ]
        kind = "rmdir" if "AT_REMOVEDIR" in arguments else re.sub(r"at2?$", "", name)
        yield Operation(began, ended, kind, paths[0], target=paths[1] if len(paths) > 1 else "")


def _plain(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode("utf-8", "surrogateescape") if "\\x" in text else text
