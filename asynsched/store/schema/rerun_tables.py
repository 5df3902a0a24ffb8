"""The tables of what people want done again: requests for runs that a scheduler owns, and backfills."""

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from asynsched.store.schema.column_types import BigId, Instant, Json
from asynsched.store.schema.metadata import ID_LENGTH, metadata

run_request = sa.Table(
    "run_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("request", Json, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_run_request_dag_run_id", "dag_run_id"),
)
"""What somebody wants done with a running run. The scheduler that owns the run does it, and deletes the row."""

backfill = sa.Table(
    "backfill",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("from_date", Instant, nullable=False),
    Column("to_date", Instant, nullable=False),
    Column("reprocess", String(32), nullable=False),
    Column("is_reverse", Boolean, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("conf", Json, nullable=False),
    Column("is_paused", Boolean, nullable=False, default=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("cancelled_at", Instant, nullable=True),
    Index("ix_backfill_dag_id", "dag_id"),
)
"""Whether it has ended is seen from its runs, and stored nowhere."""

backfill_dag_run = sa.Table(
    "backfill_dag_run",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("backfill_id", BigId, ForeignKey("backfill.id", ondelete="CASCADE"), nullable=False),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="SET NULL"), nullable=True),
    Column("logical_date", Instant, nullable=False),
    Column("sort_ordinal", Integer, nullable=False),
    Column("exception_reason", String(64), nullable=True),
    UniqueConstraint("backfill_id", "dag_run_id"),
    Index("ix_backfill_dag_run_dag_run_id", "dag_run_id"),
)
"""The dates of a backfill: the run of each, or why it has none (Airflow's words)."""
