"""Secrets that no key decrypts any more: which they are, and how the database goes on without them."""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import SecretsUnreadable
from asynsched.store.encryption import change_key, keys_of_connection
from asynsched.store.schema.tables import connection, dag_run, task_instance, variable


class LostSecret(NamedTuple):
    """A secret that cannot be read: a connection, a variable, or what a deferred task waits for."""

    kind: str
    name: str


_VARIABLES = sa.select(variable.c.key, variable.c.key.label("name"), variable.c.value.label("token")).order_by("name")
_CONNECTIONS = sa.select(
    connection.c.conn_id.label("key"), connection.c.conn_id.label("name"), connection.c.secret.label("token")
).order_by("name")
_DEFERRED = (
    sa.select(
        task_instance.c.id.label("key"),
        (dag_run.c.dag_id + " " + dag_run.c.run_id + " " + task_instance.c.task_id).label("name"),
        task_instance.c.deferral.label("token"),
    )
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .where(task_instance.c.deferral.is_not(None))
    .order_by(task_instance.c.id)
)


def lost_secrets(conn: Connection) -> list[LostSecret]:
    """Return the secrets that none of the keys decrypts. Raises SecretsUnreadable when the keys cannot be read."""
    found = [("connection", _CONNECTIONS), ("variable", _VARIABLES), ("deferred task", _DEFERRED)]
    return [LostSecret(kind, row.name) for kind, query in found for row in _unreadable(conn, query)]


def forget_lost(conn: Connection) -> int:
    """Delete what none of the keys decrypts, and encrypt the rest with the first key. Returns how many are left.

    Connections and variables are gone then. A deferred task no longer knows what it waits for, and waits until it is
    cleared.
    """
    for row in _unreadable(conn, _CONNECTIONS):
        conn.execute(sa.delete(connection).where(connection.c.conn_id == row.key))
    for row in _unreadable(conn, _VARIABLES):
        conn.execute(sa.delete(variable).where(variable.c.key == row.key))
    for row in _unreadable(conn, _DEFERRED):
        conn.execute(sa.update(task_instance).where(task_instance.c.id == row.key).values(deferral=None))
    return change_key(conn, is_lost=True)


def _unreadable(conn: Connection, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    keys = keys_of_connection(conn)
    lost = []
    for row in conn.execute(query).all() if keys is not None else ():
        assert keys is not None
        try:
            keys.decrypt(row.token)
        except SecretsUnreadable:
            lost.append(row)
    return lost
