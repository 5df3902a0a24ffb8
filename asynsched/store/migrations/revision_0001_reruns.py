"""The first table of requests for running runs, a part of revision 0001."""

import sqlalchemy as sa
from alembic import op

from asynsched.store.migrations.column_types import BIG_ID, INSTANT


def create_reruns() -> None:
    """Create the table."""
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
