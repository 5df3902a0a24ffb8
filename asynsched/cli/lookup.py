"""Runs and tasks by the names that a user typed: found, or an error with the nearest names.

A run is named by its run_id, by a beginning that no other run_id of the DAG has, or by the word `latest`.
"""

from difflib import get_close_matches

from sqlalchemy import Connection

from asynsched.errors import AsynschedError, NotFound
from asynsched.scheduling.requests.named_tasks import no_such_instance
from asynsched.states import FINISHED_RUN_STATES
from asynsched.store.dags.dags import find_dag, get_dag
from asynsched.store.runs.dag_runs import DagRunRow, get_run, list_runs, runs_beginning_with
from asynsched.store.runs.task_instances import TaskInstanceRow, list_task_instances

LATEST = "latest"
"""Names the run that `runs list DAG` shows first."""
MOST_CANDIDATES = 4
"""Runs that are named where a beginning is that of several."""
NEWEST_RUNS = 200
"""Among how many runs a mistyped run_id is looked for."""


def find_run(conn: Connection, dag_id: str, run_id: str) -> DagRunRow:
    """Return the run that a user has named.

    Raises:
        NotFound: There is no such DAG or run; carries near names.
        AsynschedError: Several runs begin like that, or the DAG has no run that could be the latest one.
    """
    run = get_run(conn, dag_id, run_id)
    if run is not None:
        return run
    if run_id == LATEST and (newest := list_runs(conn, dag_id=dag_id, limit=1)):
        return newest[0]
    candidates = runs_beginning_with(conn, dag_id, run_id, MOST_CANDIDATES + 1) if run_id else []
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        named = ", ".join(run.run_id for run in candidates[:MOST_CANDIDATES])
        more = ", and more" if len(candidates) > MOST_CANDIDATES else ""
        raise AsynschedError(f"Several runs of the DAG {dag_id!r} begin with {run_id!r}: {named}{more}.")
    if get_dag(conn, dag_id) is None:
        find_dag(conn, dag_id)  # raises, and names what is near
    if run_id == LATEST:
        raise AsynschedError(f"The DAG {dag_id!r} has no run yet.")
    known = [run.run_id for run in list_runs(conn, dag_id=dag_id, limit=NEWEST_RUNS)]
    raise NotFound("run", run_id, tuple(get_close_matches(run_id, known)))


def find_task(conn: Connection, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> TaskInstanceRow:
    """Return a task instance.

    Raises:
        NotFound: There is no such DAG, run or task; carries the nearest names.
        AsynschedError: The run has no tasks yet, or the task no instance of that map index.
    """
    run = find_run(conn, dag_id, run_id)
    instances = list_task_instances(conn, run.id)
    if not instances and run.state not in FINISHED_RUN_STATES:
        raise AsynschedError(f"The run {run.run_id!r} is {run.state}, and has no tasks yet.")
    for instance in instances:
        if instance.task_id == task_id and instance.map_index == map_index:
            return instance
    indexes = sorted(instance.map_index for instance in instances if instance.task_id == task_id)
    if indexes:
        raise AsynschedError(no_such_instance(task_id, map_index, indexes))
    known = sorted({instance.task_id for instance in instances})
    raise NotFound("task", task_id, tuple(get_close_matches(task_id, known)))
