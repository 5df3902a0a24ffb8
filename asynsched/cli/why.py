"""`asynsched why`: why a DAG, run or task waits, down to the root cause, and what will release it."""

import asyncio
from collections.abc import Iterator

import click
import msgspec

from asynsched.cli.command import command, completes, dag_argument, index_option
from asynsched.cli.lookup import known_dag_of
from asynsched.cli.output import Text
from asynsched.cli.session import Session
from asynsched.explaining.owners import RULE
from asynsched.explaining.reason import Explanation, Reason
from asynsched.queries.runs import run_named
from asynsched.queries.why import explain
from asynsched.store.engines.opening import open_database


@command("why")
@dag_argument
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=completes("task"))
@index_option
def why(session: Session, dag_id: str, run_id: str | None, task_id: str | None, map_index: int) -> Text:
    """Explain why a DAG has no run, why a run does not go on, or why a task does not start.

    For a run or task that has ended: why it ended as it did. A DAG whose file is gone keeps its runs. This only reads.
    """
    known_dag_of(session, dag_id)
    whole = None if run_id is None else session.read(run_named, dag_id, run_id).run_id
    explanation = asyncio.run(_explain(session, dag_id, whole, task_id, map_index))
    return Text([*_lines(explanation)], msgspec.to_builtins(explanation))


async def _explain(
    session: Session, dag_id: str, run_id: str | None, task_id: str | None, map_index: int
) -> Explanation:
    settings = session.settings
    database = await open_database(settings.database_url, synchronous=settings.sqlite_synchronous, keys=session.keys)
    try:
        return await explain(database, settings, session.now(), dag_id, run_id, task_id, map_index)
    finally:
        await database.close()


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
