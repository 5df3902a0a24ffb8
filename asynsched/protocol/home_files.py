"""The files of a home that both sides of the process border use: the keeper's socket, sources, scratch folders.

Sources of versions lie in `sources/HASH.py`, copies of the database for the processes of tries. They are not synced, so
a power cut may leave any of them out, empty or cut off, and other programs may touch them. So none is trusted: a
scheduler compares those of each version with the database when it first needs it, and a process that loads a version
compares each with the hash that is its name, and asks the scheduler for one that is wrong.

A parse has a scratch folder, which is removed with everything that the DAG file has left in it.
"""

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

KEEPER_SOCKET = "keeper.sock"
KEEPER_LOCK = "keeper.lock"
"""Locked as long as a keeper lives."""
KEEPER_MARK = "SANDBOX_KEEPER"
"""Environment variable of the keeper and of all processes that it starts: which keeper they belong to."""
MAX_ADDRESS_BYTES = 100
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
LOCK_ATTEMPTS = 5
LOCK_PAUSE_SECONDS = 0.002
PREFIX = "parse-"
"""Of the names of scratch folders."""


@contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """Yield an address of the socket `name` in a folder; for a path that is too long, one that holds within."""
    direct = str(folder / name)
    if len(os.fsencode(direct)) < MAX_ADDRESS_BYTES or sys.platform != "linux":
        yield direct
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def open_log(file: Path, *, appends: bool) -> int:
    """Open a log to write to it, with its folders, for this user only; return its descriptor.

    It is locked against its removal by a scheduler that has copied it elsewhere, which locks it for moments. Where that
    cannot be had soon, it is open without a lock: a try must not wait for its log. Raises OSError.

    Args:
        appends: Whether every write goes to the end.
    """
    # Network file systems share a lock only with readers, and give one alone only to writers.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if appends else 0)
    for _ in range(LOCK_ATTEMPTS - 1):
        # A scheduler may remove a folder while it is empty.
        with suppress(FileNotFoundError):
            _make_private(file.parent)
            descriptor = os.open(file, flags, PRIVATE_FILE)
            if _shares_lock(descriptor) and os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # it is being removed
        time.sleep(LOCK_PAUSE_SECONDS)
    _make_private(file.parent)
    descriptor = os.open(file, flags, PRIVATE_FILE)
    _shares_lock(descriptor)
    return descriptor


def _make_private(folder: Path) -> None:
    """Make a folder and those above it, for this user only."""
    for missing in reversed([folder, *folder.parents]):
        if not missing.is_dir():
            missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def _shares_lock(descriptor: int) -> bool:
    """Lock a file together with others. Returns False if somebody has it alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # not every file system has locks
    return True


def lay_out_source(folder: Path, content_hash: str, text: str) -> None:
    """Write a source, unless its file is there and right. Raises OSError."""
    path, data = folder / f"{content_hash}.py", text.encode("utf-8", "surrogatepass")
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    # Renamed into place, so that a reader never sees half of it.
    unfinished = path.with_suffix(f".{os.urandom(8).hex()}")  # noqa: TID251 - a name that is never shown
    unfinished.touch(mode=PRIVATE_FILE)
    unfinished.write_bytes(data)
    unfinished.replace(path)


def read_source(folder: Path, content_hash: str) -> str:
    """Return the text of a source. Raises OSError, and ValueError if its content does not match its name."""
    data = (folder / f"{content_hash}.py").read_bytes()
    if hashlib.sha256(data).hexdigest() != content_hash:
        raise ValueError("it is damaged: its hash is not its name")
    return data.decode("utf-8")


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Make a folder below `base` for one parse, and remove it at the end with everything in it.

    `base` exists, and its path has no symbolic links. The folder's guardian locks it meanwhile: `sweep` leaves it alone
    until that process is gone.
    """
    folder, descriptor = _make(base)
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()
        if folder.exists():
            remove_tree(folder)
        os.close(descriptor)


def sweep(base: Path) -> None:
    """Remove the scratch folders below `base` of parses that were killed."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
            finally:
                os.close(descriptor)


def _make(base: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        folder = base / f"{PREFIX}{os.urandom(8).hex()}"  # noqa: TID251 - a name that is never shown
        folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            # It was swept before it was locked.
            os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder and its content, including folders without any permissions; skip files that cannot be removed.

    However deep the folders are nested: each is emptied into the outermost one, so no path gets long.
    """
    names, goes_on = count(), True
    while goes_on:
        goes_on = False
        with suppress(OSError):
            for path in list(folder.iterdir()):
                goes_on |= _remove_or_empty(path, folder, names)
    with suppress(OSError):
        folder.rmdir()


def _remove_or_empty(path: Path, top: Path, names: Iterator[int]) -> bool:
    """Remove a file; or a folder, after its inner folders are moved to `top`. Returns whether anything has changed."""
    has_moved = False
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return True
        path.chmod(0o700)
        for inner in list(path.iterdir()):
            with suppress(OSError):
                if inner.is_symlink() or not inner.is_dir():
                    inner.unlink()
                else:
                    inner.chmod(0o700)  # to move a folder, its own `..` has to be written
                    inner.rename(top / f"{os.getpid()}-{next(names)}")
                    has_moved = True
        path.rmdir()
    except OSError:
        return has_moved
    return True
