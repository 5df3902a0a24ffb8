"""The calls of listeners that belong to no run."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table."""
    instant = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    op.create_table(
        "listener_call",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("subjects", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("token", sa.String(32), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("scheduler_id", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_listener_call"),
    )
