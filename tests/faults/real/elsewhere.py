"""The engine and the workers of a campaign whose tasks run elsewhere: processes that are started again when they end.

schedulers ──proxy──▶ broker ◀──proxy── workers ──proxy──▶ schedulers
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from asynsched.worker.tickets import KeptTicket
from tests.engines.brokers import Broker, RabbitMQ, Redis
from tests.faults.real.processes import census
from tests.faults.real.proxies import WEATHERS, Proxies, Proxy
from tests.faults.real.serving import last_of
from tests.integration.remote.machines import free_port

BROKERS: dict[str, type[Broker]] = {"celery": Redis, "celery-rabbitmq": RabbitMQ}
ENGINES = (*BROKERS, "dask")
N_WORKERS = 2
WORKERS = {"lease": 3.0, "renew_interval": 0.3, "claim_timeout": 10.0}
HOME = "elsewhere"
"""Stands for the homes of all workers."""
BROKER, WORKER = "broker", "worker"
LONGEST_STORM = 6.0
"""Seconds that the weather of a proxy lasts: longer than the lease."""
STOP_SECONDS = 30.0


@dataclass
class Supervised:
    """A process that is started again whenever it has ended."""

    role: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    n_starts: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    _start_at: float = 0.0

    def tend(self, chance: random.Random) -> None:
        """Start it, if it is not there and its pause is over."""
        if self.process is not None and self.process.poll() is not None:
            self.process, self._start_at = None, time.monotonic() + chance.choice([0.0, 0.5, 2.0])
        if self.process is None and time.monotonic() >= self._start_at:
            self.n_starts += 1
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(self.environment),
                    cwd=self.log.parent, start_new_session=True,
                )  # fmt: skip

    def stop(self) -> str:
        """Stop it gently for good; return the complaint if that does not work."""
        if self.process is None or self.process.poll() is not None:
            return ""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"a {self.role} did not stop within {STOP_SECONDS:g} s: {self.log}"
        return ""


@dataclass
class Elsewhere:
    """One engine with its workers.

    Args:
        root: Of the installation.
        environment: Of the tasks.
        n_schedulers: How many schedulers there are.

    Attributes:
        ports: Where the schedulers listen.
    """

    engine: str
    root: Path
    environment: Mapping[str, str]
    n_schedulers: int
    chance: random.Random
    ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._proxies = Proxies()
        self._linger = self.root / "locks" / f"linger-{HOME}"
        self._storms: list[tuple[float, Proxy]] = []
        self.ports = [free_port() for _ in range(self.n_schedulers)]
        self._to_schedulers = [self._proxies.lead_to("workers to scheduler", port) for port in self.ports]
        self._server = self._new_broker()
        self._broker_port = free_port() if self._server is None else self._server.port
        self._of_schedulers = self._proxies.lead_to("schedulers to broker", self._broker_port)
        self._of_workers = self._proxies.lead_to("workers to broker", self._broker_port)
        self.homes = self.root / "workers"
        self.homes.mkdir(mode=0o700)
        temporary = self.root / "elsewhere" / "tmp"
        temporary.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASYNSCHED_", "PYTEST_"))}
        own = {} if self._server is None else self._engine_settings(self._of_workers.port)
        self._environment = kept | self.environment | own | {
            "TMPDIR": str(temporary), "FAULTS_HOME": HOME, "ASYNSCHED_SHUTDOWN_GRACE": "1",
        }  # fmt: skip
        self.processes = [self._broker(), *map(self._worker, range(1, N_WORKERS + 1))]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of schedulers, as environment variables."""
        addresses = ",".join(f"http://127.0.0.1:{proxy.port}" for proxy in self._to_schedulers)
        workers = {f"ASYNSCHED_WORKERS__{name.upper()}": str(value) for name, value in WORKERS.items()}
        return {
            "ASYNSCHED_EXECUTOR": self.engine.partition("-")[0], "ASYNSCHED_WORKERS__ADDRESSES": addresses,
            **workers, **self._engine_settings(self._of_schedulers.port),
        }  # fmt: skip

    @property
    def roles(self) -> dict[int, str]:
        """The part of each living process, by its id."""
        return {one.process.pid: one.role for one in self.processes if one.process is not None}

    def begin(self) -> None:
        """Start the broker, and wait until it serves: a RabbitMQ that is killed in its first start may never do so."""
        if self._server is not None:
            self.processes[0].tend(self.chance)
            self._server.wait()

    def tend(self) -> None:
        """Start what has ended, and end storms that are over."""
        for one in self.processes:
            one.tend(self.chance)
        for ends_at, proxy in list(self._storms):
            if time.monotonic() >= ends_at:
                self._storms.remove((ends_at, proxy))
                self._proxies.change(proxy, "fair")
        if not self._storms:
            self._linger.unlink(missing_ok=True)

    def disturb(self) -> str:
        """Disturb the connections of one way; return what was done. Tasks that begin meanwhile outlast all leases."""
        proxy, weather = self.chance.choice(self._proxies.all), self.chance.choice(WEATHERS)
        self._storms = [(ends_at, one) for ends_at, one in self._storms if one is not proxy]
        self._storms.append((time.monotonic() + self.chance.uniform(0.3, LONGEST_STORM), proxy))
        self._proxies.change(proxy, weather)
        self._linger.touch()
        return f"{proxy.name} {weather}"

    def calm(self) -> None:
        """End all storms at once."""
        for _, proxy in self._storms:
            self._proxies.change(proxy, "fair")
        self._storms.clear()

    def last_words(self) -> str:
        """Return the last log lines of the broker and the workers."""
        return "\n".join(f"{one.log.name}:\n{last_of(one.log)}" for one in self.processes)

    def stop(self) -> Iterator[str]:
        """Stop everything gently, the workers first; yield complaints."""
        for one in reversed(self.processes):
            if complaint := one.stop():
                yield complaint
        for path in self.homes.glob("*/tickets/*.json"):
            # Without terms, it is of a try that this worker has not got: a later worker of the home may ask again.
            if msgspec.json.decode(path.read_bytes(), type=KeptTicket).terms is not None:
                yield f"ticket left: {path}"

    def end(self) -> None:
        """Kill everything."""
        for one in self.processes:
            if one.process is not None and one.process.poll() is None:
                one.process.kill()
                one.process.wait()
        for victims in census(self.root, (), ()).values():
            for victim in victims:
                victim.send(signal.SIGKILL)
        if self._server is not None:
            self._server.kill()
        self._proxies.close()

    def _new_broker(self) -> Broker | None:
        """Return the broker of Celery; None: the engine is Dask, which has a scheduler of its own."""
        folder = self.root / "elsewhere"
        folder.mkdir()
        if (kind := BROKERS.get(self.engine)) is None:
            return None
        broker = kind(folder)
        broker.prepare()
        return broker

    def _engine_settings(self, port: int) -> dict[str, str]:
        if self._server is None:
            return {
                "ASYNSCHED_DASK__ADDRESS": f"tcp://127.0.0.1:{port}",
                "ASYNSCHED_DASK__WORKER_HOMES": str(self.homes),
            }
        return {
            "ASYNSCHED_CELERY__BROKER_URL": self._server.url_at(port),
            "ASYNSCHED_CELERY__VISIBILITY_TIMEOUT": "5",
        }

    def _broker(self) -> Supervised:
        own: dict[str, str] = {}
        if self._server is None:
            command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--no-dashboard"]
            command += ["--port", str(self._broker_port)]
        else:
            command, own = self._server.command()
        return Supervised(BROKER, command, os.environ | own, self.root / "elsewhere" / "broker.log")

    def _worker(self, number: int) -> Supervised:
        name, folder = f"w{number}", self.root / "elsewhere"
        if self._server is None:
            command = [
                sys.executable, "-m", "dask", "worker", f"tcp://127.0.0.1:{self._of_workers.port}", "--name", name,
                "--no-dashboard", "--host", "127.0.0.1", "--no-nanny", "--nthreads", "4", "--death-timeout", "10",
                "--local-directory", str(folder / "scratch"),
            ]  # fmt: skip
        else:
            command = [
                sys.executable, "-m", "asynsched", "worker", "celery", "--home", str(self.homes / name), "--name", name,
                "-n", f"{name}@%h", "--without-mingle", "--without-gossip", "--concurrency", "4",
            ]  # fmt: skip
        return Supervised(WORKER, command, self._environment, folder / f"{name}.log")
