"""What the log says of parses: each parse, each distinct error once, and statistics if they are asked for."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from asynsched.health import LongParse
from asynsched.metrics.base import Metrics
from asynsched.serialization.schema import DOUBTFUL, NO_EFFECT
from asynsched.store.dags.files import DagFileRow, ImportErrorRow
from asynsched.store.dags.parse_results import Stored

log = structlog.get_logger(__name__)

WARNINGS = {DOUBTFUL: "file.doubtful", NO_EFFECT: "file.arguments_ignored"}
"""The kinds of warnings that are told, each with its event."""


class ParseLog:
    """Logs `file.parsing`, `file.parsed`, `file.removed`, `file.failed`, `file.statistics` and the events of WARNINGS.

    Args:
        interval: Time between two rounds of statistics; zero: none.
        now: When the first interval begins.
    """

    def __init__(self, interval: timedelta, now: datetime) -> None:
        self._interval = interval
        self.next_statistics_at: datetime | None = now + interval if interval else None
        self._told: dict[str, frozenset[str]] = {}
        self._remembered: dict[str, tuple[ImportErrorRow, ...]] = {}

    def remember(self, errors: Mapping[str, tuple[ImportErrorRow, ...]]) -> None:
        """Take in the errors that were stored before the start."""
        self._remembered = dict(errors)

    def still_failing(self, path: str) -> None:
        """Tell once of the errors that a file, which is not parsed again, had before the start.

        Arguments without effect were reported when the file was parsed.
        """
        remembered = self._remembered.pop(path, ())
        self._failed(path, [error for error in remembered if error.kind != NO_EFFECT])

    def long_parses(self, parses: Iterable[LongParse]) -> None:
        """Tell of parses that have begun to take long."""
        for parse in parses:
            log.info("file.parsing", file=parse.file, seconds=round(parse.seconds), limit_seconds=parse.limit_seconds)

    def stored(self, file: Stored, metrics: Metrics) -> None:
        """Tell what was stored of a file, and give its figures."""
        self._remembered.pop(file.path, None)
        if file.row is None:
            self._told.pop(file.path, None)
            if file.changes.removed:
                log.info("file.removed", file=file.path, dags=list(file.changes.removed))
            return
        self._failed(file.path, file.errors)
        metrics.time("dag_processing.last_duration", file.row.parse_seconds, file.path)
        if any(error.kind == "timeout" for error in file.errors):
            metrics.count("dag_processing.processor_timeouts", file.path)
        if not file.row.n_errors:
            log.info("file.parsed", file=file.path, n_dags=file.row.n_dags, seconds=round(file.row.parse_seconds, 3))

    def statistics(self, files: Iterable[DagFileRow], now: datetime) -> None:
        """Log a line for each file when the interval has passed (Airflow: print_stats_interval)."""
        if self.next_statistics_at is None or now < self.next_statistics_at:
            return
        self.next_statistics_at = now + self._interval
        for file in files:
            log.info(
                "file.statistics",
                file=file.path,
                parsed_at=file.parsed_at.isoformat(),
                seconds=round(file.parse_seconds, 3),
                n_dags=file.n_dags,
                n_errors=file.n_errors,
            )

    def _failed(self, path: str, found: Sequence[ImportErrorRow]) -> None:
        errors = [error for error in found if not error.is_warning or error.kind in WARNINGS]
        told = self._told.get(path, frozenset())
        for error in errors:
            if error.message not in told:
                event = WARNINGS[error.kind] if error.is_warning else "file.failed"
                log.warning(event, file=path, line=error.line, kind=error.kind, message=error.message)
        if errors:
            self._told[path] = frozenset(error.message for error in errors)
        else:
            self._told.pop(path, None)
