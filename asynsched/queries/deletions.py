"""Deletes runs, and DAGs that have left their files, in transactions of bounded size.

`run_actions.py` does that within the event loop, commands without one. The logs of a run go with it.
"""

from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey
from asynsched.queries.context import Act
from asynsched.queries.dags import get_dag
from asynsched.queries.run_edits import find_run
from asynsched.states import DagRunState
from asynsched.store.dags import dags
from asynsched.store.runs import dag_runs
from asynsched.store.runs.dag_runs import newest_run_ids
from asynsched.store.runs.retention import delete_rows_of
from asynsched.store.schema import DagRunRow

RUNS_AT_ONCE = 100
ROWS_AT_ONCE = 5000
"""Of a run, deleted in one transaction."""


def delete_part(conn: Connection, key: DagRunKey) -> bool:
    """Delete some rows of a run; call this until it returns True, then `delete_run_row`.

    Raises NotFound, and AsynschedError while the run is running.
    """
    return delete_rows_of(conn, deletable(conn, key).id, max_rows=ROWS_AT_ONCE) < ROWS_AT_ONCE


def delete_run_row(conn: Connection, key: DagRunKey) -> Act[None]:
    """Delete a run with its remaining rows. Raises NotFound, and AsynschedError while the run is running."""
    dag_runs.delete_run(conn, deletable(conn, key).id)
    return Act(None, "run.delete", Hint("edit", *key))


def deletable(conn: Connection, key: DagRunKey) -> DagRunRow:
    """Return a run, locked. Raises NotFound, and AsynschedError while it is running."""
    run = find_run(conn, key, lock=True)
    if run.state == DagRunState.RUNNING:
        raise AsynschedError(f"The run {key.run_id!r} of the DAG {key.dag_id!r} is running: cancel it, then delete it.")
    return run


def runs_to_delete(conn: Connection, dag_id: str) -> list[str]:
    """Return some runs of a DAG that has left its file. Raises NotFound, and AsynschedError while its file has it."""
    found = get_dag(conn, dag_id, active=False)
    if found.is_active:
        raise AsynschedError(f"The DAG {dag_id!r} is in the file {found.file}: remove it from there, then delete it.")
    return newest_run_ids(conn, dag_id, limit=RUNS_AT_ONCE)


def delete_dag_row(conn: Connection, dag_id: str) -> Act[None]:
    """Delete a DAG without runs. Raises the errors of `runs_to_delete`, and AsynschedError if it has got a run."""
    dags.lock_dag(conn, dag_id)
    if runs_to_delete(conn, dag_id):
        raise AsynschedError(f"The DAG {dag_id!r} has got a run meanwhile: delete it again.")
    dags.delete_dag(conn, dag_id)
    return Act(None, "dag.delete", Hint("dag", dag_id=dag_id))
