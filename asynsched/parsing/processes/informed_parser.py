"""Parses with what is stored in mind: asks authors' timetables what comes after the last run, doubts new versions."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import msgspec
import structlog
from sqlalchemy import Connection

from asynsched.clock import Clock
from asynsched.errors import DagError, SandboxError, StoreUnavailable
from asynsched.parsing.processes.parse_slots import ParseSlots
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.processes.sandbox_setup import HASH_SEED
from asynsched.parsing.processes.stability import KnownVersion, settled, would_be_new
from asynsched.parsing.progress import ReadingProgress
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import ParseQuestions, ParseReport
from asynsched.store.dags.dags import BeforeParse, before_parses
from asynsched.store.dags.versions import latest_version
from asynsched.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

OTHER_SEED = 1
"""Of the hashes of texts, for a second parse."""
FEW_DAGS = 10
"""The versions of so many DAGs are read before it is known whether they are needed."""
MOST_UNCHANGED = 10_000
"""Files that are remembered as unchanged: names of files may be generated."""
RETRY_DELAY = timedelta(seconds=1)
LATEST = timedelta(seconds=1)
"""How old may be what a parse knows of what is stored."""
WARM_UP_DELAY = timedelta(seconds=1)
"""After the folder is read, the runs that are due come first; and who only waits for that has ended by then."""


class InformedParser:
    """Parses files in confined processes, for a dispatcher.

    Where a DAG would get a new version in place of another, its file is parsed a second time. Of a file that had DAGs
    that is likely, so both parses are done side by side while no other file is being parsed and a slot is free; not
    where the parse before gave nothing new, as it does for a file that is parsed again and again. Where the first of
    both gives nothing new, the second is ended. While the database is away, a parse waits.
    """

    def __init__(self, parser: SandboxParser, database: Database, clock: Clock) -> None:
        self._parser = parser
        self._database = database
        self._clock = clock
        self._n_under_way = 0
        self._unchanged: dict[str, None] = {}
        self._before: dict[str, BeforeParse] = {}

    async def prepare(self, paths: Sequence[str]) -> None:
        """Read what is stored of files that are to be parsed next. See `Parser.prepare`."""
        self._before |= await self._read(before_parses, paths, self._clock.now())

    async def parse(self, path: str, slots: ParseSlots) -> ParseReport:
        """Parse a file; a second time if a DAG would get a new version in place of another. See `Parser.parse`."""
        self._n_under_way += 1
        try:
            before = await self._before_parse(path)
            is_likely = 0 < len(before.hashes) <= FEW_DAGS and path not in self._unchanged
            if is_likely and self._n_under_way == 1 and slots.take():
                return await self._parse_side_by_side(path, before, slots)
            return await self._parse_in_turn(path, before)
        finally:
            self._n_under_way -= 1

    async def warm_up(self, progress: ReadingProgress) -> None:
        """Have the servers of both parses of a saved file started once the folder is read. See `Parser.warm_up`."""
        await progress.until_read()
        await self._clock.sleep(WARM_UP_DELAY)
        for hash_seed in (HASH_SEED, OTHER_SEED):
            await self._parser.warm_up(hash_seed)

    async def _before_parse(self, path: str) -> BeforeParse:
        """Return what was read ahead of a file; what is older than a moment is read again."""
        before, now = self._before.pop(path, None), self._clock.now()
        if before is None or now - before.questions.now > LATEST:
            before = (await self._read(before_parses, [path], now))[path]
        return before

    async def _parse_in_turn(self, path: str, before: BeforeParse) -> ParseReport:
        report = await self._parser.parse(path, before.questions)
        changed = self._changed(report, before)
        if not changed:
            return report
        known = await self._read(_known_versions, changed)
        return self._compared(report, await self._second(path, before, known), known)

    async def _parse_side_by_side(self, path: str, before: BeforeParse, slots: ParseSlots) -> ParseReport:
        """Parse a file by two processes, for the second of which a slot was taken."""
        again: list[ParseReport | SandboxError] = []

        async def parse_again() -> None:
            again.append(await self._second(path, before, known))
            slot.close()

        with ExitStack() as slot:  # given back when the first of both has ended
            slot.callback(slots.give_back)
            known = await self._read(_known_versions, list(before.hashes))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parse_again)
                report = await self._attempt(path, before.questions, HASH_SEED)
                slot.close()
                changed = [] if isinstance(report, SandboxError) else self._changed(report, before)
                if not changed:
                    tasks.cancel_scope.cancel()
        if isinstance(report, SandboxError):
            raise report
        if not changed:
            return report
        return self._compared(report, again[0], {dag_id: known[dag_id] for dag_id in changed if dag_id in known})

    def _changed(self, report: ParseReport, before: BeforeParse) -> list[str]:
        """Return the DAGs that would get a new version, and note whether a parse without errors gave none."""
        changed = would_be_new(report, before.hashes)
        self._unchanged.pop(report.path, None)
        if before.hashes and not (changed or report.errors):
            self._unchanged[report.path] = None
            if len(self._unchanged) > MOST_UNCHANGED:
                del self._unchanged[next(iter(self._unchanged))]
        return changed

    async def _second(
        self, path: str, before: BeforeParse, known: dict[str, KnownVersion]
    ) -> ParseReport | SandboxError:
        """Parse a file under another hash seed, asked about the versions that are known."""
        asked = {dag_id: version.dag for dag_id, version in known.items()}
        questions = msgspec.structs.replace(before.questions, known=asked)
        return await self._attempt(path, questions, OTHER_SEED)

    async def _attempt(self, path: str, questions: ParseQuestions, hash_seed: int) -> ParseReport | SandboxError:
        try:
            return await self._parser.parse(path, questions, hash_seed=hash_seed)
        except SandboxError as exc:
            return exc

    def _compared(
        self, report: ParseReport, again: ParseReport | SandboxError, known: dict[str, KnownVersion]
    ) -> ParseReport:
        if isinstance(again, SandboxError):
            log.warning("file.not_compared", file=report.path, reason=str(again))
            return report
        if again.sources != report.sources:
            return report  # edited meanwhile: it is about to be parsed again
        return settled(report, again, known)

    async def _read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await self._database.read_at_once(query, *args, **kwargs)
            except StoreUnavailable:
                await self._clock.sleep(RETRY_DELAY)


def _known_versions(conn: Connection, dag_ids: list[str]) -> dict[str, KnownVersion]:
    found = {}
    for dag_id in dag_ids:
        version = latest_version(conn, dag_id)
        if version is not None:
            # One that an older asynsched has written may be unreadable: then there is nothing to compare with.
            with suppress(DagError):
                dag = decode_dag(version.serialized)
                found[dag_id] = KnownVersion(version.version_hash, dag)
    return found
