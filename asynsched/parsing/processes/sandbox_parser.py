"""Parses files in confined processes, by warmed servers."""

import contextlib
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec

from asynsched.clock import SystemClock
from asynsched.errors import ParseCrashed, ParseTimeout, SandboxError, SerializationError, SettingsError
from asynsched.parsing.processes.parse_server import HASH_SEED, GuardianLost, ParseServer, setup_of
from asynsched.protocol.home_files import sweep
from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseQuestions, ParseReport
from asynsched.settings import Settings
from sandbox.confine import available

MOST_BYTES_ON_LOOP = 64 * 1024
"""A longer report is decoded by a thread."""


def report_of_error(path: str, error: FileError) -> ParseReport:
    """Return the report of a file that has nothing but this error."""
    return ParseReport(schema_version=SCHEMA_VERSION, path=path, errors=(error,))


def report_of_failure(path: str, exc: SandboxError) -> ParseReport:
    """Return the report of a parse that raised."""
    kind = "timeout" if isinstance(exc, ParseTimeout) else "crash"
    return report_of_error(path, FileError(kind, str(exc)))


class SandboxParser:
    """Parses files in confined processes.

    As an async context manager it keeps a parse server for each hash seed, which `warm_up` or the first parse starts.
    Otherwise each parse has a server that ends with it.

    Args:
        settings: The DAG folder, the home, and the limits of a parse.
    """

    def __init__(self, settings: Settings) -> None:
        self._setup = setup_of(settings)
        self._servers: dict[int, ParseServer] | None = None
        self._has_swept = False

    async def __aenter__(self) -> Self:
        """Raise SettingsError if parses must be fully confined, but cannot be."""
        limits = self._setup.limits
        if limits.confinement == "required" and (missing := available().missing):
            raise SettingsError(
                f"parse.confinement is required, but this machine cannot enforce it: {'; '.join(missing)}"
            )
        self._servers = {}
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        servers, self._servers = self._servers, None
        if servers is not None:
            for server in servers.values():
                await server.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(sweep, self._setup.scratch)

    async def parse(
        self, path: str, questions: ParseQuestions | None = None, *, hash_seed: int = HASH_SEED
    ) -> ParseReport:
        """Parse a file. See `Parser.parse`.

        Args:
            questions: The questions to the authors' timetables in it; by default about their first runs.
            hash_seed: Of the hashes of texts: with the same, a set has the same order in each parse.
        """
        await self._sweep_once()
        questions = questions or ParseQuestions(now=SystemClock().now())
        is_kept, server = self._servers is not None, self._server(hash_seed)
        try:
            return await _decode(path, await self._ask(server, path, questions))
        finally:
            if not is_kept:
                await server.close()

    async def warm_up(self, hash_seed: int) -> None:
        """Start the server for this hash seed, if servers are kept and it does not run yet."""
        await self._sweep_once()
        if self._servers is not None:
            await self._server(hash_seed).warm_up()

    async def _sweep_once(self) -> None:
        if not self._has_swept:
            self._has_swept = True
            await anyio.to_thread.run_sync(sweep, self._setup.scratch)

    def _server(self, hash_seed: int) -> ParseServer:
        server = ParseServer(self._setup, hash_seed)
        return server if self._servers is None else self._servers.setdefault(hash_seed, server)

    async def _ask(self, server: ParseServer, path: str, questions: ParseQuestions) -> bytes:
        """Return the report of a guardian; one that is lost may have been killed for another's sake: ask once more."""
        with contextlib.suppress(GuardianLost):
            return await server.parse(path, questions)
        # A killed process leaves its scratch folder behind.
        await anyio.to_thread.run_sync(sweep, self._setup.scratch)
        try:
            return await server.parse(path, questions)
        except GuardianLost as exc:
            raise ParseCrashed(path, f"was lost without a report: {exc}") from exc


async def _decode(path: str, data: bytes) -> ParseReport:
    try:
        if len(data) <= MOST_BYTES_ON_LOOP:
            report = decode_report(data)
        else:
            report = await anyio.to_thread.run_sync(decode_report, data)
    except SerializationError as exc:
        raise ParseCrashed(path, f"gave a report that cannot be read: {exc}") from exc
    return report if report.path == path else msgspec.structs.replace(report, path=path)
