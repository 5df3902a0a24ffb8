"""A database with a past: finished runs with their task instances, and DAGs that are never due."""

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.schema import dag, dag_run, task_instance

N_TASKS = 100
"""Task instances of each finished run."""
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
VERY_LATE = datetime(2099, 1, 1, tzinfo=UTC)


def fill(conn: Connection, *, n_runs: int, n_dags: int, dag_id: str = "past", n_tasks: int = N_TASKS) -> None:
    """Add finished runs of a DAG, with this many task instances each, and DAGs that are due very late."""
    now = datetime.now(UTC)
    run = numbers(n_runs)
    copy_rows(
        conn, dag_run, run,
        dag_id=dag_id, run_id=named("run_", run), run_type="manual", state="success", reason="", run_after=LONG_AGO,
        queued_at=LONG_AGO, started_at=LONG_AGO, ended_at=LONG_AGO, conf={}, lease_epoch=0,
    )  # fmt: skip
    task = numbers(n_tasks)
    finished = sa.select(dag_run.c.id, task.c.n).select_from(dag_run.join(task, sa.true())).where(
        dag_run.c.dag_id == dag_id, dag_run.c.state == "success"
    ).subquery()  # fmt: skip
    copy_rows(
        conn, task_instance, finished,
        dag_run_id=finished.c.id, task_id=named("task_", finished), map_index=-1, state="success", reason="",
        try_number=1, max_tries=0, machine_kills=0, lease_epoch=1, priority_weight=1, pool="default_pool", pool_slots=1,
        queue="default", started_at=LONG_AGO, ended_at=LONG_AGO,
    )  # fmt: skip
    if not n_dags:
        return
    other = numbers(n_dags)
    copy_rows(
        conn, dag, other,
        dag_id=named("other_", other), file_path="others.py", is_active=True, is_paused=False, schedule_summary="",
        timetable="null", owners=b"[]", tags=b"[]", about=b"{}", max_active_runs=16, deadlines=b"[]",
        next_dagrun_create_after=VERY_LATE, last_examined_at=now,
        updated_at=now,
    )  # fmt: skip


def look_at_sizes(conn: Connection) -> None:
    """Tell the planner how large the tables are, as it knows on a database in use."""
    conn.execute(sa.text("ANALYZE"))


def numbers(n: int) -> sa.CTE:
    """Return a table of the numbers from 1 to n."""
    counted = sa.select(sa.literal(1).label("n")).cte(recursive=True)
    return counted.union_all(sa.select(counted.c.n + 1).where(counted.c.n < n))


def named(prefix: str, source: sa.FromClause) -> sa.ColumnElement[str]:
    """Return names that are numbered as the rows of `source` are."""
    return sa.literal(prefix) + sa.cast(source.c.n, sa.String)


def copy_rows(conn: Connection, table: sa.Table, source: sa.FromClause, **values: object) -> None:
    """Add a row for each of `source`; a value is the same in all of them, or an expression of its columns."""
    columns = [sa.literal(value, table.c[name].type) if not isinstance(value, sa.ColumnElement) else value
               for name, value in values.items()]  # fmt: skip
    chosen = sa.select(*columns).select_from(source)
    conn.execute(sa.insert(table).from_select(list(values), chosen, include_defaults=False))
