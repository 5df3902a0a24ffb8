"""Parses with what is stored in mind: asks authors' timetables what comes after the last run, doubts new versions."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import structlog
from sqlalchemy import Connection

from asynsched.clock import Clock
from asynsched.errors import DagError, SandboxError, StoreUnavailable
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.processes.stability import KnownVersion, settled, would_be_new
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import ParseReport
from asynsched.store.dag_versions import latest_hashes, latest_version
from asynsched.store.database import Database
from asynsched.store.timetable_plans import questions_for_file

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

OTHER_SEED = 1
"""Of the hashes of texts, for a second parse."""
RETRY_DELAY = timedelta(seconds=1)


class InformedParser:
    """Parses files in confined processes, for a dispatcher.

    While the database is away, a parse waits.
    """

    def __init__(self, parser: SandboxParser, database: Database, clock: Clock) -> None:
        self._parser = parser
        self._database = database
        self._clock = clock

    async def parse(self, path: str) -> ParseReport:
        """Parse a file; a second time if a DAG would get a new version in place of another. See `Parser.parse`."""
        questions = await self._read(questions_for_file, path, self._clock.now())
        report = await self._parser.parse(path, questions)
        if not report.dags:
            return report
        hashes = await self._read(latest_hashes, [parsed.dag.dag_id for parsed in report.dags])
        changed = would_be_new(report, hashes)
        if not changed:
            return report
        known = await self._read(_known_versions, changed)
        questions = msgspec.structs.replace(questions, known={dag_id: version.dag for dag_id, version in known.items()})
        try:
            again = await self._parser.parse(path, questions, hash_seed=OTHER_SEED)
        except SandboxError as exc:
            log.warning("file.not_compared", file=path, reason=str(exc))
            return report
        if again.sources != report.sources:
            return report  # edited meanwhile: it is about to be parsed again
        return settled(report, again, known)

    async def _read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await self._database.read(query, *args, **kwargs)
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
