"""A scheduler and a Slurm cluster on this machine: its controller, and a slurmd for each node."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from asynsched.settings import Settings, SlurmSettings
from tests.integration.remote.machines import MARKS, ROOT, Machine, Site, free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PATH = f"{os.environ['PATH']}:/usr/sbin"
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
NODES = ("n1", "n2")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={timeout}
KillWait=5
CompleteWait=0
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
PartitionName=closed Nodes=ALL State=DOWN
"""


class SlurmMachine(Machine):
    """A node of the cluster, with its slurmd."""

    def __init__(self, site: "SlurmSite", name: str) -> None:
        super().__init__(site.root, name)
        self._site = site

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [shutil.which("slurmd", path=PATH), "-D", "-N", self.name]
            self.worker = subprocess.Popen(command, stdout=log, stderr=log, env=self._site.environment)

    @property
    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.home.parent.glob("said-*")))


class SlurmSite(Site):
    """A site whose tries are jobs of Slurm.

    Attributes:
        slurm: Settings of Slurm, for schedulers that start after they are set.
        setup: One of them.
    """

    def __init__(self, root: Path, monkeypatch: Any) -> None:
        super().__init__(root, None, "slurm")
        self.is_remote = True
        self.slurm: dict[str, Any] = {}
        self.setup = f"export {MARKS}={self.marks} PYTHONPATH={ROOT} ASYNSCHED_SHUTDOWN_GRACE=0.2"
        self._root = root / "slurm"
        self._root.mkdir()
        (self._root / "state").mkdir()
        self._ports = {name: free_port() for name in ("controller", *NODES)}
        self.configure()
        monkeypatch.setenv("SLURM_CONF", str(self._root / "slurm.conf"))
        monkeypatch.setenv("PATH", PATH)
        self.environment = os.environ | {"SLURM_CONF": str(self._root / "slurm.conf")}

    def configure(self, timeout: int = 300) -> None:
        """Write the configuration.

        Args:
            timeout: Seconds of silence after which a node is down.
        """
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._ports[name]} CPUs=8 RealMemory=1000"
            for name in NODES
        )
        text = CONFIGURATION.format(
            host=host, port=self._ports["controller"], user=psutil.Process().username(), root=self._root, nodes=nodes,
            timeout=timeout,
        )  # fmt: skip
        (self._root / "slurm.conf").write_text(text)

    def settings(self, home: str = "home", **more: Any) -> Settings:
        options = (f"--output={self.root}/said-%A_%a",)
        slurm = SlurmSettings(**{"setup": self.setup, "options": options, "worker_homes": str(self.root), **self.slurm})
        return super().settings(home, slurm=slurm, **more)

    def start_slurm(self) -> None:
        """Start the cluster without a node."""
        key = self._root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        own = {"key-file": key, "socket": self._root / "munge.socket", "pid-file": self._root / "munged.pid"}
        own |= {"log-file": self._root / "munged.log", "seed-file": self._root / "munged.seed"}
        options = [f"--{name}={value}" for name, value in own.items()]
        self._spawn([shutil.which("munged", path=PATH), "--foreground", "--force", *options])
        self.start_controller()

    def start_controller(self) -> None:
        self._spawn([shutil.which("slurmctld", path=PATH), "-D"])
        self.controller = self.processes[-1]

    def _spawn(self, command: list[Any]) -> None:
        with (self._root / "said.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def machine(self, name: str = "n1") -> SlurmMachine:
        found = SlurmMachine(self, {"m1": "n1", "m2": "n2"}.get(name, name))
        self.machines.append(found)
        found.start()
        return found

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()

    def homes(self) -> list[Path]:
        """Return the homes of workers on the nodes."""
        return [*self.root.glob("asynsched-*")]

    def switch_jobs_off(self) -> None:
        """Kill all processes of all jobs at once."""
        for process in psutil.process_iter(["cmdline"]):
            if str(self.root / "asynsched-") in " ".join(process.info["cmdline"] or []):
                with suppress(psutil.NoSuchProcess):
                    for one in [*process.children(recursive=True), process]:
                        with suppress(psutil.NoSuchProcess):
                            one.kill()

    def slurm_says(self, *command: str) -> str:
        """Run a command of Slurm, and return its output; empty while Slurm does not answer."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout

    def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        super().close()
        for process in psutil.process_iter(["cmdline", "name"]):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = [*(process.info["cmdline"] or [])]
                if process.info["name"] == "slurmstepd":  # shows only the files that it has open
                    words += [file.path for file in process.open_files()]
                if str(self.root) in " ".join(words) and process.pid != os.getpid():
                    process.kill()
