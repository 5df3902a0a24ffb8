"""`asynsched schedulers list`."""

from typing import Any

from asynsched.cli.command import command
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.explaining.owners import standing
from asynsched.store.schedulers import loads, unended_schedulers
from asynsched.store.schema import SchedulerRow

COLUMNS = (
    "id", "state", "hostname", "pid", "home", "version", "parallelism", "n_runs", "n_tasks", "started_at",
    "heartbeat_at", "lease_until", "lease_epoch",
)  # fmt: skip
USUAL_COLUMNS = ("id", "state", "hostname", "pid", "home", "n_runs", "n_tasks", "started_at", "heartbeat_at")
SPARE_COLUMNS = ("started_at", "pid", "hostname")


@command("list", tables=True)
def show_schedulers(session: Session) -> Listing:
    """List the schedulers of this database, with the runs and the task instances that each has in its hands.

    One that is `serving` renews its lease; one that is `lapsed` has not done so for too long: others take its runs once
    its tasks have certainly ended. Of those on this machine two things more are known: one that is `stopping` lets what
    runs end, and begins nothing; one that is `gone` was killed, its lease has not lapsed yet, and the next scheduler of
    its home takes its runs at once. Those that have stopped are not listed.
    """
    now, carried = session.now(), session.read(loads)

    def fields(row: SchedulerRow) -> dict[str, Any]:
        n_runs, n_tasks = carried.get(row.id, (0, 0))
        known = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
        return known | {"state": standing(row, now), "n_runs": n_runs, "n_tasks": n_tasks}

    rows = [fields(row) for row in session.read(unended_schedulers)]
    nothing = "No scheduler serves this database."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=SPARE_COLUMNS)
