"""Questions to the timetables and mappers that are code of a DAG file: a parse of the file answers them."""

from datetime import datetime

from anyio.to_thread import run_sync

from asynsched.home import prepare_home
from asynsched.parsing.processes.informed_parser import ask
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.readable_secrets import ReadableSecrets
from asynsched.queries.context import QueryContext
from asynsched.queries.turns import turns
from asynsched.serialization.schema import ParsedDag, TimetableQuestion
from asynsched.settings import Settings


async def ask_timetable(
    context: QueryContext, file: str, dag_id: str, question: TimetableQuestion, now: datetime
) -> ParsedDag:
    """Return a DAG with the answers of its own code. The result of the parse is not stored.

    Args:
        now: The time that the timetable takes for the present.

    Raises DagError, and AsynschedError if too many wait for such an answer.
    """
    secrets = ReadableSecrets(context.settings.parse, context.database.read)
    return await ask_with_secrets(context.settings, secrets, file, dag_id, question, now)


async def ask_with_secrets(
    settings: Settings, secrets: ReadableSecrets, file: str, dag_id: str, question: TimetableQuestion, now: datetime
) -> ParsedDag:
    """Do as `ask_timetable` does, in a process that gives the parse the variables and connections in another way."""
    await run_sync(prepare_home, settings.home_path)
    parser = await run_sync(SandboxParser, settings, secrets)
    async with turns("questions to timetables", settings.parse.processes):
        return await ask(parser, file, dag_id, question, now=now)
