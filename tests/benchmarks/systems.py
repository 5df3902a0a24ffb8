"""The measured systems: a scheduler in processes of its own, with a client that triggers and waits."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from asynsched.bell import Hint, ring
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.store.dags.dags import get_dag, list_dags
from asynsched.store.database import DirectDatabase
from asynsched.store.engines.opening import open_direct
from asynsched.store.runs.dag_runs import get_run
from tests.support.up import Site, Up
from tests.support.waiting import PAUSE_SECONDS, until


class Client(ABC):
    """Triggers runs and waits for them, without the start of an interpreter."""

    @abstractmethod
    def trigger(self, dag_id: str) -> tuple[Any, int]:
        """Create a run; return its key and the time just before, in nanoseconds since 1970."""

    @abstractmethod
    def has_ended(self, key: Any) -> bool:
        """Return whether the run has ended; one that failed is an error."""

    @abstractmethod
    def dag_ids(self) -> set[str]:
        """Return every known DAG."""

    @abstractmethod
    def version(self, dag_id: str) -> Any:
        """Return something that is another one after each edit of the DAG; None while it is not known."""

    @abstractmethod
    def story(self) -> str:
        """Return the system's latest log lines."""

    def wait_for_success(self, *keys: Any, seconds: float = 600) -> None:
        for key in keys:
            self.wait_until(lambda key=key: self.has_ended(key), f"{key} has ended", seconds)

    def wait_for_dags(self, *dag_ids: str, seconds: float = 600) -> None:
        self.wait_until(lambda: set(dag_ids) <= self.dag_ids(), f"{dag_ids} are known", seconds)

    def wait_until(self, check: Callable[[], bool], what: str, seconds: float = 600) -> None:
        until(check, what, seconds=seconds, describe=self.story, longest_pause=PAUSE_SECONDS)


class System(ABC):
    """A scheduler with a folder of DAG files.

    Attributes:
        name: As the table shows it.
        sdk: The module that DAG files import from.
        dags: The folder.
        marks: The file that task bodies write to.
        n_runs: How often a workload runs its DAGs; the first time does not count.
        n_saves: How often a file is saved.
    """

    n_runs = 6
    n_saves = 40
    name: str
    sdk: str
    dags: Path
    marks: Path

    @abstractmethod
    def serving(self, parallelism: int | None = None) -> Any:
        """Start it, and return a context of a client that ends it."""

    @abstractmethod
    def processes(self) -> list[psutil.Process]:
        """Return all its processes."""

    def write(self, name: str, text: str) -> None:
        """Write a DAG file; `{sdk}` in its text stands for the package to import from."""
        (self.dags / name).write_text(text.replace("{sdk}", self.sdk))

    def count_marks(self) -> int:
        """Return how many marks there are; cheaper than to read them, as who waits for them does often."""
        return self.marks.read_bytes().count(b"\n") if self.marks.exists() else 0

    def read_marks(self) -> list[tuple[str, int, int]]:
        """Return the records of task bodies: name, start and end in nanoseconds since 1970."""
        if not self.marks.exists():
            return []
        rows = (line.split() for line in self.marks.read_text().splitlines())
        return [(name, int(start), int(end)) for name, start, end in rows]


class Ours(System):
    """`asynsched up` on a site, with a database of ours."""

    sdk = "asynsched"

    def __init__(self, site: Site, backend: str) -> None:
        self.site = site
        self.name = self.backend = backend
        self.dags = site.dags
        self.marks = site.root / "marks"
        site.env["MARKS"] = str(self.marks)
        site.env["ASYNSCHED_SQLITE_SYNCHRONOUS"] = "full"  # as users have it; tests do not wait for the disk
        self.up: Up | None = None

    @property
    def database_url(self) -> str:
        return self.site.database or f"sqlite:///{self.site.home / 'asynsched.db'}"

    @contextmanager
    def serving(self, parallelism: int | None = None) -> "Iterator[OurClient]":
        flags = () if parallelism is None else ("--parallelism", str(parallelism))
        with self.site.up(*flags) as self.up:
            client = OurClient(self)
            yield client
            client.database.close()

    def processes(self) -> list[psutil.Process]:
        return self.site.processes()


class OurClient(Client):
    """Does as the command line does: a transaction, then a ring of the bell."""

    def __init__(self, system: Ours) -> None:
        self.site = system.site
        self.database: DirectDatabase = open_direct(system.database_url)

    def trigger(self, dag_id: str) -> tuple[DagRunKey, int]:
        asked_at = time.time_ns()
        key = self.database.write(create_manual_run, dag_id, Trigger(), now=datetime.now(UTC))
        ring(self.site.home, [Hint("run", dag_id=key.dag_id, run_id=key.run_id)])
        return key, asked_at

    def has_ended(self, key: DagRunKey) -> bool:
        run = self.database.read(get_run, *key)
        assert run is None or run.state != "failed", self.story()
        return run is not None and run.state == "success"

    def dag_ids(self) -> set[str]:
        return {dag.dag_id for dag in self.database.read(list_dags)}

    def version(self, dag_id: str) -> Any:
        dag = self.database.read(get_dag, dag_id)
        return None if dag is None else dag.version_id

    def story(self) -> str:
        return self.site.story()


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time that these processes, and their children that have ended, have used."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mb(processes: list[psutil.Process]) -> float:
    """Return the memory that these processes take, in MB: shared pages are counted once (PSS)."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6
