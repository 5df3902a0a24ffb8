"""A scheduler and Dask workers, with a Dask scheduler between them: processes that can be killed one by one."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, LocalCluster

from asynsched.settings import DaskSettings, Settings
from tests.integration.remote.machines import ROOT, Machine, Site, free_port

DASK = (sys.executable, "-m", "dask")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def adaptive_cluster() -> LocalCluster:
    """Return a cluster without a worker, which starts some when there are tasks."""
    cluster = LocalCluster(n_workers=0, threads_per_worker=2, dashboard_address=None)
    cluster.adapt(minimum=0, maximum=2)
    return cluster


class DaskMachine(Machine):
    """A machine with a Dask worker, which has no nanny unless its arguments say so."""

    def __init__(self, root: Path, name: str, site: "DaskSite", arguments: tuple[str, ...]) -> None:
        super().__init__(root, name)
        self.home = site.homes / name
        self._site = site
        self._arguments = arguments

    def start(self) -> None:
        command = [
            *DASK, "worker", self._site.address, "--name", self.name, "--no-dashboard", "--host", self.address,
            "--local-directory", str(self._site.root / "scratch"), *self._arguments,
        ]  # fmt: skip
        self._run(command, ENVIRONMENT | os.environ)  # with what a test has set


class DaskSite(Site):
    """A site whose tries go through a Dask scheduler."""

    def __init__(self, root: Path, database: str | None = None) -> None:
        super().__init__(root, database, "dask")
        self.is_remote = self.is_addressed = True
        self.cluster = ""
        self.homes = root / "homes"
        self._port = free_port()
        self._scheduler: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"tcp://{self.host}:{self._port}"

    def settings(self, home: str = "home", **more: Any) -> Settings:
        address = self.address if self.is_addressed and not self.cluster else ""
        dask = DaskSettings(address=address, cluster=self.cluster, worker_homes=str(self.homes))
        return super().settings(home, dask=dask, **more)

    def start_dask(self) -> None:
        command = [*DASK, "scheduler", "--host", self.host, "--port", str(self._port), "--no-dashboard"]
        with (self.root / "dask.log").open("ab") as log:
            self._scheduler = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)

    @property
    def dask_log(self) -> str:
        """What the Dask scheduler has printed."""
        return (self.root / "dask.log").read_text()

    def kill_dask(self) -> None:
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler.wait()

    def machine(self, name: str = "m1", *arguments: str) -> DaskMachine:
        return self._added(DaskMachine(self.root, name, self, arguments or ("--no-nanny", "--nthreads", "4")))

    async def until_workers(self, number: int) -> None:
        """Wait until this many Dask workers are connected."""
        async with self.client() as client:
            await client.wait_for_workers(number, timeout=60)

    def client(self) -> Client:
        """Return a client of the cluster, for `async with`."""
        return Client(self.address, asynchronous=True, set_as_default=False)

    def kill_nannys_worker(self) -> None:
        """Kill the process of the only worker, whose nanny starts another one."""
        [machine] = self.machines
        assert machine.worker is not None
        nanny = psutil.Process(machine.worker.pid)
        [worker] = [one for one in nanny.children() if "spawn_main" in " ".join(one.cmdline())]
        worker.kill()

    def close(self) -> None:
        for machine in self.machines:
            if machine.worker is not None and machine.worker.poll() is None:
                with suppress(ProcessLookupError):
                    machine.signal(signal.SIGCONT)
        super().close()
        self.kill_dask()
