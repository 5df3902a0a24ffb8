"""`asynsched schedulers list`."""

from asynsched.cli.command import command
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.queries.schedulers import SchedulerInfo, unended, with_states

COLUMNS = SchedulerInfo.__struct_fields__
USUAL_COLUMNS = ("id", "state", "hostname", "pid", "home", "n_runs", "n_tasks", "started_at", "heartbeat_at")


@command("list", tables=True)
def schedulers_list(session: Session) -> Listing:
    """List the schedulers of this database, with the number of runs and task instances that each has.

    A `serving` scheduler renews its lease; a `lapsed` one has not renewed it for too long: others take over its runs
    once its tasks have certainly ended. Two more states are known only on the scheduler's machine: a `stopping`
    scheduler lets running tasks end, and begins nothing; a `gone` one was killed, its lease has not lapsed yet, and the
    next scheduler of its home takes over its runs at once. Schedulers that have stopped are not listed.
    """
    rows = with_states(session.read(unended), session.now())
    nothing = "No scheduler serves this database."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=("started_at", "pid", "hostname"))
