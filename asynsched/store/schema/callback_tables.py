"""The tables of what is called back: callbacks that wait or run, and deadlines that may be missed."""

import sqlalchemy as sa
from sqlalchemy import Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from asynsched.store.schema.column_types import BigId, Instant
from asynsched.store.schema.metadata import ID_LENGTH, ONLY_WHERE, metadata

callback_request = sa.Table(
    "callback_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", String(ID_LENGTH), nullable=False, default=""),
    Column("map_index", Integer, nullable=False, default=-1),
    Column("try_number", Integer, nullable=False, default=0),
    Column("event", String(32), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("state", String(32), nullable=False, default="queued"),
    Column("token", String(32), nullable=True),
    Column("attempts", Integer, nullable=False, default=0),
    Column("created_at", Instant, nullable=False),
    Column("caused_by", Text, nullable=False, default=""),
    Column("scheduler_id", String(64), nullable=True),
    UniqueConstraint(
        "dag_run_id", "task_id", "map_index", "try_number", "event", "created_at", name="uq_callback_request_event"
    ),
    Index("ix_callback_request_state", "state"),
)
"""Written in the transaction of the state change that caused it. No task_id: a callback of the run. `caused_by` is
JSON of the CausingTry that a task's callback is about. `scheduler_id`: who runs it, or ran it last.

Unique, so that a transaction that is applied again adds nothing; a run that ends once more has another `created_at`."""

deadline = sa.Table(
    "deadline",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", Text, nullable=False, default=""),
    Column("due_at", Instant, nullable=False),
    Column("state", String(32), nullable=False, default="pending"),
    UniqueConstraint("dag_run_id", "number"),
    Index("ix_deadline_pending", "due_at", info={ONLY_WHERE: "state = 'pending'"}),
)
"""Until when a run is to have succeeded. `number` is its place among the DAG's deadlines; `state` is pending, met or
missed."""
