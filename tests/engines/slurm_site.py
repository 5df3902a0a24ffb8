"""A scheduler and a Slurm cluster on this machine: its controller, and a slurmd for each node."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from asynsched.settings import Settings, SlurmSettings
from tests.integration.remote.machines import ELSEWHERE, MARKS, PLACE, ROOT, Machine, Site, free_port
from tests.support.waiting import until

PROGRAMS = {"munged": "slurm-wlm", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm"}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core", "my_print_defaults": "mariadb-client-core",
}  # fmt: skip
"""By the packages that bring them."""
PATH = f"{os.environ['PATH']}:/usr/sbin"
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
MinJobAge={min_job_age}
AccountingStorageType={accounting}
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass={root}/munge.socket
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
ACCOUNTING_CONFIGURATION = """
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={root}/slurmdbd.log
PidFile={root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
"""
ACCOUNTS = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\nGRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';\n"


def missing(programs: Mapping[str, str]) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in programs if shutil.which(name, path=PATH) is None]


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
        has_accounting: Whether Slurm is to keep accounts, once it is configured and started.
    """

    def __init__(self, root: Path, monkeypatch: Any) -> None:
        super().__init__(root, None, "slurm")
        self.is_remote = True
        self.slurm: dict[str, Any] = {}
        self.setup = f"export {MARKS}={self.marks} {PLACE}={ELSEWHERE} PYTHONPATH={ROOT} ASYNSCHED_SHUTDOWN_GRACE=0.2"
        self._root = root / "slurm"
        self._root.mkdir()
        (self._root / "state").mkdir()
        self._ports = {name: free_port() for name in ("controller", "accounting", "database", *NODES)}
        self._user = psutil.Process().username()
        self.has_accounting = False
        self.configure()
        monkeypatch.setenv("SLURM_CONF", str(self._root / "slurm.conf"))
        monkeypatch.setenv("PATH", PATH)
        self.environment = os.environ | {"SLURM_CONF": str(self._root / "slurm.conf")}

    def configure(self, timeout: int = 300, min_job_age: int = 300) -> None:
        """Write the configuration.

        Args:
            timeout: Seconds of silence after which a node is down.
            min_job_age: Seconds after which the controller may forget a job that has ended.
        """
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._ports[name]} CPUs=8 RealMemory=1000"
            for name in NODES
        )
        text = CONFIGURATION.format(
            host=host, port=self._ports["controller"], user=self._user, root=self._root, nodes=nodes, timeout=timeout,
            min_job_age=min_job_age, accounting_port=self._ports["accounting"],
            accounting=f"accounting_storage/{'slurmdbd' if self.has_accounting else 'none'}",
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
        if self.has_accounting:
            self._start_accounting()
        self.start_controller()

    def _start_accounting(self) -> None:
        """Start slurmdbd with a database, and tell it of the cluster."""
        data, accounts = self._root / "database", self._root / "accounts.sql"
        accounts.write_text(ACCOUNTS)
        own = ["--no-defaults", f"--user={self._user}", f"--datadir={data}"]
        subprocess.run(["mariadb-install-db", *own, "--skip-test-db"], check=True, capture_output=True)
        self._spawn([
            shutil.which("mariadbd", path=PATH), *own, f"--init-file={accounts}", "--bind-address=127.0.0.1",
            f"--port={self._ports['database']}", f"--socket={self._root}/database.socket",
        ])  # fmt: skip
        configuration = self._root / "slurmdbd.conf"
        configuration.touch(0o600)
        configuration.write_text(
            ACCOUNTING_CONFIGURATION.format(
                root=self._root, user=self._user, port=self._ports["accounting"],
                database_port=self._ports["database"],
            )
        )  # fmt: skip
        until(lambda: is_open(self._ports["database"]), "the database answers", describe=self.printed)
        self._spawn([shutil.which("slurmdbd", path=PATH), "-D"])
        until(lambda: is_open(self._ports["accounting"]), "slurmdbd answers", describe=self.printed)
        self.slurm_says("sacctmgr", "--immediate", "add", "cluster", "test")

    def printed(self) -> str:
        """Return the output of the cluster's processes."""
        return (self._root / "said.log").read_text()

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


def is_open(port: int) -> bool:
    """Return whether a server listens on a port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
