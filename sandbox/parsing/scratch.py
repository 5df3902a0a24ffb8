"""The scratch folder of a parse: made for one file, removed with whatever that file has left in it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Make a folder below `base` for one parse, and remove it with all that is in it."""
    folder = base.resolve() / f"parse-{os.urandom(8).hex()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
        if folder.exists():
            remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as possible: also folders that were made without any rights."""
    import shutil  # few parses leave anything behind

    for path, names, _ in os.walk(folder):
        for inner in (Path(path, name) for name in names):
            if not inner.is_symlink():  # whose target is somebody else's
                with contextlib.suppress(OSError):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
