"""The table of what people ask of runs that a scheduler owns."""

import sqlalchemy as sa
from sqlalchemy import Column, ForeignKey, Index, Text

from asynsched.store.column_types import BigId, Instant, Json
from asynsched.store.metadata import metadata

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
