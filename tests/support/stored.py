"""Storing DAGs, and reading what no command shows: the audit, all versions of a DAG, the paths of logs, due runs."""

from datetime import datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched import DAG
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.scheduling.creation.scheduled_runs import Examined, examine_dags
from asynsched.serialization.schema import ParseReport
from asynsched.store.dags.dags import get_version
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.rows import as_struct
from asynsched.store.schema import AuditRow, DagVersionRow, audit, dag_version
from tests.support.runs import NOON
from tests.support.simulated import report_of


def store_dag(conn: Connection, dag: DAG | ParseReport, now: datetime = NOON, *, max_active_runs: int = 16) -> None:
    """Store a DAG, or those of a report, as if the file had just been parsed."""
    report = report_of(dag) if isinstance(dag, DAG) else dag
    store_report(conn, report, FileStamp("", 0, 0, ""), now=now, defaults=DagDefaults(max_active_runs, paused=False))


def list_audit(conn: Connection, *, dag_id: str | None = None) -> list[AuditRow]:
    """Return the users' actions on one DAG or on all, the newest first."""
    is_wanted = sa.true() if dag_id is None else audit.c.dag_id == dag_id
    rows = conn.execute(sa.select(audit).where(is_wanted).order_by(audit.c.id.desc()))
    return [as_struct(AuditRow, row) for row in rows]


def list_versions(conn: Connection, dag_id: str) -> list[DagVersionRow]:
    """Return a DAG's versions, the newest first."""
    ids = sa.select(dag_version.c.id).where(dag_version.c.dag_id == dag_id).order_by(dag_version.c.number.desc())
    return [get_version(conn, row_id) for row_id in conn.scalars(ids)]


def log_file(home: Path, key: TaskInstanceKey, try_number: int) -> Path:
    """Return the path of a try's log. The file does not exist if the try wrote nothing."""
    return home / LOGS / log_path(key, try_number)


def examine_dag(conn: Connection, dag_id: str, now: datetime) -> Examined:
    """Create the runs of one DAG that are due."""
    return examine_dags(conn, [dag_id], now)[dag_id]
