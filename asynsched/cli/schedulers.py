"""`asynsched schedulers list`."""

import msgspec

from asynsched.cli.command import command
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.explaining.owners import standing
from asynsched.store.schedulers import loads, unended_schedulers

COLUMNS = (
    "id", "state", "hostname", "pid", "home", "version", "parallelism", "n_runs", "n_tasks", "started_at",
    "heartbeat_at", "lease_until", "lease_epoch",
)  # fmt: skip
USUAL_COLUMNS = ("id", "state", "hostname", "pid", "home", "n_runs", "n_tasks", "started_at", "heartbeat_at")


@command("list", tables=True)
def schedulers_list(session: Session) -> Listing:
    """List the schedulers of this database, with the number of runs and task instances that each has.

    A `serving` scheduler renews its lease; a `lapsed` one has not renewed it for too long: others take over its runs
    once its tasks have certainly ended. Two more states are known only on the scheduler's machine: a `stopping`
    scheduler lets running tasks end, and begins nothing; a `gone` one was killed, its lease has not lapsed yet, and the
    next scheduler of its home takes over its runs at once. Schedulers that have stopped are not listed.
    """
    now, carried = session.now(), session.read(loads)
    rows = [
        msgspec.structs.asdict(row)
        | {"state": standing(row, now)}
        | dict(zip(("n_runs", "n_tasks"), carried.get(row.id, (0, 0)), strict=True))
        for row in session.read(unended_schedulers)
    ]
    nothing = "No scheduler serves this database."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=("started_at", "pid", "hostname"))
