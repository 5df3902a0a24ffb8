"""The bounds of a DAG's schedule."""

from asynsched.serialization.schema import SerializedDag
from asynsched.timetables.base import TimeRestriction


def restriction(dag: SerializedDag) -> TimeRestriction:
    """Return the first and the last date of a DAG's runs, and its catchup.

    Without a `start_date` of the DAG's the earliest of its tasks' counts; without an `end_date` of the DAG's the latest
    of its tasks', if all of them have one.

    Source:
        Airflow's `DAG.add_task` (tasks keep within the DAG's dates) and `DAG._time_restriction`.
    """
    starts = [task.start_date for task in dag.tasks if task.start_date is not None]
    ends = [task.end_date for task in dag.tasks if task.end_date is not None]
    all_end = len(ends) == len(dag.tasks)
    return TimeRestriction(
        earliest=dag.start_date or min(starts, default=None),
        latest=dag.end_date or (max(ends, default=None) if all_end else None),
        catchup=dag.catchup,
    )
