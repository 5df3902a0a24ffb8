"""`asynsched why`: why a DAG, run or task waits, down to the root cause, and what will release it; what is late."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import click
import msgspec

from asynsched.cli.command import command, completes, index_option
from asynsched.cli.lookup import known_dag_of
from asynsched.cli.output import Text
from asynsched.cli.session import Session
from asynsched.clock import Clock
from asynsched.explaining.owners import RULE
from asynsched.explaining.reason import Explanation, Reason, moment
from asynsched.queries.context import QueryContext
from asynsched.queries.late import Late, LateItem, explain_late
from asynsched.queries.runs import run_named
from asynsched.queries.why import explain
from asynsched.states import DagRunState
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database

T = TypeVar("T")


@command("why")
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=completes("task"))
@index_option
def why(session: Session, dag_id: str | None, run_id: str | None, task_id: str | None, map_index: int) -> Text:
    """Explain why a DAG has no run, why a run does not go on, or why a task does not start.

    For a run or task that has ended: why it ended as it did. A DAG whose file is gone keeps its runs. Without DAG, it
    lists the DAGs whose run was due, and the runs that do not start or go on, each with the first line of its reason.
    This only reads.
    """
    if dag_id is None:
        _ = session.database  # fails with advice if it does not exist
        home, settings = session.home, session.settings
        late = asyncio.run(
            _with_database(session, lambda database: explain_late(QueryContext(database, home, settings, Clock())))
        )
        return Text([*_late_lines(late)], msgspec.to_builtins(late))
    known_dag_of(session, dag_id)
    whole = None if run_id is None else session.read(run_named, dag_id, run_id).run_id
    explanation = asyncio.run(
        _with_database(
            session,
            lambda database: explain(database, session.settings, session.now(), dag_id, whole, task_id, map_index),
        )
    )
    return Text([*_lines(explanation)], msgspec.to_builtins(explanation))


async def _with_database(session: Session, ask: Callable[[Database], Awaitable[T]]) -> T:
    settings = session.settings
    database = await open_database(settings.database_url, synchronous=settings.sqlite_synchronous, keys=session.keys)
    try:
        return await ask(database)
    finally:
        await database.close()


def _late_lines(late: Late) -> Iterator[str]:
    if late.problem:
        yield late.problem
    elif not late.rows:
        yield "Nothing is late or stuck."
    for row in late.rows:
        yield f"{_late_line(row)}: {row.reason}" if row.reason else _late_line(row)


def _late_line(row: LateItem) -> str:
    since = moment(row.since)
    if row.run_id is None:
        return f"{row.dag_id} was due at {since}"
    if row.state == DagRunState.RUNNING:
        return f"{row.run_id} of {row.dag_id} runs since {since} and does not go on"
    return f"{row.run_id} of {row.dag_id} is {row.state} since {since}"


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
