"""When the runs of a DAG ended: what decides how long their logs are kept."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.schema.tables import dag_run


class RunAge(Struct, frozen=True):
    """A run, and when it ended; None: it has not."""

    run_id: str
    ended_at: datetime | None


_AGES = sa.select(dag_run.c.run_id, dag_run.c.ended_at).where(dag_run.c.dag_id == sa.bindparam("dag_id"))
_SOME_AGES = _AGES.where(dag_run.c.run_id.in_(sa.bindparam("run_ids", expanding=True)))
_NEWEST = (
    sa.select(dag_run.c.run_id)
    .where(dag_run.c.dag_id == sa.bindparam("dag_id"))
    .order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
    .limit(sa.bindparam("limit"))
)


def run_ages(conn: Connection, dag_id: str, run_ids: Sequence[str] | None) -> list[RunAge]:
    """Return those of a DAG's runs that have one of these run_ids; None: all of them."""
    statement = _AGES if run_ids is None else _SOME_AGES
    values = {"dag_id": dag_id} | ({} if run_ids is None else {"run_ids": list(run_ids)})
    return [RunAge(row.run_id, row.ended_at) for row in conn.execute(statement, values)]


def newest_run_ids(conn: Connection, dag_id: str, *, limit: int) -> list[str]:
    """Return the run_ids of a DAG's newest runs."""
    return list(conn.scalars(_NEWEST, {"dag_id": dag_id, "limit": limit}))
