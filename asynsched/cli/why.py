"""`asynsched why`: why a DAG, run or task waits, down to the root cause, and what will release it."""

import asyncio
from collections.abc import Iterator, Sequence

import click
import msgspec

from asynsched.cli.command import command, completes, dag_argument, index_option
from asynsched.cli.lookup import find_run, find_task, interruption, known_dag_of, long_parses
from asynsched.cli.output import Text
from asynsched.cli.session import Session
from asynsched.explaining.explain import explain_dag, explain_run, explain_task, with_requests
from asynsched.explaining.owners import RULE, Owners, no_scheduler
from asynsched.explaining.reason import Explanation, Reason
from asynsched.explaining.snapshot import take_snapshot
from asynsched.keys import DagRunKey, instance_name
from asynsched.store.dags.dags import DagRow
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.requests import waiting_requests
from asynsched.store.runs.task_instances import list_task_instances
from asynsched.store.schedulers import last_served_at
from asynsched.store.schema import DagRunRow, TaskInstanceRow


@command("why")
@dag_argument
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=completes("task"))
@index_option
def why(session: Session, dag_id: str, run_id: str | None, task_id: str | None, map_index: int) -> Text:
    """Explain why a DAG has no run, why a run does not go on, or why a task does not start.

    For a run or task that has ended: why it ended so. A DAG whose file is gone keeps its runs. This only reads.
    """
    dag = known_dag_of(session, dag_id)
    run = None if run_id is None else session.read(find_run, dag_id, run_id)
    if run is not None and task_id is not None:
        asked = [session.read(find_task, dag_id, run.run_id, task_id, map_index)]
    else:
        asked = [] if run is None else session.read(list_task_instances, run.id)
    interrupted = [(row, reason) for row in asked if (reason := interruption(row))]
    # On PostgreSQL a session runs an event loop for each query: this one is made before the loop below.
    has_scheduler, owners = session.look_for_schedulers()
    unserved = None if has_scheduler else no_scheduler(session.read(last_served_at), owners.stopping)
    explanation = asyncio.run(_explain(session, dag, run, task_id, map_index, unserved, owners))
    if interrupted:
        explanation = _with_interruptions(explanation, interrupted)
    return Text([*_lines(explanation)], msgspec.to_builtins(explanation))


async def _explain(
    session: Session,
    dag: DagRow,
    row: DagRunRow | None,
    task_id: str | None,
    map_index: int,
    unserved: Reason | None,
    owners: Owners,
) -> Explanation:
    settings, now = session.settings, session.now()
    database = await open_database(settings.database_url, synchronous=settings.sqlite_synchronous, keys=session.keys)
    try:
        if row is None:
            parses = () if unserved else long_parses(session.home)
            return await explain_dag(database, dag, now=now, unserved=unserved, parses=parses)
        snapshot = await take_snapshot(database, settings, now, unserved=unserved, owners=owners)
        run = await snapshot.run(row.id, DagRunKey(row.dag_id, row.run_id))
        if task_id is None or run is None:
            found = explain_run(snapshot, row, run)
        else:
            found = explain_task(snapshot, run.instance(task_id, map_index))
        return with_requests(found, await database.read(waiting_requests, row.id), is_served=unserved is None)
    finally:
        await database.close()


def _with_interruptions(found: Explanation, interrupted: Sequence[tuple[TaskInstanceRow, str]]) -> Explanation:
    """Add to the answer which tries were interrupted: that holds nothing up, but explains why a task begins again."""
    row, reason = interrupted[0]
    more = f" (and {len(interrupted) - 1} more)" if len(interrupted) > 1 else ""
    answer = f"{found.answer} Task {instance_name(row.task_id, row.map_index)}: {reason}{more}."
    return msgspec.structs.replace(found, answer=answer)


def _lines(explanation: Explanation) -> Iterator[str]:
    subject = f"{explanation.subject} ({explanation.state})" if explanation.state else explanation.subject
    is_unserved = bool(explanation.reasons) and explanation.reasons[0].rule == RULE
    # That no scheduler serves comes first, for every question.
    yield from (explanation.answer, subject) if is_unserved else (subject, explanation.answer)
    yield from _tree(explanation.reasons, "")


def _tree(reasons: tuple[Reason, ...], indent: str) -> Iterator[str]:
    for reason in reasons:
        yield f"{indent}- {reason.rule}: {reason.line}"
        yield from _tree(reason.causes, indent + "  ")
