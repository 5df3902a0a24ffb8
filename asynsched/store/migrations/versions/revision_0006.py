"""Earlier tries keep where they ran: a policy may have given the tries of a task different pools and queues."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns, NULL in the tries until now."""
    for name, kind in (
        ("pool", sa.String(256)),
        ("pool_slots", sa.Integer()),
        ("queue", sa.String(256)),
        ("executor", sa.String(256)),
        ("priority_weight", sa.BigInteger()),
    ):
        op.add_column("task_instance_history", sa.Column(name, kind, nullable=True))
