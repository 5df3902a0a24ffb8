"""Parses that know the stored DAGs: they ask authors' timetables for the next runs, and doubt new versions.

A field that is different in each parse (a random value, the time, the order of a set) would make a version at each. So
a file is parsed a second time, under another hash seed, before a DAG gets a new version in place of another. A field in
which the two parses differ is named in a warning, and makes no version.

An edit nearly always makes a new version. So the second parse of an edited file that had DAGs begins beside the first,
without waiting for its result. A saved file is visible about a quarter earlier by that: after a median of 42 ms instead
of 60 (SQLite) and 53 instead of 78 (PostgreSQL), in ten pairs of `python -m tests.benchmarks save`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.clock import Clock
from asynsched.errors import DagError, SandboxError
from asynsched.loggers import get_logger
from asynsched.parsing.processes.sandbox_parser import HASH_SEED, SandboxParser
from asynsched.parsing.progress import ReadingProgress
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import (
    UNSTABLE,
    AnswersForRun,
    FileError,
    ParsedDag,
    ParseQuestions,
    ParseReport,
    SerializedDag,
    TimetableQuestion,
)
from asynsched.service import until_available
from asynsched.store.dags.dags import BeforeParse, before_parses, file_to_ask, latest_version
from asynsched.store.database import Database

log = get_logger(__name__)

OTHER_SEED = 1
"""The hash seed of a second parse."""
FEW_DAGS = 10
"""A file with more DAGs is parsed a second time only after the first parse: their versions are read for the second."""
LATEST = timedelta(seconds=1)
"""A parse may use rows that were read from the database this long ago."""
WARM_UP_DELAY = timedelta(seconds=1)
"""After the folder is read, the runs that are due come first; and a command that only waits for that has ended."""
MAX_NAMED = 10
"""How many fields a warning names at most."""


class KnownVersion(Struct, frozen=True):
    """The newest version of a DAG as it is stored."""

    version_hash: str
    dag: SerializedDag


class ParseSlots:
    """Counts the parses that may still begin, first and second parses alike; calls `freed` when one more may."""

    def __init__(self, n: int, freed: Callable[[], None]) -> None:
        self.n_free = n
        self._freed = freed

    def take(self) -> bool:
        if not self.n_free:
            return False
        self.n_free -= 1
        return True

    def give_back(self) -> None:
        self.n_free += 1
        self._freed()


class InformedParser:
    """Parses files in confined processes, for a dispatcher. Several parses may be under way.

    Both parses of an edited file run side by side while no other file is being parsed and a slot is free. If the first
    gives nothing new, the second is ended. While the database is away, a parse waits: one that asks for a variable or a
    connection meanwhile begins again, so that its time is its own.
    """

    def __init__(self, parser: SandboxParser, database: Database, clock: Clock) -> None:
        self._parser = parser
        self._read = partial(until_available, clock, database.read_at_once)
        self._clock = clock
        self._n_under_way = 0
        self._before: dict[str, BeforeParse] = {}

    async def prepare(self, paths: Sequence[str]) -> None:
        """Read the stored rows that the parses of these files need; the parses follow soon."""
        self._before |= await self._read(before_parses, paths, self._clock.now())

    async def parse(self, path: str, slots: ParseSlots, *, is_edited: bool) -> ParseReport:
        """Return everything that a parse of a file found, including its errors.

        The file is parsed a second time if a DAG would get a new version in place of another.

        Args:
            path: The file, relative to the DAG folder.
            slots: The caller has taken one for this call. A second process that parses the file takes another.
            is_edited: The file or a module that it imports changed while the folder was watched, or a user asks for
                the parse.

        Raises the errors of `SandboxParser.parse`.
        """
        self._n_under_way += 1
        try:
            before = await self._before_parse(path)
            is_likely_new = is_edited and 0 < len(before.hashes) <= FEW_DAGS
            if is_likely_new and self._n_under_way == 1 and slots.take():
                return await self._parse_side_by_side(path, before, slots)
            return await self._parse_in_turn(path, before)
        finally:
            self._n_under_way -= 1

    async def warm_up(self, progress: ReadingProgress) -> None:
        """Once the folder is read, start the servers of both parses, for which the first saved file would wait."""
        await progress.until_read()
        await self._clock.sleep(WARM_UP_DELAY)
        for hash_seed in (HASH_SEED, OTHER_SEED):
            await self._parser.warm_up(hash_seed)

    async def _before_parse(self, path: str) -> BeforeParse:
        """Return the rows that were read ahead for a file; read them again if they are too old."""
        before, now = self._before.pop(path, None), self._clock.now()
        if before is None or now - before.questions.now > LATEST:
            before = (await self._read(before_parses, [path], now))[path]
        return before

    async def _parse_in_turn(self, path: str, before: BeforeParse) -> ParseReport:
        report = await self._parse(path, before.questions, HASH_SEED)
        changed = would_be_new(report, before.hashes)
        if not changed:
            return report
        known = await self._read(_known_versions, changed)
        return _compared(report, await self._second(path, before, known), known)

    async def _parse_side_by_side(self, path: str, before: BeforeParse, slots: ParseSlots) -> ParseReport:
        """Parse a file by two processes. The caller has taken a slot for the second."""
        again: list[ParseReport | SandboxError] = []

        async def parse_again() -> None:
            again.append(await self._second(path, before, known))
            slot.close()

        with ExitStack() as slot:  # given back as soon as one of both has ended
            slot.callback(slots.give_back)
            known = await self._read(_known_versions, list(before.hashes))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parse_again)
                report = await self._attempt(path, before.questions, HASH_SEED)
                slot.close()
                changed = [] if isinstance(report, SandboxError) else would_be_new(report, before.hashes)
                if not changed:
                    tasks.cancel_scope.cancel()
        if isinstance(report, SandboxError):
            raise report
        if not changed:
            return report
        return _compared(report, again[0], {dag_id: known[dag_id] for dag_id in changed if dag_id in known})

    async def _second(
        self, path: str, before: BeforeParse, known: dict[str, KnownVersion]
    ) -> ParseReport | SandboxError:
        """Parse a file under another hash seed, asked about the versions that are known."""
        asked = {dag_id: version.dag for dag_id, version in known.items()}
        return await self._attempt(path, msgspec.structs.replace(before.questions, known=asked), OTHER_SEED)

    async def _attempt(self, path: str, questions: ParseQuestions, hash_seed: int) -> ParseReport | SandboxError:
        try:
            return await self._parse(path, questions, hash_seed)
        except SandboxError as exc:
            return exc

    async def _parse(self, path: str, questions: ParseQuestions, hash_seed: int) -> ParseReport:
        return await until_available(self._clock, partial(self._parser.parse, hash_seed=hash_seed), path, questions)


def _known_versions(conn: Connection, dag_ids: list[str]) -> dict[str, KnownVersion]:
    found = {}
    for dag_id in dag_ids:
        version = latest_version(conn, dag_id)
        if version is not None:
            # A version that an older asynsched has written may be unreadable: then there is nothing to compare with.
            with suppress(DagError):
                found[dag_id] = KnownVersion(version.version_hash, decode_dag(version.serialized))
    return found


def would_be_new(report: ParseReport, known: Mapping[str, str]) -> list[str]:
    """Return the DAGs of a report that would get a new version in place of a known one, whose hash is given."""
    return [
        parsed.dag.dag_id
        for parsed in report.dags
        if known.get(parsed.dag.dag_id, parsed.version_hash) != parsed.version_hash
    ]


# Two parses, compared


def _compared(report: ParseReport, again: ParseReport | SandboxError, known: Mapping[str, KnownVersion]) -> ParseReport:
    if isinstance(again, SandboxError):
        log.warning("file.not_compared", file=report.path, reason=str(again))
        return report
    if again.sources != report.sources:
        return report  # edited meanwhile: the file is about to be parsed again
    return keep_unstable_versions(report, again, known)


def keep_unstable_versions(first: ParseReport, second: ParseReport, known: Mapping[str, KnownVersion]) -> ParseReport:
    """Return the first report, in which a DAG keeps its version if it differs from that in unstable fields only.

    Args:
        first: The report to store.
        second: Another parse of the same file, under another hash seed, that was asked about the known versions.
        known: The newest versions of the DAGs that would get new ones.
    """
    again = {parsed.dag.dag_id: parsed for parsed in second.dags}
    dags, warnings = [], list(first.warnings)
    for parsed in first.dags:
        dag_id = parsed.dag.dag_id
        fields = list(differing_fields(parsed.dag, again[dag_id].dag)) if dag_id in again else []
        if fields:
            warnings.append(_warning(first.path, dag_id, fields))
            if dag_id in known and _is_known(parsed.dag, again[dag_id], known[dag_id]):
                parsed = msgspec.structs.replace(parsed, dag=known[dag_id].dag, version_hash=known[dag_id].version_hash)
        dags.append(parsed)
    return msgspec.structs.replace(first, dags=tuple(dags), warnings=tuple(warnings))


def _is_known(dag: SerializedDag, again: ParsedDag, known: KnownVersion) -> bool:
    """Whether a DAG differs from the known version in unstable fields only."""
    has_known_code = again.known_hash == known.version_hash
    return has_known_code and _with_known_fields(dag, again.dag, known.dag) == known.dag


def differing_fields(one: SerializedDag, other: SerializedDag) -> Iterator[str]:
    """Yield the names of the fields in which two parses of a DAG differ, those of tasks with their task_id."""
    for name in _differing(one, other):
        if name != "tasks":
            yield name
            continue
        ours, theirs = _tasks(one), _tasks(other)
        if ours.keys() != theirs.keys():
            yield f"the ids of its tasks ({min(ours.keys() ^ theirs.keys())!r} is not always there)"
            continue
        if list(ours) != list(theirs):
            yield "the order of its tasks"
        for task_id, task in ours.items():
            yield from (f"{field} of task {task_id!r}" for field in _differing(task, theirs[task_id]))


def _with_known_fields(dag: SerializedDag, again: SerializedDag, known: SerializedDag) -> SerializedDag:
    """Return the DAG with the known values in those fields that are unstable; as it is where other tasks are known."""
    values = {name: getattr(known, name) for name in _differing(dag, again)}
    ours, theirs, kept = _tasks(dag), _tasks(again), _tasks(known)
    if "tasks" in values and ours.keys() == theirs.keys():
        if ours.keys() != kept.keys():
            return dag
        values["tasks"] = tuple(
            msgspec.structs.replace(
                ours[task_id],
                **{name: getattr(kept[task_id], name) for name in _differing(ours[task_id], theirs[task_id])},
            )
            for task_id in (kept if list(ours) != list(theirs) else ours)
        )
    return msgspec.structs.replace(dag, **values)


def _tasks(dag: SerializedDag) -> dict[str, Any]:
    return {task.task_id: task for task in dag.tasks}


def _differing(one: Struct, other: Struct) -> list[str]:
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]


def _warning(path: str, dag_id: str, fields: list[str]) -> FileError:
    named = ", ".join(fields[:MAX_NAMED]) + (f" and {len(fields) - MAX_NAMED} more" if len(fields) > MAX_NAMED else "")
    return FileError(
        UNSTABLE,
        f"{path}: DAG {dag_id!r}: two parses of the same file differ in {named}; sort values from a set, and do not use"
        " the time or random values there. Such a difference makes no new version.",
        dag_id=dag_id,
    )


# Questions by themselves


async def ask_of_run(
    parser: SandboxParser, database: Database, dag_id: str, now: datetime, question: TimetableQuestion
) -> AnswersForRun:
    """Ask a DAG's own code, if it has to answer, about a run that is triggered.

    Raises DagError if the file could not be parsed, or the timetable or a mapper has no answer.
    """
    path = await database.read(file_to_ask, dag_id, question)
    if path is None:
        return AnswersForRun()
    return (await ask(parser, path, dag_id, question, now=now)).for_run


async def ask(
    parser: SandboxParser, path: str, dag_id: str, question: TimetableQuestion, *, now: datetime
) -> ParsedDag:
    """Return the DAG as its file defines it now, with the answers of its timetable.

    Raises DagError if the file could not be parsed, does not have the DAG, or its timetable has no answer.
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
