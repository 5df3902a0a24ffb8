"""What the templates of tries gave: their template fields, after rendering."""

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.schema import rendered_fields, task_instance

_SAME = [rendered_fields.c[name] == task_instance.c[name] for name in ("dag_run_id", "task_id", "map_index")]


def fields_of_try(conn: Connection, row_id: int, try_number: int) -> dict[str, Any]:
    """Return the fields of a try of a task instance; empty if no template was rendered in them, or not yet.

    Args:
        row_id: That of the task instance.
    """
    query = sa.select(rendered_fields.c.fields).join(task_instance, sa.and_(*_SAME))
    stored = conn.scalar(query.where(task_instance.c.id == row_id, rendered_fields.c.try_number == try_number))
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, Any])
