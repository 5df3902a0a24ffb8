"""The input of a simulation: the DAG files, parsed as always, and the database of the home. Nothing is changed."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median, median_low

import anyio
import anyio.to_thread
from sqlalchemy import Connection

from asynsched.channels import Channels, DagChanged, FileChanged
from asynsched.clock import Clock
from asynsched.errors import SandboxError
from asynsched.home import prepare_home
from asynsched.parsing.looks import look_at
from asynsched.parsing.processes.sandbox_parser import SandboxParser, report_of_error, report_of_failure
from asynsched.parsing.readable_secrets import ReadableSecrets, secrets_of_home
from asynsched.parsing.watching.discovery import scan
from asynsched.parsing.watching.watcher import check_folder
from asynsched.serialization.schema import ParseQuestions, ParseReport, TimetableQuestion
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.simulation.script import Expectation
from asynsched.states import TaskInstanceState
from asynsched.store.dags.dags import list_dags, questions_for_file
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.database import Database
from asynsched.store.engines.opening import connect_direct, schema_state
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.dag_runs import last_scheduled_intervals
from asynsched.store.runs.pools import PoolRow, list_pools
from asynsched.store.runs.task_instances import PastTry, past_tries
from asynsched.timetables import DataInterval
from asynsched.timetables.decoding import MAX_PLANNED

Ask = Callable[[str, ParseQuestions], ParseReport]
"""Parses a file with questions for its timetables."""
NO_STAMP = FileStamp(content_hash="", modified_ns=0, size=0, runtime="")


class Planner(Service):
    """Replaces the parse dispatcher: parses a file only to ask its timetables.

    Args:
        ask: Blocks the event loop, whose time is virtual, so that the order of events does not depend on how long a
            parse takes.
    """

    name = "planner"

    def __init__(self, channels: Channels, database: Database, clock: Clock, ask: Ask, defaults: DagDefaults) -> None:
        super().__init__(clock)
        self._channels = channels
        self._database = database
        self._ask = ask
        self._defaults = defaults
        channels.file_changes.wakes(self.wake)

    async def tick(self, now: datetime) -> None:
        """Parse the requested files."""
        for message in self._channels.file_changes.take():
            if not isinstance(message, FileChanged):
                continue
            questions = await self._database.read(questions_for_file, message.path, now)
            report = self._ask(message.path, questions)
            stored = await self._database.write(store_report, report, NO_STAMP, now=now, defaults=self._defaults)
            for dag_id in (*stored.new, *stored.changed, *stored.removed):
                await self._channels.dag_changes.put(DagChanged(dag_id))


N_RUNS = 20
"""Newest runs of a DAG from which the expectations of its tasks come."""
RARELY_GOOD = 0.9999
"""The highest failure rate of a task that has succeeded at least once."""


@dataclass(frozen=True, slots=True)
class HomeState:
    """The state of a home's database.

    Attributes:
        last: The data interval of each DAG's last scheduled run.
        history: By `DAG.TASK`, the median length of the tries that succeeded, or of all tries if none has, and the
            share of the tries that failed, which is 1 only if none has succeeded.
    """

    pools: tuple[PoolRow, ...] = ()
    paused: dict[str, bool] = field(default_factory=dict)
    last: dict[str, DataInterval] = field(default_factory=dict)
    history: dict[str, Expectation] = field(default_factory=dict)


def read_home_state(database_url: str) -> HomeState:
    """Read a home's database without changing it; an empty state without a database.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
    """
    state = schema_state(database_url)
    if state.current != state.head:
        return HomeState()
    with connect_direct(parse_url(database_url)) as database:
        return database.read(_read)


def _read(conn: Connection) -> HomeState:
    dags = list_dags(conn)
    tries = [one for dag in dags for one in past_tries(conn, dag.dag_id, n_runs=N_RUNS)]
    paused = {dag.dag_id: dag.is_paused for dag in dags}
    last = last_scheduled_intervals(conn, list(paused))
    return HomeState(tuple(list_pools(conn)), paused, last, history_of(tries))


def history_of(tries: Iterable[PastTry]) -> dict[str, Expectation]:
    """Return the expectations that follow from past tries, by `DAG.TASK`."""
    good: dict[str, list[PastTry]] = defaultdict(list)
    bad: dict[str, list[PastTry]] = defaultdict(list)
    for seen in tries:
        is_bad = seen.state == TaskInstanceState.FAILED
        (bad if is_bad else good)[f"{seen.dag_id}.{seen.task_id}"].append(seen)
    return {name: _expected(good[name], bad[name]) for name in good.keys() | bad.keys()}


def _expected(good: list[PastTry], bad: list[PastTry]) -> Expectation:
    lasted = [
        (seen.ended_at - seen.started_at).total_seconds() for seen in good or bad if seen.started_at and seen.ended_at
    ]
    lengths = [seen.result_length for seen in good if seen.result_length is not None and seen.result_length >= 0]
    return Expectation(
        duration=round(median(lasted), 3) if lasted else None,
        length=median_low(lengths) if lengths else None,
        failure_rate=min(round(len(bad) / (len(bad) + len(good)), 4), RARELY_GOOD) if good else 1.0,
    )


def asker(settings: Settings) -> Ask:
    """Return a function that parses a file of the folder; it blocks, also within an event loop."""
    parser = SandboxParser(settings, secrets_of_home(settings))

    def ask(path: str, questions: ParseQuestions) -> ParseReport:
        with ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(asyncio.run, _parsed(parser, path, questions)).result()

    return ask


def questions_of_span(start: datetime, end: datetime) -> ParseQuestions:
    """Return the questions to authors' own timetables: about all runs of the span, as of its start."""
    return ParseQuestions(now=start, of_others=TimetableQuestion(n_runs=MAX_PLANNED, since=start, until=end))


async def parse_folder(
    settings: Settings, questions: ParseQuestions, secrets: ReadableSecrets | None = None
) -> tuple[ParseReport, ...]:
    """Return the DAGs of each file of the folder, or why the file cannot be used, by path. Nothing is stored.

    Args:
        questions: To the authors' timetables.
        secrets: The variables and connections that parses may read; by default the home's.

    Raises:
        SettingsError: There is no such folder, or it cannot be read.
    """
    root, home = settings.dags_path, settings.home_path
    await anyio.to_thread.run_sync(check_folder, root, home)
    prepare_home(home)
    found = await anyio.to_thread.run_sync(scan, root, home)
    slots = anyio.Semaphore(settings.parse.processes)
    reports: dict[str, ParseReport] = {}

    async def read(parser: SandboxParser, path: str) -> None:
        async with slots:
            report = await _report(settings, parser, path, questions)
        if report is not None:
            reports[path] = report

    secrets = secrets or secrets_of_home(settings)
    async with SandboxParser(settings, secrets) as parser, anyio.create_task_group() as reads:
        for path, file in found.files.items():
            if not file.is_ignored:
                reads.start_soon(read, parser, path)
    return tuple(reports[path] for path in sorted(reports))


async def _report(
    settings: Settings, parser: SandboxParser, path: str, questions: ParseQuestions
) -> ParseReport | None:
    """Return the report of one file; None if it is not a DAG file."""
    look = await anyio.to_thread.run_sync(look_at, settings.dags_path, path)
    if look is None or look.is_gone:
        return None
    if look.error is not None:
        return report_of_error(path, look.error)
    if settings.watch.safe_mode and not look.mentions_dag:
        return None
    return await _parsed(parser, path, questions)


async def _parsed(parser: SandboxParser, path: str, questions: ParseQuestions) -> ParseReport:
    try:
        return await parser.parse(path, questions)
    except SandboxError as exc:
        return report_of_failure(path, exc)
