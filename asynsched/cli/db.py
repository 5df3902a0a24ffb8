"""`asynsched db …`: the schema, and old runs."""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import Connection

from asynsched.cli.command import command, fail, new_app
from asynsched.cli.instants import INSTANT_FORMS, read_instant
from asynsched.cli.rendering import Done, note
from asynsched.cli.session import Session
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS, prepare_home
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.store.dag_runs import count_ended_runs, delete_ended_runs, oldest_ended_runs
from asynsched.store.upgrade import schema_state, upgrade
from asynsched.store.urls import without_secrets

app = new_app()

BATCH_RUNS = 500
"""Runs deleted in one transaction: few enough that a scheduler hardly waits."""


@command(app, "upgrade")
def upgrade_database(session: Session) -> Done:
    """Make the database, or migrate it to the schema of this version of asynsched."""
    prepare_home(session.home)
    before = upgrade(session.settings.database_url, default_pool_slots=session.settings.default_pool_slots)
    fields = {"database": without_secrets(session.settings.database_url), "from": before.current, "to": before.head}
    if before.current == before.head:
        return Done(f"The database {fields['database']} is at the newest schema, {before.head}.", fields)
    return Done(f"The database {fields['database']} is now at schema {before.head}.", fields)


@command(app, "check")
def check_database(session: Session) -> Done:
    """Check that the database can be reached and has the schema of this version. Exit code 1 if not."""
    state = schema_state(session.settings.database_url)
    shown = without_secrets(session.settings.database_url)
    if state.current is None:
        fail(f"The database {shown} has not been made yet; `asynsched db upgrade` makes it.")
    if state.current != state.head:
        fail(
            f"The database {shown} has schema {state.current}, this asynsched needs {state.head};"
            " `asynsched db upgrade` migrates an older one."
        )
    fields = {"database": shown, "current": state.current, "head": state.head}
    return Done(f"The database {shown} can be reached and has the newest schema, {state.head}.", fields)


@command(app, "clean")
def clean_database(
    session: Session,
    *,
    before: Annotated[
        str, typer.Option(metavar="T", help=f"Delete runs that ended before this instant. {INSTANT_FORMS}")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> Done:
    """Delete old runs that have ended, with their tasks, XComs and logs."""
    instant = read_instant(before, session.settings.default_timezone, "--before")
    n_runs = session.read(count_ended_runs, before=instant)
    if dry_run:
        return Done(f"{n_runs} runs would be deleted.", {"before": instant, "deleted": 0, "found": n_runs})
    if n_runs and not yes:
        typer.confirm(f"Delete {n_runs} runs that ended before {instant.isoformat()}?", abort=True, err=True)
    deleted = _delete_in_batches(session, instant) if n_runs else 0
    return Done(f"{deleted} runs are deleted.", {"before": instant, "deleted": deleted, "found": n_runs})


def _delete_in_batches(session: Session, before: datetime) -> int:
    deleted = 0
    more = True
    while more:
        runs = session.change(
            "db.clean", lambda conn: _delete_batch(conn, before), detail={"before": before.isoformat()}
        )
        for run in runs:
            _delete_logs(session.home, run)
        deleted += len(runs)
        more = len(runs) == BATCH_RUNS
        if more:
            note(f"{deleted} runs are deleted so far.")
    return deleted


def _delete_batch(conn: Connection, before: datetime) -> list[DagRunKey]:
    runs = oldest_ended_runs(conn, before=before, limit=BATCH_RUNS)
    delete_ended_runs(conn, before=before, limit=BATCH_RUNS)
    return runs


def _delete_logs(home: Path, run: DagRunKey) -> None:
    of_a_try = Path(log_path(TaskInstanceKey(*run, "task"), 1))
    shutil.rmtree(home / LOGS / of_a_try.parents[1], ignore_errors=True)
