"""Alembic's environment: migrations use the connection and the transaction of `engines/opening.py`."""

from alembic import context

from asynsched.store import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    render_as_batch=True,  # SQLite changes a table by rebuilding it
)
context.run_migrations()
