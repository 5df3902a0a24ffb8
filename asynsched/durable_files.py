"""Files and folders that survive a power cut: both the data and the name are synced.

For data that exists nowhere else. Data that can be made again is not worth the wait for the disk.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
_UNKNOWN_TO_FILE_SYSTEM = (errno.EINVAL, errno.ENOTSUP)
"""Errors of network file systems that cannot sync a folder."""


def make_folder(path: Path) -> None:
    """Make a folder for its owner only, and missing folders above it. Raises OSError."""
    for missing in reversed(list(_missing(path))):
        if missing == path:
            missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        else:
            missing.mkdir(exist_ok=True)
        sync_folder(missing.parent)


def make_file(path: Path) -> None:
    """Make an empty file for its owner only, unless it exists. Raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    sync_folder(path.parent)


@contextmanager
def draft_of(path: Path, data: bytes) -> Iterator[Path]:
    """Yield a new file beside `path`, for its owner only, to be renamed or linked to it. Raises OSError.

    It is removed afterwards: it may hold a key.
    """
    import tempfile  # commands that only read need not load it

    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, for its owner only. A reader finds the old or the new one, also after a power cut.

    Raises OSError if it cannot be written; the old one is still there.
    """
    with draft_of(path, data) as draft:
        draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, where this user and the file system can. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # a folder may be writable, and not readable
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in _UNKNOWN_TO_FILE_SYSTEM:
            raise
    finally:
        os.close(descriptor)


def _missing(path: Path) -> Iterator[Path]:
    while not path.is_dir():
        yield path
        path = path.parent
