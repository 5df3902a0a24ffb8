"""The messages between a worker on another machine and the schedulers: JSON over HTTP, below `/api/workers/v1`.

A worker gets a ticket from an engine, such as a queue or a batch system. It claims the try, which exactly one worker
can; renews the try's lease; passes on its requests, its log, its start and its end. Every message proves by the
ticket's secret which try it is about. Readers ignore fields that they do not know, so that a worker and a scheduler of
neighbouring versions understand each other.

Lengths are seconds, and never instants: no process relies on the clock of another machine.
"""

from msgspec import Struct

from asynsched.protocol.messages import Ended, Launch, Request, Started

PREFIX = "/api/workers/v1"
VERSION = 1
MOST_RENEWALS = 1000
"""In one message."""
MOST_LOG_BYTES = 1024 * 1024
"""Of a log in one message."""
MOST_FILE_BYTES = 4 * 1024 * 1024
"""Of a data file in one message."""


class Proof(Struct, frozen=True):
    """Which try a message is about, and the secret of its ticket, which only the try's worker and engine know."""

    token: str
    secret: str

    def __repr__(self) -> str:
        # Objects end up in logs and tracebacks.
        return f"Proof(token={self.token!r}, …)"


class Ticket(Struct, frozen=True, omit_defaults=True):
    """What an engine carries to a worker. It holds no code, and no secret but that of this try alone.

    Attributes:
        addresses: URLs of schedulers of the database; any of them answers.
        dag_id: For people, as the other names are: an engine may show them.
        callback: Its event, such as `on_failure`; empty: it is the try of a task.
        stays_warm: Whether its worker is to ask for another ticket once the try has ended.
    """

    token: str
    secret: str
    addresses: tuple[str, ...]
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 0
    version: int = 1  # not VERSION: a ticket of version 1 leaves it out
    stays_warm: bool = False
    callback: str = ""

    @classmethod
    def of(cls, launch: Launch, secret: str, addresses: tuple[str, ...] = ()) -> "Ticket":
        """Return a ticket for a launch."""
        run = launch.run
        return cls(
            launch.token, secret, addresses, run.dag_id, run.run_id, launch.task_id, launch.map_index,
            launch.try_number, VERSION, callback=launch.callback.get("event", ""),
        )  # fmt: skip

    @property
    def proof(self) -> Proof:
        return Proof(self.token, self.secret)

    @property
    def name(self) -> str:
        """Its name for people."""
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        instance = f"{self.task_id}{index} try {self.try_number}" if self.task_id else ""
        return "/".join(filter(None, (self.dag_id, self.run_id, instance, self.callback)))

    @property
    def kind(self) -> str:
        """The name that all tries of its task share, or all calls of its callback: an engine's lists show it."""
        return ".".join(filter(None, (self.dag_id, self.task_id, self.callback)))

    def __repr__(self) -> str:
        return f"Ticket({self.name}, token={self.token!r}, …)"


class Claim(Struct, frozen=True):
    """A worker is about to start a try. The same life of a worker may repeat it, if the answer was lost.

    Attributes:
        worker: Its name, for people.
        boot: Identifies the worker's home, and the boot of its machine.
    """

    proof: Proof
    worker: str
    boot: str
    version: int = VERSION


class WorkerTerms(Struct, frozen=True):
    """How a worker runs tries, as the settings of its scheduler say.

    Attributes:
        lease_seconds: How long the lease of the claimed try lasts from the claim on.
        renew_interval: Time between two renewals.
        grace: How long the try may go on after its lease.
        kill_time: The time that it then has to end itself.
        airflow_options: What `conf` of Airflow answers.
        has_files: Whether tries get data files of the DAG folder.
    """

    lease_seconds: float
    renew_interval: float
    grace: float
    kill_time: float
    import_timeout: float
    log_bytes: int
    default_timezone: str
    airflow: str
    airflow_options: dict[str, str]
    has_files: bool = False

    @property
    def end_seconds(self) -> float:
        """How long after its lease a try has ended at the latest."""
        return self.grace + self.kill_time


class Claimed(Struct, frozen=True):
    """The answer to a Claim: the worker is to start this try.

    Attributes:
        end: Not empty: it is not to start it, and to report that it has ended, for this reason.
    """

    launch: Launch
    terms: WorkerTerms
    version: int = VERSION
    end: str = ""


class Renew(Struct, frozen=True):
    """A worker renews the leases of all its tries."""

    proofs: tuple[Proof, ...]


class Renewal(Struct, frozen=True, omit_defaults=True):
    """A try's lease, as renewed.

    Attributes:
        seconds: How long it lasts from the renewal on; 0: it was not renewed.
        end: Not empty: end the try, for this reason.
    """

    token: str
    seconds: float = 0.0
    end: str = ""


class Renewed(Struct, frozen=True):
    """The answer to a Renew."""

    renewals: tuple[Renewal, ...]


class Report(Struct, frozen=True):
    """A try has begun or ended. The answer says that this is durable, so the worker may forget it.

    Attributes:
        started: The start of a try that has ended soon after: both are stored at once.
        stays_warm: With an end: the worker is about to ask for another ticket.
    """

    proof: Proof
    event: Started | Ended
    started: Started | None = None
    stays_warm: bool = False


class Following(Struct, frozen=True):
    """The answer to the Proof of a try that has ended: another ticket; None: none yet, and the worker may ask again."""

    ticket: Ticket | None = None


class Ask(Struct, frozen=True):
    """A try asks for something of its own run; the answer is a Reply."""

    proof: Proof
    request: Request


class LogSize(Struct, frozen=True):
    """The answer to a part of a log: how many bytes of it are stored. The next part begins there."""

    n_bytes: int


class DataFile(Struct, frozen=True, omit_defaults=True):
    """A file of the DAG folder. `path` is relative, with forward slashes; `content_hash` is a SHA-256."""

    path: str
    content_hash: str
    is_executable: bool = False


class DataFileList(Struct, frozen=True):
    """The answer to a Proof: the data files as they are now, which the try gets."""

    files: tuple[DataFile, ...]
