"""The scratch folder of a parse: made for one file, removed with whatever that file has left in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

PREFIX = "parse-"


@contextlib.contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Make a folder below `base`, without symbolic links, for one parse, and remove it with all that is in it.

    It is locked meanwhile, by whoever guards the parse: `sweep` leaves it alone until that process is gone.
    """
    folder, descriptor = _make(base)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
        if folder.exists():
            remove_tree(folder)
        os.close(descriptor)


def sweep(base: Path) -> None:
    """Remove the scratch folders below `base` that nobody uses any more: those of parses that were killed."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
            finally:
                os.close(descriptor)


def _make(base: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        folder = base / f"{PREFIX}{os.urandom(8).hex()}"
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            # Somebody swept just now: before it was locked, nobody seemed to use it.
            os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as possible: also folders that were made without any rights."""
    import shutil  # few parses leave anything behind

    for path, names, _ in os.walk(folder):
        for inner in (Path(path, name) for name in names):
            if not inner.is_symlink():  # whose target is somebody else's
                with contextlib.suppress(OSError):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
