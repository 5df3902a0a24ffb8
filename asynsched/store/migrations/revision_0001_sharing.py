"""The first tables of what several schedulers share, a part of revision 0001."""

import sqlalchemy as sa
from alembic import op

from asynsched.store.migrations.column_types import INSTANT


def create_sharing() -> None:
    """Create the tables."""
    op.create_table(
        "parse_claim",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("scheduler_id", sa.String(length=64), nullable=False),
        sa.Column("claimed_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_parse_claim"),
    )
    op.create_table(
        "schema_compatibility",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("oldest_revision", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schema_compatibility"),
    )
