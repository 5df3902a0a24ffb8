"""`asynsched audit list`: who did what from outside."""

import click

from asynsched.cli.command import INSTANT_FORMS, command, completes, read_instant
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.keys import LATEST
from asynsched.queries.audit import AuditFilter, list_audit
from asynsched.queries.runs import run_named

COLUMNS = ("at", "actor", "action", "dag_id", "run_id", "task_id", "detail", "id")
USUAL_COLUMNS = COLUMNS[:-1]
NEWEST_FIRST = ("-id",)


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.option("--actor", metavar="NAME", help="Only what NAME did: a user, `user@host` of a command, or `program`.")
@click.option("--action", metavar="ACTION", help="Only this action, such as `dag.pause`.")
@click.option("--since", metavar="T", help=f"Only what was done after T. {INSTANT_FORMS}")
@click.option("--until", metavar="T", help="Only what was done before T.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def audit_list(
    session: Session,
    dag_id: str | None,
    run_id: str | None,
    actor: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
    limit: int,
) -> Listing:
    """List who did what, with a DAG, with a run, or with anything, newest first: by commands, programs and the web.

    RUN is a whole run_id, or `latest`: the audit keeps runs that are deleted.
    """
    zone = session.settings.default_timezone
    if dag_id is not None and run_id == LATEST:
        run_id = session.read(run_named, dag_id, run_id).run_id
    equal = {"dag_id": dag_id, "run_id": run_id, "actor": actor, "action": action}
    wanted = AuditFilter(
        equal={name: value for name, value in equal.items() if value is not None},
        after=read_instant(since, zone, "--since") if since else None,
        before=read_instant(until, zone, "--until") if until else None,
    )
    rows = session.pages(list_audit, wanted, order_by=NEWEST_FIRST, at_most=limit)
    return Listing(COLUMNS, rows, "Nothing was done.", usual=USUAL_COLUMNS, spare=("detail", "task_id", "run_id"))
