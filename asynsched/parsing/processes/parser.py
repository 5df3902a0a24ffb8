"""What the dispatcher needs of a parser, and what a parse that gave no report is stored as."""

from collections.abc import Sequence
from typing import Protocol

from asynsched.errors import ParseTimeout, SandboxError
from asynsched.parsing.processes.parse_slots import ParseSlots
from asynsched.parsing.progress import ReadingProgress
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseReport


class Parser(Protocol):
    """Parses one file at a call; several calls may be under way."""

    async def prepare(self, paths: Sequence[str]) -> None:
        """Read what is to be known for the parses of these files, which follow soon."""
        ...

    async def parse(self, path: str, slots: ParseSlots) -> ParseReport:
        """Return everything that one parse of a file found, its errors too.

        Args:
            path: The file, relative to the DAG folder.
            slots: What is counted of parses. The caller has taken one for this call; each process that parses the file
                beside another one takes one more.

        Raises:
            ParseTimeout: The parse did not end in time, not even by its own guard.
            ParseCrashed: The parse ended without a report.
        """
        ...

    async def warm_up(self, progress: ReadingProgress) -> None:
        """Once the folder is read, do ahead what the first parse of a saved file would wait for."""
        ...


def report_of_error(path: str, error: FileError) -> ParseReport:
    """Return the report of a file that has nothing but this error."""
    return ParseReport(schema_version=SCHEMA_VERSION, path=path, errors=(error,))


def report_of_failure(path: str, exc: SandboxError) -> ParseReport:
    """Return the report of a parse that raised."""
    kind = "timeout" if isinstance(exc, ParseTimeout) else "crash"
    return report_of_error(path, FileError(kind, str(exc)))
