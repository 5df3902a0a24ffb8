"""`asynsched deadlines list`: by when runs should have succeeded, and which of them missed that."""

import click

from asynsched.cli.command import INSTANT_FORMS, command, completes, read_instant
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.queries.deadlines import DeadlineFilter, DeadlineInfo, list_deadlines
from asynsched.queries.paging import Range
from asynsched.queries.runs import run_named

COLUMNS = DeadlineInfo.__struct_fields__
STATES = ("pending", "met", "missed")


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only in this state; may be repeated."
)
@click.option("--since", metavar="T", help=f"Only deadlines that are due at T or later. {INSTANT_FORMS}")
@click.option("--until", metavar="T", help="Only deadlines that are due before T.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def deadlines_list(
    session: Session,
    dag_id: str | None,
    run_id: str | None,
    states: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int,
) -> Listing:
    """List the deadlines of a run, of a DAG's runs, or of all, the latest first."""
    zone = session.settings.default_timezone
    if dag_id is not None and run_id is not None:
        run_id = session.read(run_named, dag_id, run_id).run_id
    wanted = DeadlineFilter(
        dag_id=dag_id, run_id=run_id, states=states or None,
        due_at=Range(
            gte=read_instant(since, zone, "--since") if since else None,
            lt=read_instant(until, zone, "--until") if until else None,
        ),
    )  # fmt: skip
    found = session.pages(list_deadlines, wanted, order_by=("-due_at",), at_most=limit)
    return Listing(COLUMNS, found, "There are no deadlines.", spare=("number",))
