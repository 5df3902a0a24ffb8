"""A DAG folder as it is now: every file parsed once, confined as always; nothing is stored."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import anyio
import anyio.to_thread

from asynsched.errors import SandboxError
from asynsched.home import prepare_home
from asynsched.parsing.examination import examine
from asynsched.parsing.processes.parser import report_of_error, report_of_failure
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.watching.discovery import scan
from asynsched.parsing.watching.watcher import check_folder
from asynsched.serialization.schema import ParseQuestions, ParseReport, TimetableQuestion
from asynsched.settings import Settings
from asynsched.simulation.planner import Ask
from asynsched.timetables.custom import MAX_PLANNED


def asker(settings: Settings) -> Ask:
    """Return what parses a file of the folder, and blocks until that is done, also within an event loop."""
    parser = SandboxParser(settings)

    def ask(path: str, questions: ParseQuestions) -> ParseReport:
        with ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(asyncio.run, _parsed(parser, path, questions)).result()

    return ask


async def parse_folder(settings: Settings, start: datetime, end: datetime) -> tuple[ParseReport, ...]:
    """Return what each DAG file of the folder holds, or why it cannot be used, by path.

    Timetables that are the author's own are asked for all runs of the span, as if it were its start.

    Raises:
        SettingsError: There is no such folder, or it cannot be read.
    """
    root, home = settings.dags_path, settings.home_path
    await anyio.to_thread.run_sync(check_folder, root, home)
    prepare_home(home)
    found = await anyio.to_thread.run_sync(scan, root, home)
    questions = ParseQuestions(now=start, of_others=TimetableQuestion(n_runs=MAX_PLANNED, since=start, until=end))
    slots = anyio.Semaphore(settings.parse.processes)
    reports: dict[str, ParseReport] = {}

    async def read(parser: SandboxParser, path: str) -> None:
        async with slots:
            report = await _report(settings, parser, path, questions)
        if report is not None:
            reports[path] = report

    async with SandboxParser(settings) as parser, anyio.create_task_group() as reads:
        for path, file in found.files.items():
            if not file.is_ignored:
                reads.start_soon(read, parser, path)
    return tuple(reports[path] for path in sorted(reports))


async def _report(
    settings: Settings, parser: SandboxParser, path: str, questions: ParseQuestions
) -> ParseReport | None:
    """Return what one file holds; None where it is no DAG file."""
    examined = await anyio.to_thread.run_sync(examine, settings.dags_path, path)
    if examined is None or examined.is_gone:
        return None
    if examined.error is not None:
        return report_of_error(path, examined.error)
    if settings.watch.safe_mode and not examined.mentions_dag:
        return None
    return await _parsed(parser, path, questions)


async def _parsed(parser: SandboxParser, path: str, questions: ParseQuestions) -> ParseReport:
    try:
        return await parser.parse(path, questions)
    except SandboxError as exc:
        return report_of_failure(path, exc)
