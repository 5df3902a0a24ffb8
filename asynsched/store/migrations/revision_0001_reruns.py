"""The first tables of requests for running runs and of backfills, a part of revision 0001."""

import sqlalchemy as sa
from alembic import op

from asynsched.store.migrations.column_types import BIG_ID, INSTANT


def create_reruns() -> None:
    """Create the tables."""
    op.create_table(
        "run_request",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_run_request_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_run_request"),
    )
    op.create_index("ix_run_request_dag_run_id", "run_request", ["dag_run_id"])
    op.create_table(
        "backfill",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("from_date", INSTANT, nullable=False),
        sa.Column("to_date", INSTANT, nullable=False),
        sa.Column("reprocess", sa.String(length=32), nullable=False),
        sa.Column("is_reverse", sa.Boolean(), nullable=False),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("conf", sa.LargeBinary(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("cancelled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_backfill"),
    )
    op.create_index("ix_backfill_dag_id", "backfill", ["dag_id"])
    op.create_table(
        "backfill_dag_run",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("dag_run_id", BIG_ID),
        sa.Column("logical_date", INSTANT, nullable=False),
        sa.Column("sort_ordinal", sa.Integer(), nullable=False),
        sa.Column("exception_reason", sa.String(length=64)),
        sa.ForeignKeyConstraint(
            ["backfill_id"], ["backfill.id"], name="fk_backfill_dag_run_backfill_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_backfill_dag_run_dag_run_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_backfill_dag_run"),
        sa.UniqueConstraint("backfill_id", "dag_run_id", name="uq_backfill_dag_run_backfill_id_dag_run_id"),
    )
    op.create_index("ix_backfill_dag_run_dag_run_id", "backfill_dag_run", ["dag_run_id"])
