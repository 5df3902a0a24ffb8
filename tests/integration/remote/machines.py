"""A scheduler and worker machines: processes with homes of their own, which share no folder but the engine's pipe.

On a site with a network, each machine has namespaces of its own, and reaches the scheduler by a cable.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import anyio
import httpx
import psutil

from asynsched import Scheduler
from asynsched.bell import is_serving
from asynsched.keys import DagRunKey
from asynsched.results import FinishedRun, read_finished_run
from asynsched.settings import LeaseSettings, LogSettings, Settings, WebSettings, WorkersSettings
from asynsched.web.server import open_listener, serve
from tests.support.embedding import Program
from tests.support.pipe_engine import pipe_of
from tests.support.separation import Enclosure, Network
from tests.support.waiting import DEADLINE_SECONDS, eventually

FAR = "far=tests.support.pipe_engine:PipeExecutor"
MARKS = "MARKS"
"""Environment variable of tries: a folder in which the tasks of these tests say what they do, and wait."""
PLACE, ELSEWHERE = "PLACE", "elsewhere"
"""Environment variable of tries on other machines, and its value."""
ROOT = Path(__file__).parents[3]
PORTS = range(10_000, 32_000)
"""Linux gives connections higher ports by default. A client that connects again and again to a stopped server could
otherwise get that server's port, and keep the server from starting."""
SHORT_LEASE = 6.0
"""Seconds of a worker's lease where a test waits for its end. On a busy machine, a worker must be able to renew it."""
LEASE = {"duration": 2.0, "renew_interval": 0.5, "grace": 0.5, "kill_time": 0.5, "outage": 0.0, "shared_outage": 0.0}


class Machine:
    """A machine with a worker. Its environment leads neither to the scheduler's home nor to its database."""

    def __init__(self, root: Path, name: str, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.home = root / f"machine-{name}"
        self._root = root
        self._log = root / f"{name}.log"
        self.environment = environment or {}
        self.worker: subprocess.Popen[bytes] | None = None
        self.enclosure: Enclosure | None = None

    def separate(self, network: Network, shown: Path) -> None:
        """Give it namespaces of its own, in which only its home and one folder of the site are shown."""
        self.home.mkdir(0o700, parents=True)
        self.enclosure = Enclosure(network, self._root, (self.home, shown))
        self.environment["TMPDIR"] = str(self._root / "tmp")

    @property
    def address(self) -> str:
        """At which others reach it."""
        return "127.0.0.1" if self.enclosure is None else self.enclosure.cable.address

    def start(self) -> None:
        """Start a worker that takes tickets from the pipe."""
        pipe = os.open(pipe_of(self._root), os.O_RDWR)
        command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(self.home), "--name", self.name]
        self._run(command, os.environ | {"ASYNSCHED_SHUTDOWN_GRACE": "0.2"}, stdin=pipe)
        os.close(pipe)

    def _run(self, command: list[str], environment: Mapping[str, str], stdin: int | None = None) -> None:
        """Run a worker's command on this machine."""
        entrance = () if self.enclosure is None else self.enclosure.entrance
        with self._log.open("ab") as log:
            self.worker = subprocess.Popen(
                [*entrance, *command], stdin=stdin, stdout=log, stderr=log,
                env={**environment, PLACE: ELSEWHERE, **self.environment},
            )  # fmt: skip

    @property
    def log(self) -> str:
        """What the worker has printed."""
        return self._log.read_text()

    def signal(self, number: int) -> None:
        """Send a signal to the worker's own process."""
        assert self.worker is not None
        self.worker.send_signal(number)

    def kill_worker(self) -> None:
        """Kill the worker, and leave its keeper."""
        self.signal(signal.SIGKILL)
        assert self.worker is not None
        self.worker.wait()

    async def stop(self) -> None:
        """Stop the worker gently."""
        self.signal(signal.SIGTERM)
        assert self.worker is not None
        assert await anyio.to_thread.run_sync(self.worker.wait, 60) == 0, self.log

    def switch_off(self) -> None:
        """Kill everything on this machine at once."""
        for process in psutil.process_iter(["cmdline"]):
            if str(self.home) in " ".join(process.info["cmdline"] or []):
                with suppress(psutil.NoSuchProcess):
                    for one in [*process.children(recursive=True), process]:
                        with suppress(psutil.NoSuchProcess):
                            one.kill()
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()


MachineT = TypeVar("MachineT", bound=Machine)


class Site:
    """The places of schedulers, and machines; with the local executor, none is needed.

    Attributes:
        marks: The folder in which tasks say what they do.
        files: Patterns of the data files that machines get.
        network: By which machines that are made after it is set reach schedulers; None: they have the scheduler's own.
    """

    def __init__(self, root: Path, database: str | None, executor: str) -> None:
        self.program = Program(root)
        self.root = root
        self.database = database
        self.executor = executor
        self.is_remote = executor == FAR
        self.machines: list[Machine] = []
        self.marks = root / "marks"
        self.marks.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports = (free_port(), free_port())
        self.lease = 20.0
        self.scheme = "http"
        self.files: tuple[str, ...] = ()
        self.network: Network | None = None

    def settings(self, home: str = "home", **more: Any) -> Settings:
        """Return the settings of a scheduler with this home."""
        workers = WorkersSettings(
            addresses=self.addresses, lease=self.lease, renew_interval=0.2, files=self.files, files_bytes=100_000
        )  # fmt: skip
        return Settings(
            dags_folder=str(self.program.dags), home=str(self.root / home), database=self.database,
            executor=self.executor, workers=workers, shutdown_grace=0.2, lease=LeaseSettings(**LEASE),
            log=LogSettings(task_bytes=200_000), **more,
        )  # fmt: skip

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{self.scheme}://{self.host}:{port}" for port in self.ports)

    @property
    def host(self) -> str:
        """The address of schedulers and engines."""
        return "127.0.0.1" if self.network is None else self.network.address

    @asynccontextmanager
    async def serving(self, home: str = "home", number: int = 0, **more: Any) -> AsyncIterator[Scheduler]:
        """Serve a scheduler, and workers at the address of this number."""
        scheduler = Scheduler(settings=self.settings(home, **more))
        listener = open_listener(WebSettings(listen=f"{self.host}:{self.ports[number]}"))
        with closing(listener.socket):
            async with scheduler, anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: serve(scheduler.web(), listener.socket, scheduler.settings.web, at_once=True))
                yield scheduler
                tasks.cancel_scope.cancel()

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start a scheduler in a process of its own, which can be killed."""
        command = [
            sys.executable, "-m", "asynsched", "up", str(self.program.dags), "--home", str(self.root / "home"),
            "--executor", self.executor,
        ]  # fmt: skip
        lease = {f"ASYNSCHED_LEASE__{name.upper()}": str(value) for name, value in LEASE.items()}
        environment = os.environ | lease | {
            "PYTHONPATH": str(ROOT), "ASYNSCHED_WEB__LISTEN": f"{self.host}:{self.ports[0]}",
            "ASYNSCHED_WORKERS__ADDRESSES": ",".join(self.addresses), "ASYNSCHED_WORKERS__LEASE": str(self.lease),
            "ASYNSCHED_WORKERS__RENEW_INTERVAL": "0.2",
            **({} if self.database is None else {"ASYNSCHED_DATABASE": self.database}),
        }  # fmt: skip
        with (self.root / "up.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.processes.append(process)
        return process

    def machine(self, name: str = "m1", **environment: str) -> Machine:
        """Return a machine whose worker is started, with these variables in its environment."""
        return self._added(Machine(self.root, name, environment))

    def _added(self, machine: MachineT) -> MachineT:
        """Add a machine, and start its worker."""
        self.machines.append(machine)
        if self.network is not None:
            machine.separate(self.network, self.marks)
        if self.is_remote:
            machine.start()
        return machine

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for machine in self.machines:
            machine.switch_off()
        if self.network is not None:
            self.network.close()
        for machine in self.machines:
            if machine.enclosure is not None:
                machine.enclosure.close()

    async def until_served(self) -> None:
        """Wait until a scheduler in another process answers at its address."""

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{self.addresses[0]}/api/v2/version").status_code != 503
            return False

        await eventually(lambda: is_serving(self.root / "home") and answers(), "the scheduler serves")

    def trigger(self, dag_id: str) -> DagRunKey:
        """Trigger a run of a scheduler in another process."""
        command = [
            sys.executable, "-m", "asynsched", "dags", "trigger", dag_id, "--run-id", "one", "--home",
            str(self.root / "home"), *(() if self.database is None else ("--database", self.database)),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        return DagRunKey(dag_id, "one")

    async def end_of(self, scheduler: Scheduler, key: DagRunKey, *, seconds: float = DEADLINE_SECONDS) -> FinishedRun:
        """Return a run once it has ended."""
        with anyio.fail_after(seconds):
            await scheduler.client().wait_run(key)
        return await read_finished_run(scheduler._database, key)

    # What the tasks say

    def said(self) -> list[str]:
        """Return what tasks have said, in the order of the files' names: one line each."""
        path = self.marks / "said"
        return path.read_text().splitlines() if path.exists() else []

    async def until_said(self, *lines: str) -> None:
        """Wait until tasks have said these lines, at least."""
        await eventually(lambda: all(self.said().count(line) >= lines.count(line) for line in lines), f"said: {lines}")

    def let_go(self) -> None:
        """Release the tasks that wait."""
        (self.marks / "go").touch()


def free_port() -> int:
    """Return a port at which a server may listen, again after a restart."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
