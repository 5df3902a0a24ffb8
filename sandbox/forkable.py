"""Whether a process that has imported a DAG file may be forked for its tasks: do copies of it work as it does?

A fork has the memory of its parent, and only the thread that forked. So a thread that the file has left running would
be missing in every task, and all of them would share a socket (each event loop has some). Libraries of native code know
of forks: OpenBLAS, which NumPy and pandas bring along, ends its threads before each and starts new ones when they are
needed. A trial fork shows whether threads do so.
"""

import os
import stat
import threading
import time
import warnings

_LEAVES_THREAD = "it leaves a thread running"
_LEAVES_SOCKET = "it leaves a socket or an event loop open"
_LOOKS = 20
_PAUSE_SECONDS = 0.005
"""A thread that has ended may still be listed for a moment."""


class ForkCheck:
    """Records the state of this process before it imports a file. Opens nothing later, so it may be confined.

    Without /proc, it sees only Python's own threads.

    Args:
        has_sockets: Whether this process may have some now.
    """

    def __init__(self, *, has_sockets: bool = True) -> None:
        self._threads = _opened("/proc/self/task")
        self._descriptors = _opened("/proc/self/fd")
        self._sockets = self._open_sockets() if has_sockets else set()

    def close(self) -> None:
        """Close its descriptors."""
        for descriptor in (self._threads, self._descriptors):
            if descriptor is not None:
                os.close(descriptor)

    def obstacle(self) -> str:
        """Return why copies of this process would not work as tries; empty when they would.

        Raises:
            OSError: That cannot be found out, because this process may not fork.
        """
        if threading.active_count() > 1:
            return _LEAVES_THREAD
        if self._open_sockets() - self._sockets:
            return _LEAVES_SOCKET
        if self._n_threads() > 1:
            _fork_once()
            return "" if self._are_threads_gone() else _LEAVES_THREAD
        return ""

    def _are_threads_gone(self) -> bool:
        for _ in range(_LOOKS):
            if self._n_threads() == 1:
                return True
            time.sleep(_PAUSE_SECONDS)
        return False

    def _n_threads(self) -> int:
        return 1 if self._threads is None else len(os.listdir(self._threads))  # noqa: PTH208 - it is a descriptor

    def _open_sockets(self) -> set[int]:
        if self._descriptors is None:
            return set()
        found = set()
        for name in os.listdir(self._descriptors):  # noqa: PTH208 - it is a descriptor
            try:
                status = os.fstat(int(name))
            except OSError:  # the one that the listing itself has used
                continue
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
        return found


def _opened(folder: str) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _fork_once() -> None:
    """Fork a process that does nothing, and wait for its end: that runs the fork handlers of libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks with threads, which is the question
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
