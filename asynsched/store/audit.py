"""Queries of `audit`, the record of users' actions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import count, fetch
from asynsched.store.schema import AuditRow, audit


def acts_since(conn: Connection, dag_id: str, since: datetime) -> list[AuditRow]:
    """Return the actions on a DAG since an instant."""
    return fetch(conn, AuditRow, sa.select(audit).where(audit.c.dag_id == dag_id, audit.c.at >= since))


def record_audit(
    conn: Connection,
    *,
    at: datetime,
    actor: str,
    action: str,
    dag_id: str | None = None,
    run_id: str | None = None,
    task_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Note an action, in the transaction that performs it. `detail` never holds secrets."""
    about = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "detail": dict(detail or {})}
    conn.execute(audit.insert(), {"at": at, "actor": actor, "action": action, **about})


def count_old_audit(conn: Connection, *, before: datetime) -> int:
    """Count the actions before an instant."""
    return count(conn, sa.select(audit.c.id).where(audit.c.at < before))


def delete_old_audit(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` notes of actions before an instant, the oldest first. Returns how many."""
    old = sa.select(audit.c.id).where(audit.c.at < before).order_by(audit.c.id).limit(limit)
    return conn.execute(sa.delete(audit).where(audit.c.id.in_(old))).rowcount
