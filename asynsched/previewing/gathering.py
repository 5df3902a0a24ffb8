"""Gathers a preview: the present state from the database or a parse, the new one from a parse, and their simulations.

The home and its database are only read.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
from sqlalchemy import Connection

from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.errors import AsynschedError, SandboxError, ungrouped
from asynsched.parsing.processes.informed_parser import OTHER_SEED, KnownVersion, keep_unstable_versions, would_be_new
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.readable_secrets import secrets_of_home
from asynsched.previewing.folders import StateOnDisk, state_on_disk
from asynsched.queries.preview import ActiveRun, FolderState, LiveState, Load, PoolLoad, Preview, preview, state_of
from asynsched.queries.version_changes import DagState
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParsedDag, ParseQuestions, ParseReport
from asynsched.settings import Settings
from asynsched.simulation.folder import HomeState, asker, parse_folder, questions_of_span, read_home_state
from asynsched.simulation.script import Expectation, Expectations, with_certain_failures
from asynsched.simulation.span import Plan, SpanReport, compare, simulate_span
from asynsched.simulation.summary import n_task_starts
from asynsched.states import DagRunState
from asynsched.store.dags.dags import get_plans, get_sources, get_versions, list_dags
from asynsched.store.dags.files import list_errors
from asynsched.store.engines.opening import connect_direct, schema_state
from asynsched.store.engines.urls import parse_url
from asynsched.store.rows import in_common
from asynsched.store.runs.dag_runs import last_run_of_partitions, last_scheduled_intervals, list_runs
from asynsched.store.runs.pools import list_pools
from asynsched.timetables import CronPartitionTimetable

MOST_ACTIVE_RUNS = 1000
"""Runs of each active state that are read."""
PARTITIONS = CronPartitionTimetable.kind
"""The kind of a timetable whose runs have no data interval."""


class Wanted(NamedTuple):
    """The options of a preview.

    Attributes:
        where: The new state: a folder or a commit.
        against: The state to compare it with, or None for the database.
        span: How long to simulate from now on; zero for no simulation.
        pools: Slots of pools that exist or will, by name.
    """

    where: str
    against: str | None = None
    span: timedelta = timedelta(days=1)
    pools: Mapping[str, int] = {}


def gather_preview(settings: Settings, wanted: Wanted, *, place: str, now: datetime) -> Preview:
    """Return the changes that a new state of the DAG folder would make. Blocks: it parses and simulates.

    Args:
        settings: Of the scheduler; its home must exist, because parses work there.
        place: The home or database, for people.
        now: Aware UTC.

    Raises:
        SettingsError: There is no such folder or commit.
        AsynschedError: There is nothing to compare with.
    """
    live, stored = read_live(settings, place)
    if wanted.against is None and stored is None:
        raise AsynschedError(
            f"There is nothing to compare with: {place} has no database. Name another state by --against: a folder, or"
            " a Git commit such as origin/main."
        )
    live = _with_pools(live, wanted.pools)
    # Not `Path.is_dir`, which fails for a folder in one that cannot be entered.
    is_folder = os.path.isdir(wanted.where)  # noqa: PTH112
    folder = Path(wanted.where).absolute() if is_folder else settings.dags_path
    questions = questions_of_span(now, now + max(wanted.span, timedelta(hours=1)))
    with ExitStack() as stack:

        def read(where: str, before: FolderState | None) -> tuple[StateOnDisk, FolderState]:
            found = stack.enter_context(state_on_disk(settings, where, repository_of=folder))
            with ungrouped():
                reports = asyncio.run(_parse(found.settings, questions, before))
            return found, state_of(found.name, reports, before)

        if wanted.against is None:
            assert stored is not None
            present, before = StateOnDisk(stored.name, settings), stored
        else:
            present, before = read(wanted.against, None)
        coming, after = read(wanted.where, before)
        if before is stored:
            before = _with_texts(settings, before, after)
        load = None
        if wanted.span:
            plan = _plan(settings, wanted, now)
            load = _load(*(simulate_span(disk.settings, _reports(state), plan, ask=asker(disk.settings))
                           for disk, state in ((present, before), (coming, after))))  # fmt: skip
    paused = settings.dags_are_paused_at_creation
    return preview(before, after, live, now=now, are_paused_at_creation=paused, load=load)


async def _parse(settings: Settings, questions: ParseQuestions, before: FolderState | None) -> list[ParseReport]:
    """Return the reports of a folder's files, in which, as in a scheduler, unstable fields make no new version."""
    secrets = secrets_of_home(settings)
    reports = list(await parse_folder(settings, questions, secrets))
    hashes = {} if before is None else {dag_id: state.version_hash for dag_id, state in before.dags.items()}
    slots = anyio.Semaphore(settings.parse.processes)

    async def doubt(parser: SandboxParser, place: int, known: dict[str, KnownVersion]) -> None:
        asked = msgspec.structs.replace(questions, known={dag_id: version.dag for dag_id, version in known.items()})
        async with slots:
            # A parse that fails now proves nothing.
            with suppress(SandboxError):
                again = await parser.parse(reports[place].path, asked, hash_seed=OTHER_SEED)
                reports[place] = keep_unstable_versions(reports[place], again, known)

    async with SandboxParser(settings, secrets) as parser, anyio.create_task_group() as parses:
        for place, report in enumerate(reports):
            if before is not None and (changed := would_be_new(report, hashes)):
                known = {dag_id: KnownVersion(hashes[dag_id], before.dags[dag_id].dag) for dag_id in changed}
                parses.start_soon(doubt, parser, place, known)
    return reports


# The database


def read_live(settings: Settings, place: str) -> tuple[LiveState, FolderState | None]:
    """Return the present state, and the stored state of the DAG folder: None without a database.

    The sources have no texts yet.

    Raises:
        AsynschedError: The database has the schema of another version of asynsched.
    """
    url = settings.database_url
    schema = schema_state(url)
    if schema.current is None:
        return LiveState(), None
    if schema.current != schema.head:
        raise AsynschedError(f"The database has schema {schema.current}, not {schema.head}. {schema.advice}")
    with connect_direct(parse_url(url)) as database:
        return database.read(_read, place)


def _read(conn: Connection, name: str) -> tuple[LiveState, FolderState]:
    rows = list_dags(conn)
    versions = {row.id: row for row in get_versions(conn, [row.version_id for row in rows if row.version_id])}
    plans = get_plans(conn, [row.dag_id for row in rows])
    dags = {
        row.dag_id: DagState(
            row.file_path, decode_dag(version.serialized), version.version_hash, tuple(version.sources),
            plans.get(row.dag_id),
        )
        for row in rows
        if (version := versions.get(row.version_id or 0)) is not None
    }  # fmt: skip
    errors: dict[str, tuple[FileError, ...]] = {}
    for error in list_errors(conn):
        if not error.is_warning:
            told = FileError(error.kind, error.message, error.traceback, error.line, error.dag_id)
            errors[error.file_path] = (*errors.get(error.file_path, ()), told)
    last = last_scheduled_intervals(conn, list(dags))
    for dag_id, state in dags.items():
        if state.dag.timetable["kind"] == PARTITIONS and (newest := last_run_of_partitions(conn, dag_id)) is not None:
            last[dag_id] = newest
    paused = {row.dag_id: row.is_paused for row in rows}
    pools = frozenset(pool.name for pool in list_pools(conn))
    return LiveState(_active_runs(conn), paused, last, pools), FolderState(name, dags, errors)


def _active_runs(conn: Connection) -> tuple[ActiveRun, ...]:
    rows = [
        row
        for state in (DagRunState.RUNNING, DagRunState.QUEUED)
        for row in list_runs(conn, state=state, limit=MOST_ACTIVE_RUNS)
    ]
    pinned = sorted({row.version_id for row in rows if row.version_id is not None})
    numbers = {version.id: version.number for version in get_versions(conn, pinned)}
    return tuple(ActiveRun(row.dag_id, row.run_id, row.state, numbers.get(row.version_id or 0)) for row in rows)


def _with_texts(settings: Settings, before: FolderState, after: FolderState) -> FolderState:
    """Return the stored state with the texts of the DAGs that change: only those are compared."""
    hashes = {
        source.content_hash
        for dag_id, state in before.dags.items()
        if dag_id in after.dags and after.dags[dag_id].version_hash != state.version_hash
        for source in state.sources
    }
    with connect_direct(parse_url(settings.database_url)) as database:
        texts = database.read(get_sources, sorted(hashes)) if hashes else {}
    return msgspec.structs.replace(before, texts=texts)


def _with_pools(live: LiveState, pools: Mapping[str, int]) -> LiveState:
    if not pools:
        return live
    return msgspec.structs.replace(live, pools=(live.pools or frozenset({DEFAULT_POOL})) | pools.keys())


# The simulations


def _reports(state: FolderState) -> tuple[ParseReport, ...]:
    """Return a state as parses would report it, without its code, which a simulation does not run."""
    files: dict[str, list[ParsedDag]] = {}
    for one in state.dags.values():
        files.setdefault(one.file, []).append(ParsedDag(one.dag, one.version_hash, one.plan))
    return tuple(ParseReport(SCHEMA_VERSION, path, tuple(dags)) for path, dags in sorted(files.items()))


def _plan(settings: Settings, wanted: Wanted, now: datetime) -> Plan:
    """Return the span to simulate, in which tasks take as long, and fail as surely, as they did in the home."""
    home: HomeState = read_home_state(settings.database_url)
    expectations = Expectations((), given=Expectation(), history=with_certain_failures(home.history))
    return Plan(start=now, end=now + wanted.span, expectations=expectations, home=home, pools=wanted.pools)


def _load(before: SpanReport, after: SpanReport) -> Load:
    found = compare(before, after)
    return Load(
        start=before.start,
        end=before.end,
        runs_before=len(before.runs),
        runs_after=len(after.runs),
        task_starts_before=n_task_starts(before.runs),
        task_starts_after=n_task_starts(after.runs),
        failed_before=_n_failed(before),
        failed_after=_n_failed(after),
        deadlines_missed=tuple(f"{miss.dag_id}.{miss.run_id}" for miss in found.deadlines_missed),
        pools=tuple(PoolLoad(**in_common(PoolLoad, pool)) for pool in found.pools),
    )


def _n_failed(span: SpanReport) -> int:
    return sum(run.state == DagRunState.FAILED for run in span.runs)
