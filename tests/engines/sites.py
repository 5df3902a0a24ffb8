"""A scheduler and workers with Celery between them."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from asynsched.settings import CelerySettings, Settings
from tests.engines.brokers import Broker
from tests.integration.remote.machines import Machine, Site
from tests.support.waiting import eventually


class CeleryMachine(Machine):
    """A machine with a Celery worker."""

    def __init__(self, root: Path, name: str, site: "CelerySite", arguments: tuple[str, ...]) -> None:
        super().__init__(root, name)
        self._site = site
        self._arguments = arguments

    def start(self) -> None:
        command = [
            sys.executable, "-m", "asynsched", "worker", "celery", "--home", str(self.home), "--name", self.name,
            "-n", f"{self.name}@%h", "--without-mingle", "--without-gossip", *self._arguments,
        ]  # fmt: skip
        self._run(command, os.environ | self._site.environment() | {"ASYNSCHED_SHUTDOWN_GRACE": "0.2"})

    async def until_ready(self) -> None:
        """Wait until the worker takes messages, and answers."""
        await eventually(lambda: self._site.app().control.ping([self.node], timeout=1.0), f"{self.name} answers")

    @property
    def node(self) -> str:
        return f"{self.name}@{os.uname().nodename}"

    async def until_stopped(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.signal(number)
        await eventually(lambda: self.worker.poll() is not None, f"{self.name} stops")
        return self.worker.returncode


class CelerySite(Site):
    """A site whose tries go through a broker.

    Attributes:
        celery: Settings of Celery, for schedulers and workers that start after they are set.
    """

    def __init__(self, root: Path, broker: Broker, database: str | None = None) -> None:
        super().__init__(root, database, "celery")
        self.broker = broker
        self.is_remote = True
        self.celery: dict[str, Any] = {}

    def settings(self, home: str = "home", **more: Any) -> Settings:
        return super().settings(home, celery=CelerySettings(broker_url=self.broker.url, **self.celery), **more)

    def environment(self) -> dict[str, str]:
        """Return the same as environment variables."""
        settings = {"broker_url": self.broker.url, **self.celery}
        return {f"ASYNSCHED_CELERY__{name.upper()}": str(value) for name, value in settings.items()}

    def app(self) -> Any:
        """Return an application of Celery at the same broker, for its remote control."""
        from asynsched.executors.engines.celery_app import celery_app

        return celery_app(self.settings().celery)

    def machine(self, name: str = "m1", *arguments: str) -> CeleryMachine:
        return self._added(CeleryMachine(self.root, name, self, arguments or ("--concurrency", "4")))

    def close(self) -> None:
        for machine in self.machines:
            if machine.worker is not None and machine.worker.poll() is None:
                machine.signal(signal.SIGCONT)
        super().close()
