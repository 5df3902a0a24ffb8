"""The first tables of callbacks and deadlines, a part of revision 0001."""

import sqlalchemy as sa
from alembic import op

from asynsched.store.migrations.column_types import BIG_ID, INSTANT


def create_callbacks() -> None:
    """Create both tables."""
    op.create_table(
        "callback_request",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("token", sa.String(length=32)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("caused_by", sa.Text(), nullable=False),
        sa.Column("scheduler_id", sa.String(length=64)),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_callback_request_dag_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_callback_request"),
        sa.UniqueConstraint(
            "dag_run_id",
            "task_id",
            "map_index",
            "try_number",
            "event",
            "created_at",
            name="uq_callback_request_event",
        ),
    )
    op.create_index("ix_callback_request_state", "callback_request", ["state"])
    op.create_table(
        "deadline",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_deadline_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_deadline"),
        sa.UniqueConstraint("dag_run_id", "number", name="uq_deadline_dag_run_id_number"),
    )
    op.create_index(
        "ix_deadline_pending",
        "deadline",
        ["due_at"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
