"""What the workloads use of a served site: a client in this process, without the start of an interpreter."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from asynsched.bell import Hint, ring
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.store.dag_runs import get_run
from asynsched.store.dags import list_dags
from asynsched.store.direct_database import DirectDatabase, open_direct
from tests.support.up import Site
from tests.support.waiting import until


class Client:
    """Triggers and waits as the command line does: a transaction, then a ring of the bell."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.database: DirectDatabase = open_direct(site.database or f"sqlite:///{site.home / 'asynsched.db'}")

    def trigger(self, dag_id: str) -> tuple[DagRunKey, int]:
        """Create a run; return its key and the time just before, in nanoseconds since 1970."""
        asked_at = time.time_ns()
        key = self.database.write(create_manual_run, dag_id, now=datetime.now(UTC))
        ring(self.site.home, [Hint("run", dag_id=key.dag_id, run_id=key.run_id)])
        return key, asked_at

    def wait_for_success(self, key: DagRunKey, seconds: float = 120) -> None:
        def ended() -> str | None:
            run = self.database.read(get_run, *key)
            return run.state if run is not None and run.state in ("success", "failed") else None

        assert until(ended, f"{key} has ended", seconds=seconds, describe=self.site.story) == "success"

    def versions(self) -> dict[str, int | None]:
        """Return the version of every known DAG."""
        return {dag.dag_id: dag.version_id for dag in self.database.read(list_dags)}

    def wait_until(self, check: Callable[[], bool], what: str, seconds: float = 120) -> None:
        until(check, what, seconds=seconds, describe=self.site.story)


def read_marks(path: Path) -> list[tuple[str, int, int]]:
    """Return what task bodies have written: name, start and end in nanoseconds since 1970."""
    rows = (line.split() for line in path.read_text().splitlines())
    return [(name, int(start), int(end)) for name, start, end in rows]
