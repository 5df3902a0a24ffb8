"""What the schedule of a DAG is about to create: said when the DAG is unpaused."""

from datetime import datetime

from sqlalchemy import Connection

from asynsched.cli.rendering import Done
from asynsched.errors import DagError, PlanNeeded
from asynsched.scheduling.creation.scheduled_runs import coming_runs

MOST_COUNTED = 1_000
"""Due runs that are counted one by one."""


def about_to_create(conn: Connection, dag_id: str, now: datetime) -> Done:
    """Return which runs of a DAG are due, and when the next one is."""
    try:
        coming = coming_runs(conn, dag_id, now, at_most=MOST_COUNTED + 1)
    except PlanNeeded:
        return Done("Its own timetable is now asked for its next run.", {})
    except DagError as exc:
        return Done(f"Its next run cannot be told: {exc}", {})
    due = [info for info in coming if info.run_after <= now]
    following = coming[len(due)].run_after if len(due) < len(coming) else None
    fields = {
        "due_runs": len(due),
        "first_logical_date": due[0].logical_date if due else None,
        "next_run_at": following,
    }
    if not coming:
        return Done("By its schedule it has no further run.", fields)
    if not due:
        return Done(f"Its next run is due at {following}.", fields)
    number = f"More than {MOST_COUNTED} runs are" if len(due) > MOST_COUNTED else f"{len(due)} runs are"
    number = "One run is" if len(due) == 1 else number
    then = "" if following is None else f" The next one is due at {following}."
    return Done(f"{number} due, from the logical date {due[0].logical_date} on.{then}", fields)
