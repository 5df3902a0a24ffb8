"""The home: the folder of a scheduler's own state. It is private to its user, and one scheduler at a time holds it.

asynsched.db   the database, unless another is configured
lock           locked while a scheduler serves this home
keeper.lock    locked while a keeper lives, which may run tries
bell.sock      rung by commands from other terminals (see bell.py)
logs/          one file a try
attempts/      the keeper's journal of tries
sources/       the code of DAG versions, by content hash: copies of those in the database
tmp/           scratch folders of parses
kubernetes/    certificates of a kubeconfig, in a folder for each process
dags_folder    path of the DAG folder that was last served
database       path of the SQLite database that was last served
web            URL of the page that was last served
.gitignore     keeps all of this out of a repository that the home lies in
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from asynsched.errors import HomeInUse, SettingsError
from asynsched.protocol.home_files import KEEPER_LOCK, PRIVATE_FILE, PRIVATE_FOLDER

_UNKNOWN_TO_FILE_SYSTEM = (errno.EINVAL, errno.ENOTSUP)
"""Errors of network file systems that cannot sync a folder."""
LOCK = "lock"
LOGS = "logs"
ATTEMPTS = "attempts"
SOURCES = "sources"
BUNDLES = "bundles"
TMP = "tmp"
IGNORED = ".gitignore"
SERVED_FOLDER = "dags_folder"
SERVED_DATABASE = "database"
SERVED_WEB = "web"


def prepare_home(home: Path) -> None:
    """Make the home and its folders, accessible to their user only. Raises SettingsError."""
    is_new = not home.is_dir()
    try:
        make_folder(home)
        for name in (LOGS, ATTEMPTS, SOURCES, TMP):
            (home / name).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        if is_new:  # another folder may be the repository itself
            replace_file(home / IGNORED, b"*\n", outlasts_power_cut=False)
    except OSError as exc:
        raise SettingsError(f"home: {exc.filename or home} cannot be made: {exc.strerror}") from exc
    if not os.access(home, os.W_OK | os.X_OK):
        raise SettingsError(f"home: the folder {home} cannot be written")


@contextmanager
def hold_home(home: Path) -> Iterator[Callable[[], bool]]:
    """Lock the home for one scheduler. The kernel unlocks it when the process ends, however it ends.

    Yields a function that tells whether the locked home is still there: a user may remove, move or replace the folder.

    Raises HomeInUse if another scheduler serves it; the message names its process.
    """
    descriptor, process = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE), os.getpid()
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise HomeInUse(
                f"A scheduler is already serving the home {home} (process {holder}). "
                "Stop it first, or use another home: "
                "--home or ASYNSCHED_HOME for a command, Settings(home=…) in a program."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{process}\n".encode(), 0)
        try:
            yield partial(_is_open_file, home / LOCK, descriptor)
        finally:
            if os.getpid() == process:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that the program has forked has the descriptor, too
    finally:
        os.close(descriptor)


def _is_open_file(path: Path, descriptor: int) -> bool:
    """Return whether a path leads to an open file; True if the file system does not answer."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def is_held(home: Path) -> bool:
    """Return whether a scheduler serves a home."""
    return _is_locked(home / LOCK)


def remember_database(home: Path, path: str) -> None:
    """Record the SQLite database that a scheduler of this home is about to serve, for schedulers of other homes."""
    _note(home / SERVED_DATABASE, os.fsencode(path))


def serves_database(home: Path, path: str) -> bool:
    """Return whether a scheduler or keeper of a home lives, and last served this SQLite database, not a copy of it.

    False if the home cannot be seen from here.
    """
    is_served = _noted(home / SERVED_DATABASE) == os.fsencode(path)
    return is_served and (is_held(home) or _is_locked(home / KEEPER_LOCK))


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remember_dags_folder(home: Path, dags_folder: Path) -> None:
    """Record the served DAG folder, for commands in other terminals."""
    _note(home / SERVED_FOLDER, os.fsencode(dags_folder))


def served_dags_folder(home: Path) -> Path | None:
    """Return the DAG folder that was last served from this home; None before the first."""
    name = _noted(home / SERVED_FOLDER)
    return Path(os.fsdecode(name)) if name else None


def remember_web(home: Path, url: str) -> None:
    """Record the URL of the served page, for commands that print it."""
    _note(home / SERVED_WEB, url.encode())


def served_web(home: Path) -> str | None:
    """Return the URL of the page that was last served from this home; None before the first."""
    try:
        return (_noted(home / SERVED_WEB) or b"").decode() or None
    except UnicodeDecodeError:
        return None


def _note(path: Path, value: bytes) -> None:
    if _noted(path) != value:
        replace_file(path, value)


def _noted(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


# Files and folders that survive a power cut: both the data and the name are synced. They are for data that exists
# nowhere else: data that can be made again is not worth the wait for the disk.


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
def draft_of(path: Path, data: bytes, *, outlasts_power_cut: bool = True) -> Iterator[Path]:
    """Yield a new file beside `path`, for its owner only, to be renamed or linked to it. Raises OSError.

    It is removed afterwards: it may hold a key. A process that is killed leaves it; its name is that of `path`, a dot
    and more.
    """
    import tempfile  # commands that only read need not load it

    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if outlasts_power_cut:
                file.flush()
                os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes, *, outlasts_power_cut: bool = True) -> None:
    """Replace a file, for its owner only. A reader finds the old or the new one, also after a power cut.

    Raises OSError if it cannot be written; the old one is still there.

    Args:
        outlasts_power_cut: False: it is not synced, and after a power cut it may be missing, empty or damaged.
    """
    with draft_of(path, data, outlasts_power_cut=outlasts_power_cut) as draft:
        draft.replace(path)
    if outlasts_power_cut:
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
