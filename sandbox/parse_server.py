"""`python -P -m sandbox.parse_server`: loads everything that a parse needs, and forks guardians of parses.

    scheduler ──a socket for each guardian──▶ parse server ──fork──▶ guardian ──fork──▶ one parse, confined
        └──Job, a line of JSON──▶ guardian ──ParseReport, a line of JSON──▶    └─fork──▶ the next one
        ◀──Asked, a line of JSON── guardian, while the parse waits for a variable or a connection
        └──Answered──▶ guardian

The server has one thread and never runs user code. It forks, and ends the processes that a killed guardian has left
behind. It ends with its guardians when its control socket is closed, however the scheduler has ended.

A guardian watches one parse after the other. When the scheduler hangs up, the parse under way is ended, and the
guardian ends.
"""

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import msgspec

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import collect_dags
from asynsched.protocol.home_files import scratch_folder
from asynsched.protocol.parse_messages import QUESTION, STALE, Greeting, Job, ParseLimits, decode_limits
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SourceFile, version_hash
from asynsched.timetables.cron import PRESETS, CronSchedule
from sandbox import processes
from sandbox.confine import prepare
from sandbox.loading import freeze_heap, import_authoring
from sandbox.parsing import supervise
from sandbox.parsing.importing import ParseRequest, enter_installation
from sandbox.processes import set_title
from sandbox.sources.local_imports import dag_module_name

_NEEDED_WITHIN_FUNCTIONS = (
    "sandbox.parsing.explain", "sandbox.sources.archives"
)  # fmt: skip
"""Modules that a parse imports only when it needs them."""

_DAG_FILE = """
from datetime import datetime
from asynsched import DAG, EmptyOperator, chain, task

@task
def work(value):
    return value

with DAG("warm", schedule="@daily", start_date=datetime(2024, 1, 1)):
    chain(EmptyOperator(task_id="first"), work(1))
"""
_ENTRIES_AT_ONCE = 64
Installed = tuple[tuple[str, int], ...]


class ParseSite(NamedTuple):
    """The values that all parses of a server share."""

    dags_folder: Path
    scratch: Path
    limits: ParseLimits
    installed: Installed


class ParseServer:
    """Forks a guardian for every socket that comes over `control`.

    `_guardians` has the process of each by the reading end of its pipe, `_groups` the process group of its parse.
    """

    def __init__(self, site: ParseSite, control: socket.socket) -> None:
        self._site = site
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._guardians: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the control socket is closed. Guardians end when this process does."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._read_lifeline(descriptor)
                elif not self._take_connection():
                    return

    def _take_connection(self) -> bool:
        """Fork a guardian for the socket that arrives; return False when none will come any more."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not message:
            return False
        for descriptor in descriptors:
            with socket.socket(fileno=descriptor) as connection:
                self._fork(connection)
        return True

    def _fork(self, connection: socket.socket) -> None:
        lifeline, theirs = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            for inherited in (lifeline, *self._guardians):
                os.close(inherited)
            self._control.close()
            serve_as_guardian(self._site, connection, theirs, server)
        os.close(theirs)
        self._guardians[lifeline] = pid
        self._poll.register(lifeline, select.POLLIN)

    def _read_lifeline(self, lifeline: int) -> None:
        """Record the group that ends with a guardian; when the guardian is gone, end the processes that it has left."""
        data = os.read(lifeline, supervise.GROUP.size * _ENTRIES_AT_ONCE)
        if data:
            # Written whole, so read whole.
            [self._groups[lifeline]] = supervise.GROUP.unpack(data[-supervise.GROUP.size :])
            return
        self._poll.unregister(lifeline)
        os.close(lifeline)
        if group := self._groups.pop(lifeline, 0):
            processes.kill_group(group)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._guardians.pop(lifeline), 0)
        processes.end_strangers(self._guardians.values())


def serve_as_guardian(site: ParseSite, connection: socket.socket, lifeline: int, server: int) -> NoReturn:
    """Serve the jobs of a connection until its other end hangs up, and never return.

    `lifeline` is the writing end of a pipe to the server, the process that this was forked from.
    """
    status = 1
    try:
        os.setsid()
        supervise.exit_by_signals()
        supervise.become_guardian()
        set_title("guardian of parses")
        # The server may have ended before the kernel was asked to tell.
        if os.getppid() == server:
            _serve(site, connection, supervise.PipeLifeline(lifeline))
            status = 0
    except (supervise.NotWantedError, OSError, SystemExit):
        status = 0
    except BaseException:  # noqa: BLE001 - it must not go on as the server
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve(site: ParseSite, connection: socket.socket, lifeline: supervise.PipeLifeline) -> None:
    decoder = msgspec.json.Decoder(Job)
    connection.sendall(msgspec.json.encode(Greeting(os.getpid())) + b"\n")
    with connection.makefile("rb") as jobs:
        while line := jobs.readline():
            if line.startswith(QUESTION):
                continue  # the answer to a question of a process that has ended meanwhile
            if installed() != site.installed:
                connection.sendall(STALE)
                return
            job = decoder.decode(line)
            with scratch_folder(site.scratch) as scratch:
                request = ParseRequest(job.path, site.dags_folder, scratch, site.limits, job.questions)
                report = supervise.parse_file(request, lifeline, connection.fileno())
            connection.sendall(supervise.encode(report))


def warm(limits: ParseLimits) -> None:
    """Import the modules that parses commonly need, fill the caches by a parse, and freeze the heap for forks."""
    import_authoring(_NEEDED_WITHIN_FUNCTIONS)
    prepare(limits)
    for preset in PRESETS:
        CronSchedule(preset, "UTC")  # cached: the schedules of most DAGs are read once
    _define_dag()
    enter_installation(limits)
    freeze_heap()


def _define_dag() -> None:
    """Parse a file of our own, so that every fork finds caches filled and patterns compiled."""
    module = ModuleType(dag_module_name("warm.py"))
    sys.modules[module.__name__] = module
    try:
        exec(_DAG_FILE, vars(module))  # noqa: S102 - our own text, above
        for dag in collect_dags(module):
            version_hash(serialize_dag(dag), (SourceFile("warm.py", module.__name__, "", _DAG_FILE),))
    finally:
        del sys.modules[module.__name__]
        forget_registered()


def installed() -> Installed:
    """Return a value that changes when a package that this interpreter sees is installed, upgraded or removed."""
    return tuple((entry, _modified_ns(entry)) for entry in sys.path)


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - asked before each parse, about each entry
    except OSError:
        return 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Load the modules that parses need, and serve."""
    options = _options(arguments)
    set_title("parse server", "--dags-folder", options.dags_folder)
    limits = decode_limits(options.limits)
    # Ctrl-C in the terminal is the scheduler's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.hear_of_children()
    before = installed()
    supervise.enter_environment(limits.environment)
    processes.adopt_orphans()
    processes.set_readable(readable=False)
    warm(limits)
    site = ParseSite(Path(options.dags_folder), Path(options.scratch).resolve(), limits, before)
    with socket.socket(fileno=options.control) as control:
        ParseServer(site, control).serve()
    os._exit(0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -P -m sandbox.parse_server", description=__doc__)
    parser.add_argument("--control", type=int, required=True, help="socket over which one comes for each guardian")
    parser.add_argument("--dags-folder", required=True, help="the DAG folder, absolute")
    parser.add_argument("--scratch", required=True, help="an existing folder, for the parses' temporary files")
    parser.add_argument("--limits", required=True, help="JSON object of limits; a missing limit has its default")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
