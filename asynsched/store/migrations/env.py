"""Alembic's environment: migrations run on the connection, and in the transaction, that `run.py` hands over."""

from alembic import context

from asynsched.store import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    render_as_batch=True,  # SQLite changes a table by making it anew
)
context.run_migrations()
