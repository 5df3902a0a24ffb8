"""The tickets of tries that run on other machines."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    instant = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    op.create_table(
        "ticket",
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("dag_run_id", row_id, nullable=False),
        sa.Column("executor", sa.String(256), nullable=False),
        sa.Column("engine_id", sa.String(256), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("launch", sa.LargeBinary(), nullable=False),
        sa.Column("sight", sa.Text(), nullable=False),
        sa.Column("kill_reason", sa.Text(), nullable=False),
        sa.Column("worker", sa.String(250), nullable=False),
        sa.Column("worker_boot", sa.String(64), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("lease_seconds", sa.Float(), nullable=False),
        sa.Column("end_seconds", sa.Float(), nullable=False),
        sa.Column("log_start", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.LargeBinary(), nullable=True),
        sa.Column("ended", sa.LargeBinary(), nullable=True),
        sa.Column("has_news", sa.Boolean(), nullable=False),
        sa.Column("submitted_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("token", name="pk_ticket"),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_ticket_dag_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_ticket_dag_run_id", "ticket", ["dag_run_id"])
    has_news = sa.text("has_news")
    op.create_index("ix_ticket_news", "ticket", ["dag_run_id"], sqlite_where=has_news, postgresql_where=has_news)
