"""A user's timetable as the scheduler knows it: the runs that it returned in advance.

The class is user code. The process that parses its DAG file asks it for the next runs, and passes them on as a plan,
which the scheduler uses as they come due. If the plan does not reach far enough, PlanNeeded requests another parse.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct

from asynsched.errors import PlanNeeded
from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction

MAX_PLANNED = 100_000
"""The largest number of runs in a plan."""
PUNCTUAL = timedelta(minutes=1)
"""If a run that was planned in advance is later than this, the timetable is asked again, unless `catchup=True`."""

Moment = Annotated[datetime, Meta(tz=True)]


class PlannedInterval(Struct, frozen=True):
    """A data interval."""

    start: Moment
    end: Moment

    def value(self) -> DataInterval:
        """Return the DataInterval."""
        return DataInterval(self.start, self.end)


class PlannedRun(Struct, frozen=True):
    """A run that a timetable returned."""

    run_after: Moment
    interval: PlannedInterval


class TimetablePlan(Struct, frozen=True, omit_defaults=True):
    """Consecutive runs after `after`, which the timetable returned at `asked_at`."""

    asked_at: Moment
    after: PlannedInterval | None = None
    """The data interval of the run before the plan; None for a new DAG."""
    runs: Annotated[tuple[PlannedRun, ...], Meta(max_length=MAX_PLANNED)] = ()
    is_complete: bool = False
    """Whether no run follows the plan."""


class CustomTimetable(KnownTimetable):
    """A user's timetable.

    Args:
        name: The name of its class.
        fields: The result of its `serialize`.
        summary: The value that the class defines, like the next three.
        description: See `Timetable`.
        can_be_scheduled: See `Timetable`.
        active_runs_limit: See `Timetable`.
        plan: The runs that it returned.
    """

    kind = "custom"

    def __init__(
        self,
        name: str,
        *,
        fields: dict[str, Any],
        summary: str,
        description: str = "",
        can_be_scheduled: bool = True,
        active_runs_limit: int | None = None,
        plan: TimetablePlan | None = None,
    ) -> None:
        self._name = name
        self._fields = fields
        self._summary = summary
        self._description = description
        self.can_be_scheduled = can_be_scheduled
        self.active_runs_limit = active_runs_limit
        self._plan = plan

    @property
    def summary(self) -> str:
        return self._summary

    @property
    def description(self) -> str:
        return self._description

    def serialize(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self._name,
            "fields": self._fields,
            "summary": self._summary,
            "description": self._description,
            "can_be_scheduled": self.can_be_scheduled,
            "active_runs_limit": self.active_runs_limit,
        }

    def planned(self, plan: TimetablePlan | None) -> "CustomTimetable":
        """Return a copy with another plan."""
        known = {name: value for name, value in self.serialize().items() if name != "kind"}
        return CustomTimetable(**known, plan=plan)

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        """Return the next run of the plan. Raises PlanNeeded if the plan has no answer, or an outdated one."""
        if not self.can_be_scheduled:
            return None
        plan = self._plan
        position = self._position_after(last)
        if plan is None or position is None:
            raise PlanNeeded(self._name)
        if position == len(plan.runs):
            if plan.is_complete:
                return None
            raise PlanNeeded(self._name)
        run = plan.runs[position]
        was_ahead = plan.asked_at < run.run_after
        if was_ahead and now - run.run_after > PUNCTUAL and restriction.catchup is not True:
            raise PlanNeeded(self._name)
        return DagRunInfo(run.run_after, run.interval.value())

    def n_left(self, last: DataInterval | None) -> int:
        """Return the number of runs in the plan after `last`; MAX_PLANNED if no run follows the plan."""
        position = self._position_after(last)
        if self._plan is None or position is None:
            return 0
        return MAX_PLANNED if self._plan.is_complete else len(self._plan.runs) - position

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Raise PlanNeeded: only a parse of the file can answer."""
        raise PlanNeeded(self._name)

    def _position_after(self, last: DataInterval | None) -> int | None:
        """Return the index in the plan of the run after `last`; None if `last` is unknown."""
        if self._plan is None:
            return None
        before = [self._plan.after, *(run.interval for run in self._plan.runs)]
        intervals = [None if interval is None else interval.value() for interval in before]
        return intervals.index(last) if last in intervals else None
