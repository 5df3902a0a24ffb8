"""Runs and tasks by the names that a user typed: found, or an error with the nearest names."""

from difflib import get_close_matches

from sqlalchemy import Connection

from asynsched.errors import AsynschedError, NotFound
from asynsched.scheduling.requests.named_tasks import no_such_instance
from asynsched.states import FINISHED_RUN_STATES
from asynsched.store.dag_runs import DagRunRow, get_run, list_runs
from asynsched.store.dags import find_dag, get_dag
from asynsched.store.task_instances import TaskInstanceRow, list_task_instances

NEWEST_RUNS = 200
"""Among how many runs a mistyped run_id is looked for."""


def find_run(conn: Connection, dag_id: str, run_id: str) -> DagRunRow:
    """Return a run. Raises NotFound, with near names, when there is no such DAG or run."""
    run = get_run(conn, dag_id, run_id)
    if run is not None:
        return run
    if get_dag(conn, dag_id) is None:
        find_dag(conn, dag_id)  # raises, and names what is near
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
        raise AsynschedError(f"The run {run_id!r} is {run.state}, and has no tasks yet.")
    for instance in instances:
        if instance.task_id == task_id and instance.map_index == map_index:
            return instance
    indexes = sorted(instance.map_index for instance in instances if instance.task_id == task_id)
    if indexes:
        raise AsynschedError(no_such_instance(task_id, map_index, indexes))
    known = sorted({instance.task_id for instance in instances})
    raise NotFound("task", task_id, tuple(get_close_matches(task_id, known)))
