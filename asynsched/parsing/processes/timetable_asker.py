"""Asks a timetable that is the author's own: a parse of its DAG file that is stored nowhere."""

from datetime import datetime

from asynsched.errors import DagError, SandboxError
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.serialization.schema import ParsedDag, ParseQuestions, TimetableQuestion
from asynsched.store.dags.dags import file_to_ask
from asynsched.store.database import Database
from asynsched.timetables import DataInterval


class TimetableAsker:
    """Asks for a scheduler that serves.

    Args:
        parser: What parses files.
        database: What is known of DAGs.
    """

    def __init__(self, parser: SandboxParser, database: Database) -> None:
        self._parser = parser
        self._database = database

    async def manual_interval(self, dag_id: str, at: datetime) -> DataInterval | None:
        """Return the data interval of a run that is triggered at an instant; None unless the author's code says it.

        Raises:
            DagError: The file could not be parsed, or the timetable has no answer.
        """
        path = await self._database.read(file_to_ask, dag_id)
        if path is None:
            return None
        question = TimetableQuestion(n_runs=1, run_by_hand_at=at)
        parsed = await ask(self._parser, path, dag_id, question, now=at)
        return None if parsed.manual_interval is None else parsed.manual_interval.value()


async def ask(
    parser: SandboxParser, path: str, dag_id: str, question: TimetableQuestion, *, now: datetime
) -> ParsedDag:
    """Return the DAG as its file defines it now, with the answers of its timetable.

    Raises:
        DagError: The file could not be parsed, does not have the DAG, or its timetable has no answer.
    """
    try:
        report = await parser.parse(path, ParseQuestions(now=now, of_dags={dag_id: question}))
    except SandboxError as exc:
        raise DagError(f"The timetable of the DAG {dag_id!r} cannot be asked: {exc}") from exc
    for parsed in report.dags:
        if parsed.dag.dag_id == dag_id:
            return parsed
    wrong = [error.message for error in report.errors if error.dag_id in (None, dag_id)]
    problem = wrong[0] if wrong else f"{path} does not define it any more"
    raise DagError(f"The timetable of the DAG {dag_id!r} cannot be asked: {problem}")
