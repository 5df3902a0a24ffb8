"""The progress of parses, for callers that wait for the folder or for a DAG, for health, and for the log."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import anyio

from asynsched.clock import Clock
from asynsched.health import LongParse
from asynsched.loggers import get_logger
from asynsched.metrics.base import Metrics
from asynsched.serialization.schema import DOUBTFUL, MOVED, NO_EFFECT
from asynsched.store.dags.dags import get_dag
from asynsched.store.dags.parse_results import StoredFile
from asynsched.store.database import Database
from asynsched.store.schema import DagFileRow, ImportErrorRow

log = get_logger(__name__)

LONG_SECONDS = 2.0
"""A parse that takes longer is reported."""
WARNINGS = {DOUBTFUL: "file.doubtful", NO_EFFECT: "file.arguments_ignored", MOVED: "file.written_for_airflow_2"}
"""The kinds of warnings that are logged, each with its event."""


class ReadingProgress:
    """Wakes callers after each step of the reading. `is_complete` once every file was parsed and stored."""

    def __init__(self) -> None:
        self.is_complete = False
        self._step = anyio.Event()

    def note(self, *, is_idle: bool) -> None:
        """Note a step. `is_idle`: all files known by now are read."""
        self.is_complete = self.is_complete or is_idle
        step, self._step = self._step, anyio.Event()
        step.set()

    async def step(self) -> None:
        await self._step.wait()

    async def until_read(self) -> None:
        while not self.is_complete:
            await self._step.wait()

    async def until_known(self, database: Database, dag_id: str) -> None:
        """Wait until the DAG exists, or the folder is read. Once the folder is read, this returns at once."""
        while not self.is_complete:
            step = self._step
            found = await database.read(get_dag, dag_id)
            if found is not None and found.is_active:
                return
            await step.wait()


class ParsesUnderWay:
    """Tracks which files are being parsed, and logs `file.parsing` once for each parse that takes long.

    Any thread may ask for `long_ones`.
    """

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._began_at: dict[str, float] = {}
        self._not_logged: dict[str, float] = {}

    def begin(self, path: str) -> None:
        self._began_at[path] = self._not_logged[path] = self._clock.monotonic()

    def end(self, path: str) -> None:
        self._began_at.pop(path, None)
        self._not_logged.pop(path, None)

    def long_ones(self) -> tuple[LongParse, ...]:
        return self._long(list(self._began_at.items()))

    def log_long_ones(self, now: datetime) -> datetime | None:
        """Log the parses that have become long; return when the next one may, None without any."""
        for parse in self._long(list(self._not_logged.items())):
            del self._not_logged[parse.file]
            log.info("file.parsing", file=parse.file, seconds=round(parse.seconds), limit_seconds=parse.limit_seconds)
        began_at = min(self._not_logged.values(), default=None)
        if began_at is None:
            return None
        # A microsecond more: a timedelta is rounded, and a tick that comes too early would repeat itself at once.
        return now + timedelta(seconds=began_at + LONG_SECONDS - self._clock.monotonic(), microseconds=1)

    def _long(self, began: list[tuple[str, float]]) -> tuple[LongParse, ...]:
        at = self._clock.monotonic()
        return tuple(
            LongParse(path, round(at - began_at, 3), self._limit_seconds)
            for path, began_at in began
            if at - began_at >= LONG_SECONDS
        )


class ParseLog:
    """Logs `file.parsed`, `file.removed`, `file.failed`, `file.statistics` and the events of WARNINGS.

    `interval`: time between two rounds of statistics. The first round begins `now`; zero means that there are none.
    """

    def __init__(self, interval: timedelta, now: datetime) -> None:
        self._interval = interval
        self.next_statistics_at: datetime | None = now + interval if interval else None
        self._logged: dict[str, frozenset[str]] = {}
        self._remembered: dict[str, tuple[ImportErrorRow, ...]] = {}

    def remember(self, errors: Mapping[str, tuple[ImportErrorRow, ...]]) -> None:
        """Take in the errors that were stored before the start."""
        self._remembered = dict(errors)

    def still_failing(self, path: str) -> None:
        """Log once the errors that a file had before the start, if it is not parsed again.

        What is no mistake was logged when the file was parsed.
        """
        remembered = self._remembered.pop(path, ())
        self._failed(path, [error for error in remembered if error.kind not in (MOVED, NO_EFFECT)])

    def stored(self, file: StoredFile, metrics: Metrics) -> None:
        """Log the stored outcome of a file, and count it in the metrics."""
        self._remembered.pop(file.path, None)
        if file.row is None:
            self._logged.pop(file.path, None)
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
        logged = self._logged.get(path, frozenset())
        for error in errors:
            if error.message not in logged:
                event = WARNINGS[error.kind] if error.is_warning else "file.failed"
                log.warning(event, file=path, line=error.line, kind=error.kind, message=error.message)
        if errors:
            self._logged[path] = frozenset(error.message for error in errors)
        else:
            self._logged.pop(path, None)
