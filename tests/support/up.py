"""Real `asynsched` processes, on a DAG folder, a home and a database of their own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import psutil

from asynsched.bell import is_serving
from tests.support import warm_commands
from tests.support.waiting import DEADLINE_SECONDS, until

T = TypeVar("T")
Process = subprocess.Popen[bytes] | warm_commands.WarmProcess
STRANGE = ("ASYNSCHED_", "PYTEST_", warm_commands.SOCKET_VARIABLE, warm_commands.COLD_VARIABLE)
"""The prefixes of variables that no terminal of a site has."""
MARK = "SITE_OF_A_TEST"
"""Environment variable that every process of a site inherits, except parses; those name the home."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Its output, which must be JSON alone."""
        return json.loads(self.stdout)


UNSYNCED = "normal"
"""Of SQLite: only a power cut can tell, and tests of power cuts say otherwise."""


@dataclass
class Site:
    """A DAG folder, a home and a database: one installation of asynsched.

    `database` is a URL, or None for SQLite in the home. `env` is added to the environment of every command, and each
    runs `become` before anything else, if that is given, to be another user's.
    """

    root: Path
    database: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    home_name: str = "home"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    become: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.dags.mkdir(parents=True, exist_ok=True)
        self.logs: list[Path] = []
        self._sessions: set[int] = set()
        """Those of schedulers that are forks: the kernel shows their environment and arguments as the server's."""

    @property
    def dags(self) -> Path:
        return self.root / "dags"

    @property
    def home(self) -> Path:
        return self.root / self.home_name

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a terminal on this site."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
        database = {} if self.database is None else {"ASYNSCHED_DATABASE": self.database}
        fixed = {"ASYNSCHED_HOME": str(self.home), MARK: self.mark, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
        # Tests of the page set an address of their own.
        fixed["ASYNSCHED_WEB__LISTEN"] = "off"
        fixed["ASYNSCHED_SQLITE_SYNCHRONOUS"] = UNSYNCED
        return inherited | database | fixed | self.env

    def write(self, name: str, text: str) -> Path:
        """Write a file of the DAG folder; its text may be indented."""
        path = self.dags / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "asynsched", *args]

    def run(self, *args: str, code: int | None = 0, timeout: float = 60) -> Finished:
        """Run a command to its end, and require that exit code (None: any)."""
        if self._may_be_warm(args):
            finished = Finished(*warm_commands.run(args, cwd=self.root, env=self.environment, timeout=timeout))
        else:
            ended = subprocess.run(
                self.command(*args), cwd=self.root, env=self.environment, timeout=timeout, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=self.become,
            )  # fmt: skip
            finished = Finished(ended.returncode, ended.stdout, ended.stderr)
        assert code is None or finished.code == code, f"asynsched {' '.join(args)}: {finished}\n{self.story()}"
        return finished

    def _may_be_warm(self, args: Sequence[str]) -> bool:
        """Whether nothing that an interpreter does at its start matters to the command."""
        if warm_commands.SOCKET_VARIABLE not in os.environ or self.become is not None:
            return False
        if args[:1] == ("up",) and warm_commands.COLD_VARIABLE in os.environ:
            return False
        return not any(name.startswith(("PYTHON", "TZ")) for name in self.env)

    def json(self, *args: str) -> Any:
        """Run a command with JSON output, and return its parsed output."""
        return self.run(*args, "--output", "json").json

    def up_until_idle(self, *flags: str, dags: Path | None = None, timeout: float = 90) -> Finished:
        """Run `asynsched up --until-idle` to its end, and require that it ends well and leaves no process."""
        finished = self.run("up", str(dags or self.dags), "--until-idle", *flags, timeout=timeout)
        self.assert_nothing_left()
        return finished

    @contextmanager
    def up(self, *flags: str) -> "Iterator[Up]":
        """Serve until the end of the block, then stop as Ctrl-C does, and require that no process is left."""
        log = self.root / f"up-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as output:
            process = self._start("up", str(self.dags), *flags, output=output)
        served = Up(self, process, log)
        try:
            served.wait_ready()
            yield served
            if process.poll() is None:
                served.interrupt()
                assert served.wait() == 0, served.log
                self.assert_nothing_left()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self.end_everything()

    def _start(self, *args: str, output: BinaryIO) -> Process:
        if self._may_be_warm(args):
            descriptor = output.fileno()
            process = warm_commands.WarmProcess(
                args, cwd=self.root, env=self.environment, stdout=descriptor, stderr=descriptor
            )
            self._sessions.add(process.pid)
            return process
        return subprocess.Popen(
            self.command(*args), cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=self.become,
        )  # fmt: skip

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return self.json("runs", "list", dag_id)

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        return {task["task_id"]: task["state"] for task in self.json("tasks", "list", dag_id, run_id)}

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until a running scheduler of this site knows the DAG."""
        self.until(lambda: dag_id in {dag["dag_id"] for dag in self.json("dags", "list")}, f"the DAG {dag_id} is known")

    def until(self, check: Callable[[], T], what: str, *, seconds: float = DEADLINE_SECONDS) -> T:
        """Wait for a condition; a failure shows the logs of this site's schedulers."""
        return until(check, what, seconds=seconds, describe=self.story)

    def story(self) -> str:
        """Return the last lines of every scheduler's output on this site."""
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-8000:]}" for log in self.logs)

    def processes(self) -> list[psutil.Process]:
        """Return every process that belongs to this site, the test's own excepted."""
        return [process for process in psutil.process_iter() if process.pid != os.getpid() and self._is_ours(process)]

    def keeper(self) -> int:
        """Return the process id of the keeper, the oldest of its title: it was taken before the first fork."""
        ages: dict[int, float] = {}
        for process in self.processes():
            with suppress(psutil.Error):
                if "asynsched: keeper" in process.cmdline():
                    ages[process.pid] = process.create_time()
        return min(ages, key=ages.__getitem__)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if os.getsid(process.pid) in self._sessions:
                return True
            if any(str(self.root) in argument for argument in process.cmdline()):
                return True
            return process.environ().get(MARK) == self.mark
        except (ProcessLookupError, psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def assert_nothing_left(self) -> None:
        left = {process.pid: words for process in self.processes() if (words := words_of(process))}
        assert left == {}, f"processes left behind: {left}\n{self.story()}"

    def end_everything(self) -> None:
        """Kill the processes that a failed test has left, and wait until they are gone."""
        left = self.processes()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def title_of(process: psutil.Process) -> str:
    """Return the beginning of a process's title in `ps`; empty for one that has just ended."""
    return next(iter(words_of(process)), "")


@dataclass
class Up:
    """A running `asynsched up`."""

    site: Site
    process: Process
    log_path: Path

    @property
    def log(self) -> str:
        """Its output so far."""
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> None:
        def serving() -> bool:
            assert self.process.poll() is None, f"`asynsched up` has ended with {self.process.returncode}:\n{self.log}"
            return is_serving(self.site.home)

        self.site.until(serving, "`asynsched up` is serving")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """End it as a power cut would, with no chance to do anything; its keeper lives on."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(seconds)
