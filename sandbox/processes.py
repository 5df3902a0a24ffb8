"""A process of the sandbox and those below it: title, output, adopting, reaping, measuring, killing, forking.

The keeper is a subreaper, and so are each try and each guardian of a parse: a process that loses its parent becomes a
child of its nearest ancestor of that kind, regardless of its session and group. So the processes that a try leaves
behind become the keeper's children at the moment the try dies; no other process becomes a child of the keeper without
its knowledge; and killing children until none is left reaches every descendant.
"""

import logging
import os
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asynsched.protocol.messages import CodeVersion, FailureCause, Launch
from sandbox.confinement import kernel

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS})
"""Signals that a process brings on itself."""
KILL_SECONDS = 5.0
_KILL_PAUSE_SECONDS = 0.001
_LOOKS = 20
_PAUSE_SECONDS = 0.005
"""A thread that has ended may still be listed for a moment."""
_LONGEST = 60
"""Characters of one id or path in a title."""
_place = b""
TRY_FORMAT = "{%(filename)s:%(lineno)d} %(levelname)s - %(message)s"
"""Without the time: the keeper puts that before every line."""
KEEPER_FORMAT = f"[%(asctime)s.%(msecs)03dZ] {TRY_FORMAT}"
_handler = logging.StreamHandler()
_TRY_FORMATTER = logging.Formatter(TRY_FORMAT)


def hear_of_children() -> None:
    """Learn how children end, even if the program that has started this process ignores SIGCHLD."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own. Does nothing where the kernel cannot (not Linux)."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent process ends, also if it has ended already."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_readable(*, readable: bool) -> None:
    """Allow or forbid other processes of this user to read this one's memory."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, int(readable))


def keep_only(*descriptors: int) -> None:
    """Close every descriptor but these and the standard ones."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none when it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are enough
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def descendants() -> list[int]:
    """Return all processes below this one, at this moment."""
    found = children_of(os.getpid())
    for pid in found:  # it grows meanwhile
        found += children_of(pid)
    return found


def is_child(pid: int) -> bool:
    """Return whether this is an unreaped child of this process."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def memory_of(pids: list[int]) -> int:
    """Return the bytes of memory that processes take together; shared pages are counted once."""
    return sum(_bytes_of(pid, "Pss:") for pid in pids)


def own_bytes() -> int:
    """Return how much memory this process has that it shares with no other."""
    return _bytes_of(os.getpid(), "Private_")


def _bytes_of(pid: int, kind: str) -> int:
    """Return how much memory of a kind a process has; 0 if it has ended, or the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kind))
    return 0


def reap() -> Iterator[tuple[int, int]]:
    """Yield process and exit status of each child that has exited.

    The process group that the child led is killed first: until the child is reaped, its number names that group and no
    other.
    """
    with suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            kill_group(info.si_pid)
            yield os.waitpid(info.si_pid, 0)


def reason_of(status: int) -> tuple[str, FailureCause]:
    """Return the reason and the cause of the death of a process that reported no end, from its wait status.

    A signal from outside (out of memory, an operator's kill) is the machine's fault; a signal that the code's own crash
    raises, and an exit code, are the task's.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = ", possibly out of memory" if number == signal.SIGKILL else ""
        return f"killed by {signal_name(number)}{hint}", "task" if number in CRASHES else "machine"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} before the task returned", "task"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it is there and may be killed."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of that number, if it is there and may be killed."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_strangers(known: Callable[[], Collection[int]]) -> set[int]:
    """Send SIGKILL to every child that is not known, and return these: they were left behind by ended processes.

    `known` is called once the children are listed: later children are spared.
    """
    strangers = set(children_of(os.getpid()))
    strangers.difference_update(known())
    for pid in strangers:
        kill(pid)
    return strangers


def end_strangers(known: Collection[int]) -> None:
    """Kill and reap every child that is not known, and the processes that it leaves behind in turn."""
    deadline = time.monotonic() + KILL_SECONDS
    while (strangers := kill_strangers(lambda: known)) and time.monotonic() < deadline:
        for pid in strangers:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def end_all_children() -> None:
    """Kill every descendant of a process that adopts orphans, and return when all are gone."""
    with suppress(ChildProcessError):
        while True:
            kill_strangers(frozenset)
            os.waitpid(-1, 0)


def end_tree(leader: int) -> tuple[int | None, bool]:
    """Kill a child, its process group and every descendant of this process, and reap them.

    A parse cannot leave its process group where seccomp holds: then the first signal reaches all of it at once, however
    fast it forks. The child must not have been reaped, or its group's number could belong to other processes by now.

    Returns the child's status as `os.waitpid` gives it, None if it did not end; and whether no process is left.
    """
    deadline = time.monotonic() + KILL_SECONDS
    status: int | None = None
    kill_group(leader)
    kill(leader)  # it may not have made its group yet
    with suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == leader:
                    status = ended[1]
            for pid in descendants():
                kill(pid)
            time.sleep(_KILL_PAUSE_SECONDS)
        return status, False
    return status, True


_LEAVES_THREAD = "it leaves a thread running"


class ForkCheck:
    """Finds out whether a process that has imported a DAG file can be forked for its tasks.

    A fork has the memory of its parent, and only the thread that forked. So a thread that the file has left running
    would be missing in every task, and all of them would share a socket (each event loop has some). Libraries of native
    code know of forks: OpenBLAS, which NumPy and pandas bring along, ends its threads before each and starts new ones
    when they are needed. A trial fork shows whether threads do so.

    Make it before the import: it opens nothing later, so the process may be confined. Without /proc, it sees only
    Python's own threads.
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
        """Return why copies of this process would not work as tries; empty if they would. May raise OSError."""
        if threading.active_count() > 1:
            return _LEAVES_THREAD
        if self._open_sockets() - self._sockets:
            return "it leaves a socket or an event loop open"
        if self._n_threads() == 1:
            return ""
        # A fork that does nothing runs the fork handlers of libraries.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads, which is the question
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        for _ in range(_LOOKS):
            if self._n_threads() == 1:
                return ""
            time.sleep(_PAUSE_SECONDS)
        return _LEAVES_THREAD

    def _n_threads(self) -> int:
        return 1 if self._threads is None else len(os.listdir(self._threads))  # noqa: PTH208 - it is a descriptor

    def _open_sockets(self) -> set[int]:
        if self._descriptors is None:
            return set()
        found = set()
        for name in os.listdir(self._descriptors):  # noqa: PTH208 - it is a descriptor
            with suppress(OSError):  # the one that the listing itself has used
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found.add(status.st_ino)
        return found


def _opened(folder: str) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def set_title(title: str, *place: str) -> None:
    """Give this process a title in `ps`, without secrets, since every user may read it, cut to the available room.

    It overwrites the command in the process's own memory, and nothing else. `setproctitle` would overwrite the
    environment, too, by which `sandbox.supervision.lifeline` finds processes that a keeper has left behind. Linux only.
    `place` is an option that names the home or the DAG folder, and its value. Forks of this process keep it.
    """
    global _place
    if place:
        _place = b"".join(os.fsencode(word) + b"\0" for word in place)
    if sys.platform == "linux":
        shown = title if title.isprintable() else "".join(filter(str.isprintable, title))
        kernel.write_arguments(f"asynsched: {shown}".encode("utf-8", "replace"), _place)


def of_template(code: CodeVersion) -> str:
    """Return the title of a process that has a version of a DAG file loaded."""
    return f"template of {_file(code)}"


def of_ready_process(code: CodeVersion) -> str:
    """Return the title of a process that waits for a launch, and may have to load the file first."""
    return f"ready for a task of {_file(code)}"


def of_launch(launch: Launch) -> str:
    """Return the title of the process of a launch."""
    if launch.trigger_host is not None:
        return f"triggers of {_file(launch.code)}"
    if launch.callback and not launch.run.dag_id:
        return f"listeners of {launch.callback['event']}"
    task = _cut(launch.run.dag_id)
    if launch.task_id:
        task += f".{_cut(launch.task_id)}" if launch.map_index < 0 else f".{_cut(launch.task_id)}[{launch.map_index}]"
    what = "callback" if launch.callback else f"try {launch.try_number}"
    return f"{what} of {task}, run {_cut(launch.run.run_id)}"


def of_parse(path: str) -> str:
    """Return the title of a process that runs a DAG file to find its DAGs."""
    return f"parse of {_cut(path)}"


def of_test(dag_id: str) -> str:
    """Return the title of a run in the foreground."""
    return f"test of {_cut(dag_id)}"


def _file(code: CodeVersion) -> str:
    return _cut(code.sources[0].path) if code.sources else "no file"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def open_streams() -> None:
    """Make the standard streams that user code writes to, by the line, once for all forks of this process."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def configure_logging() -> None:
    """Set up this process, and those that it forks: standard output and error by the line, logging to it."""
    open_streams()
    _handler.setStream(sys.stdout)
    formatter = logging.Formatter(KEEPER_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    _handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [_handler]
    root.setLevel(logging.INFO)


@contextmanager
def logging_nowhere() -> Iterator[None]:
    """Format log records without writing them."""
    stream = _handler.stream
    with Path(os.devnull).open("w") as nowhere:
        _handler.setStream(nowhere)
        try:
            yield
        finally:
            _handler.setStream(stream)


def leave_time_to_keeper() -> None:
    """Log without the time from now on: the keeper adds it to each line of a try's log."""
    _handler.setFormatter(_TRY_FORMATTER)


def flush_streams() -> None:
    """Flush standard output and error, which user code may have closed, or replaced by anything."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
