"""Queries of `note`: what users have noted about runs and task instances."""

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.errors import StoreError
from asynsched.store.rows import storable
from asynsched.store.schema import NoteRow, note
from asynsched.store.statements import insert_or_update

LONGEST_NOTE = 1000
"""Characters of a note at most (Airflow's limit)."""


def put_note(conn: Connection, wanted: NoteRow) -> None:
    """Store a note, in place of an earlier one; an empty text removes it. Raises StoreError if it is too long."""
    if len(wanted.text) > LONGEST_NOTE:
        raise StoreError(f"A note has at most {LONGEST_NOTE} characters, and this one has {len(wanted.text)}.")
    if wanted.text:
        conn.execute(insert_or_update(conn, note), asdict(wanted) | {"text": storable(wanted.text)})
    else:
        same = (note.c.dag_run_id == wanted.dag_run_id, note.c.task_id == wanted.task_id)
        conn.execute(sa.delete(note).where(*same, note.c.map_index == wanted.map_index))


def note_tasks(
    conn: Connection, dag_run_id: int, tasks: Collection[tuple[str, int]], text: str, *, actor: str, now: datetime
) -> None:
    """Note the same about several task instances of a run, each named by task_id and map index."""
    for task_id, map_index in sorted(tasks):
        about = NoteRow(
            dag_run_id=dag_run_id, task_id=task_id, map_index=map_index, text=text, actor=actor, updated_at=now
        )
        put_note(conn, about)
