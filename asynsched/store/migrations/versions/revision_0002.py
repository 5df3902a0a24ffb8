"""The rendered template fields of tries."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "rendered_fields",
        sa.Column("dag_run_id", row_id, nullable=False, autoincrement=False),
        sa.Column("task_id", sa.String(250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("try_number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("fields", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("dag_run_id", "task_id", "map_index", "try_number", name="pk_rendered_fields"),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_rendered_fields_dag_run_id", ondelete="CASCADE"
        ),
    )
