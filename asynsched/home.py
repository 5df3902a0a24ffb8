"""The home: the folder of a scheduler's own state. It is private to its user, and one scheduler at a time holds it.

asynsched.db   the database, unless another is configured
lock           locked while a scheduler serves this home
bell.sock      rung by commands from other terminals (see bell.py)
logs/          one file a try
attempts/      the keeper's journal of tries
sources/       the code of DAG versions, by content hash: copies of those in the database
tmp/           scratch folders of parses
dags_folder    path of the DAG folder that was last served
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asynsched.durable_files import PRIVATE_FOLDER, make_folder, replace_file
from asynsched.errors import HomeInUse, SettingsError

LOGS = "logs"
ATTEMPTS = "attempts"
SOURCES = "sources"
TMP = "tmp"
SERVED_FOLDER = "dags_folder"


def prepare_home(home: Path) -> None:
    """Make the home and its folders, accessible to their user only. Raises SettingsError."""
    try:
        make_folder(home)
        for name in (LOGS, ATTEMPTS, SOURCES, TMP):
            (home / name).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    except OSError as exc:
        raise SettingsError(f"home: the folder {home} cannot be made: {exc.strerror}") from exc
    if not os.access(home, os.W_OK | os.X_OK):
        raise SettingsError(f"home: the folder {home} cannot be written")


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Lock the home for one scheduler. The kernel unlocks it when the process ends, however it ends.

    Raises HomeInUse if another scheduler serves it; the message names its process.
    """
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise HomeInUse(
                f"A scheduler is serving the home {home} already (process {holder}). "
                "Stop it first, or use another home: "
                "--home or ASYNSCHED_HOME for a command, Settings(home=…) in a program."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def remember_dags_folder(home: Path, dags_folder: Path) -> None:
    """Record the served DAG folder, for commands in other terminals."""
    if served_dags_folder(home) != dags_folder:
        replace_file(home / SERVED_FOLDER, os.fsencode(dags_folder))


def served_dags_folder(home: Path) -> Path | None:
    """Return the DAG folder that was last served from this home; None before the first."""
    try:
        name = (home / SERVED_FOLDER).read_bytes()
    except OSError:
        return None
    return Path(os.fsdecode(name)) if name else None
