"""`asynsched backfill …`: run a DAG for a span of the past."""

from datetime import datetime
from typing import Any

import click

from asynsched.cli.command import INSTANT_FORMS, command, completes, dag_argument, read_instant
from asynsched.cli.dags import answer_of_timetable, conf_option, read_conf
from asynsched.cli.lookup import dag_of
from asynsched.cli.output import Done, Listing, Record, are, as_row, fields_of
from asynsched.cli.session import Session, actor
from asynsched.errors import PlanNeeded
from asynsched.queries import backfills as queries
from asynsched.queries.backfills import BackfillFilter
from asynsched.scheduling.creation import backfills
from asynsched.store.rows import LARGEST_INTEGER
from asynsched.store.runs.backfills import BackfillProgress

COLUMNS = (
    "id", "dag_id", "state", "from_date", "to_date", "reprocess", "is_reverse", "max_active_runs", "n_queued",
    "n_running", "n_success", "n_failed", "actor", "created_at",
)  # fmt: skip
USUAL_COLUMNS = (
    "id", "dag_id", "state", "from_date", "to_date", "n_queued", "n_running", "n_success", "n_failed", "created_at",
)  # fmt: skip
DATE_COLUMNS = ("logical_date", "run_id", "state", "exception_reason")

backfill_argument = click.argument("backfill_id", metavar="ID", type=click.IntRange(max=LARGEST_INTEGER))


@command("create")
@dag_argument
@click.option("--from", "from_date", metavar="T", required=True, help=f"The first logical date. {INSTANT_FORMS}")
@click.option("--to", "to_date", metavar="T", required=True, help="The last logical date.")
@click.option(
    "--reprocess",
    type=click.Choice(["none", "failed", "completed"]),
    default="none",
    show_default=True,
    help="Existing runs to run again: none, those that have failed, or all that have ended.",
)
@click.option(
    "--keep-version",
    "keeps_version",
    is_flag=True,
    help="Run existing runs again with the version of the DAG that they had, not with the newest.",
)
@click.option("--reverse", "is_reverse", is_flag=True, help="Run the newest date first.")
@click.option(
    "--max-active-runs", type=click.IntRange(min=1), default=10, show_default=True, help="Runs of the backfill at once."
)
@conf_option
@click.option("--dry-run", is_flag=True, help="Only show which dates would run.")
def backfill_create(
    session: Session, dag_id: str, from_date: str, to_date: str, conf: str | None, dry_run: bool, **options: Any
) -> Done | Listing:
    """Create the runs that a DAG's schedule has in a span of the past. The schedule itself is not affected.

    If the DAG is scheduled by partitions, T is the date of a partition, at that time in its timetable's timezone.

    --max-active-runs limits their number, instead of the DAG's own limit.
    """
    zone = session.settings.default_timezone
    start, end = read_instant(from_date, zone, "--from"), read_instant(to_date, zone, "--to")
    plan = backfills.BackfillPlan(dag_id, start, end, conf=read_conf(conf), zone=zone, **options)
    dag_of(session, dag_id, make=not dry_run)
    now = session.now()
    span = _span(session, plan, now)
    if dry_run:
        planned = map(queries.planned_date, session.read(backfills.plan_dates, plan, now, span))
        return Listing(DATE_COLUMNS, tuple(planned))
    made = session.act(queries.create_backfill, plan, actor=actor(), now=now, span=span)
    n_left_out = session.read(queries.count_left_out, made.id)
    left_out = f" {are(n_left_out, 'date')} left out: `asynsched backfill show {made.id}`." if n_left_out else ""
    sentence = f"Backfill {made.id} of the DAG {dag_id!r}: {are(made.n_queued, 'run')} queued.{left_out}"
    return Done(sentence, as_row(queries.backfill_info(made)))


def _span(session: Session, plan: backfills.BackfillPlan, now: datetime) -> backfills.Span:
    """Return the runs of a backfill. Raises DagError."""
    version, file = session.read(backfills.version_and_file, plan.dag_id)
    try:
        return backfills.compute_span(version, plan, now)
    except PlanNeeded:
        asked = answer_of_timetable(session, file, plan.dag_id, backfills.question_of(plan), now)
        return backfills.compute_span(version, plan, now, asked.plan)


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
def backfill_list(session: Session, dag_id: str | None) -> Listing:
    """List backfills, of one DAG or of all, newest first."""
    if dag_id is not None:
        dag_of(session, dag_id)
    rows = [queries.backfill_info(row) for row in session.pages(queries.list_backfills, BackfillFilter(dag_id))]
    spare = ("created_at", "n_queued")
    return Listing(COLUMNS, rows, "There are no backfills.", usual=USUAL_COLUMNS, spare=spare)


@command("show", tables=True)
@backfill_argument
def backfill_show(session: Session, backfill_id: int) -> Record:
    """Show a backfill and its dates, in the order in which they run."""
    row = session.read(queries.get_backfill, backfill_id)
    dates = [as_row(date) for date in session.pages(queries.list_dates, backfill_id)]
    table = {**fields_of(row, (*COLUMNS, "conf")), "dates": dates}
    return Record({**as_row(queries.backfill_info(row)), "dates": dates}, sections={"dates": ()}, table=table)


@command("pause")
@backfill_argument
def backfill_pause(session: Session, backfill_id: int) -> Done:
    """Start no further runs of a backfill. Its active runs continue."""
    return _done(session.act(queries.pause_backfill, backfill_id, paused=True))


@command("unpause")
@backfill_argument
def backfill_unpause(session: Session, backfill_id: int) -> Done:
    """Resume a paused backfill."""
    return _done(session.act(queries.pause_backfill, backfill_id, paused=False))


@command("cancel")
@backfill_argument
def backfill_cancel(session: Session, backfill_id: int) -> Done:
    """End a backfill: its queued runs count as failed, its running ones continue."""
    return _done(session.act(queries.cancel_backfill, backfill_id, actor=actor(), now=session.now()))


def _done(row: BackfillProgress) -> Done:
    return Done(f"Backfill {row.id} of the DAG {row.dag_id!r} is {row.state}.", as_row(queries.backfill_info(row)))
