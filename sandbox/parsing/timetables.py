"""Asks a timetable that is the author's own for the next runs, in the process that runs its DAG file."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from asynsched.authoring.dag import DAG
from asynsched.authoring.timezone import coerce_datetime
from asynsched.errors import TimetableError
from asynsched.serialization.decode import restriction
from asynsched.serialization.schema import SerializedDag, TimetableQuestion
from asynsched.timetables import (
    DagRunInfo,
    DataInterval,
    PlannedInterval,
    PlannedRun,
    TimeRestriction,
    Timetable,
    TimetablePlan,
)
from asynsched.timetables.assets import time_part
from asynsched.timetables.known import asked_at

T = TypeVar("T")
MAX_MISSED = 100_000
"""Missed runs that are looked past for `catchup="latest"`."""


class AskedTimetable:
    """A DAG's timetable, asked with the clock standing still.

    Every method raises TimetableError when the timetable raises or gives nonsense; the message names the DAG.

    Args:
        dag: The DAG as its author made it.
        serialized: The same as it will be stored.
        now: What time it is, aware UTC.
    """

    def __init__(self, dag: DAG, serialized: SerializedDag, now: datetime) -> None:
        self._timetable: Timetable = time_part(dag.timetable)
        self._who = f"DAG {dag.dag_id!r}: its timetable {type(self._timetable).__name__}"
        self._bounds = restriction(serialized)
        self._now = now

    def plan(self, question: TimetableQuestion) -> TimetablePlan:
        """Return the runs that follow one another after the last one."""
        last = None if question.last is None else question.last.value()
        after, before, is_complete = question.last, None, False
        runs: list[PlannedRun] = []
        while len(runs) < question.n_runs:
            info = self._following(last, before)
            if info is None:
                is_complete = True
                break
            last, before = info.data_interval, info
            interval = PlannedInterval(*info.data_interval)
            if question.since is not None and info.run_after < question.since:
                after = interval
                continue
            runs.append(PlannedRun(info.run_after, interval))
            if question.until is not None and info.run_after > question.until:
                break
        return TimetablePlan(asked_at=self._now, after=after, runs=tuple(runs), is_complete=is_complete)

    def manual_interval(self, at: datetime) -> PlannedInterval:
        """Return the data interval of a run that is triggered at an instant."""
        found = self._call(lambda: self._timetable.infer_manual_data_interval(run_after=coerce_datetime(at)))
        return PlannedInterval(*self._checked_interval(found))

    def _following(self, last: DataInterval | None, before: DagRunInfo | None) -> DagRunInfo | None:
        """Return the run after `last`; with `catchup="latest"`, the newest of those that are due."""
        info = self._next(last, before)
        if self._bounds.catchup != "latest" or info is None:
            return info
        for _ in range(MAX_MISSED):
            following = self._next(info.data_interval, info) if info.run_after <= self._now else None
            if following is None or following.run_after > self._now:
                return info
            info = following
        raise TimetableError(f"{self._who} gives more than {MAX_MISSED} missed runs")

    def _next(self, last: DataInterval | None, before: DagRunInfo | None) -> DagRunInfo | None:
        bounds = TimeRestriction(
            coerce_datetime(self._bounds.earliest), coerce_datetime(self._bounds.latest), bool(self._bounds.catchup)
        )
        shown = None if last is None else DataInterval(coerce_datetime(last.start), coerce_datetime(last.end))
        found = self._call(
            lambda: self._timetable.next_dagrun_info(last_automated_data_interval=shown, restriction=bounds)
        )
        if found is None:
            return None
        info = DagRunInfo(self._instant("run_after", found), DataInterval(*self._checked_interval(found.data_interval)))
        if last is not None and info.data_interval.start <= last.start:
            raise TimetableError(
                f"{self._who} gives the data interval from {info.data_interval.start.isoformat()} after that from"
                f" {last.start.isoformat()}; each must start later than the one before"
            )
        if before is not None and info.run_after < before.run_after:
            raise TimetableError(
                f"{self._who} gives run_after {info.run_after.isoformat()} after {before.run_after.isoformat()};"
                " a run must not be due earlier than the one before"
            )
        return info

    def _call(self, question: Callable[[], T]) -> T:
        """Run code of the author's."""
        try:
            with asked_at(self._now):
                return question()
        except Exception as exc:
            raise TimetableError(f"{self._who} raised {type(exc).__name__}: {exc}") from exc

    def _checked_interval(self, interval: Any) -> tuple[datetime, datetime]:
        start, end = self._instant("start", interval), self._instant("end", interval)
        if end < start:
            raise TimetableError(
                f"{self._who} gives a data interval that ends at {end.isoformat()}, before it starts at"
                f" {start.isoformat()}"
            )
        return start, end

    def _instant(self, name: str, answer: Any) -> datetime:
        value = getattr(answer, name, None)
        if not isinstance(value, datetime):
            raise TimetableError(f"{self._who} gives something whose {name} is no datetime: {answer!r:.200}")
        if value.utcoffset() is None:
            raise TimetableError(f"{self._who} gives the naive date {value.isoformat()} as {name}; give it a time zone")
        return datetime.fromisoformat(value.isoformat()).astimezone(UTC)
