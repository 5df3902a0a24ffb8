"""Queries of `audit`: who did what from outside."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.rows import fetch
from asynsched.store.schema import AuditRow, audit

_OF_DAG_SINCE = sa.select(audit).where(audit.c.dag_id == sa.bindparam("dag_id"), audit.c.at >= sa.bindparam("since"))
_OLDEST = (
    sa.select(audit.c.id).where(audit.c.at < sa.bindparam("before")).order_by(audit.c.id).limit(sa.bindparam("limit"))
)
_DELETE = sa.delete(audit).where(audit.c.id.in_(sa.bindparam("keys", expanding=True)))


def acts_since(conn: Connection, dag_id: str, since: datetime) -> list[AuditRow]:
    """Return what was done to a DAG since an instant."""
    return fetch(conn, AuditRow, _OF_DAG_SINCE, {"dag_id": dag_id, "since": since})


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
    """Note what somebody did, in the transaction that does it. `detail` never holds secrets."""
    conn.execute(
        audit.insert(),
        {
            "at": at,
            "actor": actor,
            "action": action,
            "dag_id": dag_id,
            "run_id": run_id,
            "task_id": task_id,
            "detail": dict(detail or {}),
        },
    )


def count_old_audit(conn: Connection, *, before: datetime) -> int:
    """Return how many things were done before an instant."""
    counted = sa.select(sa.func.count()).where(audit.c.at < sa.bindparam("before"))
    n: int = conn.execute(counted, {"before": before}).scalar_one()
    return n


def delete_old_audit(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` notes of what was done before an instant, the oldest first. Returns how many."""
    keys = list(conn.scalars(_OLDEST, {"before": before, "limit": limit}))
    if keys:
        conn.execute(_DELETE, {"keys": keys})
    return len(keys)
