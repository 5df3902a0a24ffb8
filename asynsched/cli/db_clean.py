"""`asynsched db clean`: delete old runs, and old events of assets."""

import shutil
from datetime import datetime
from pathlib import Path

import click
from sqlalchemy import Connection

from asynsched.cli.command import command
from asynsched.cli.instants import INSTANT_FORMS, read_instant
from asynsched.cli.rendering import Done, note
from asynsched.cli.session import Session
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.store.asset_events import count_old_events, delete_old_events
from asynsched.store.dag_runs import count_ended_runs, delete_ended_runs, oldest_ended_runs

BATCH_RUNS = 500
"""Runs deleted in one transaction: few enough that a scheduler hardly waits."""
BATCH_EVENTS = 5_000
"""Asset events deleted in one transaction."""


@command("clean")
@click.option("--before", required=True, metavar="T", help=f"Delete runs that ended before it. {INSTANT_FORMS}")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clean_database(session: Session, before: str, dry_run: bool, yes: bool) -> Done:
    """Delete old runs that have ended, with their tasks, XComs and logs, and old events of assets.

    Events stay that wait for a DAG, or that triggered a run which stays.
    """
    instant = read_instant(before, session.settings.default_timezone, "--before")
    n_runs = session.read(count_ended_runs, before=instant)
    n_events = session.read(count_old_events, before=instant)
    found = {"before": instant, "found": n_runs, "found_asset_events": n_events}
    if dry_run:
        sentence = f"{n_runs} runs and {n_events} asset events would be deleted."
        return Done(sentence, {**found, "deleted": 0, "deleted_asset_events": 0})
    if (n_runs or n_events) and not yes:
        question = f"Delete {n_runs} runs that ended before {instant.isoformat()}, and {n_events} asset events?"
        click.confirm(question, abort=True, err=True)
    deleted = _delete_in_batches(session, instant) if n_runs else 0
    events = _delete_events(session, instant) if n_events else 0
    sentence = f"{deleted} runs and {events} asset events are deleted."
    return Done(sentence, {**found, "deleted": deleted, "deleted_asset_events": events})


def _delete_events(session: Session, before: datetime) -> int:
    deleted = 0
    detail = {"before": before.isoformat(), "what": "asset events"}
    while n := session.change(
        "db.clean", lambda conn: delete_old_events(conn, before=before, limit=BATCH_EVENTS), detail=detail
    ):
        deleted += n
    return deleted


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
