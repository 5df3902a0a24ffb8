"""Waking schedulers on other machines: PostgreSQL's NOTIFY, sent when the transaction commits. SQLite has no such."""

import sqlalchemy as sa
from sqlalchemy import Connection

CHANNEL = "asynsched"
LONGEST_PAYLOAD_BYTES = 7999
"""PostgreSQL's limit."""

_NOTIFY = sa.text("SELECT pg_notify(:channel, :payload)")


def notify(conn: Connection, payload: str) -> None:
    """Tell every scheduler that listens on this database what has changed.

    A payload that is too long is sent as an empty one: whoever hears that is woken, and finds out by its sweep.
    """
    if conn.dialect.name != "postgresql":
        return
    if len(payload.encode()) > LONGEST_PAYLOAD_BYTES:
        payload = ""
    conn.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})
