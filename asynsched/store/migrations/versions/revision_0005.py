"""Tasks that wait for an answer get the state `awaiting_input`, also if the answer is stored and not yet passed on."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Change the state of deferred tasks whose try has asked a question."""
    op.execute(
        "UPDATE task_instance SET state = 'awaiting_input' WHERE state = 'deferred' AND EXISTS ("
        "SELECT 1 FROM hitl_detail WHERE hitl_detail.dag_run_id = task_instance.dag_run_id"
        " AND hitl_detail.task_id = task_instance.task_id AND hitl_detail.map_index = task_instance.map_index"
        " AND hitl_detail.token = task_instance.token)"
    )
