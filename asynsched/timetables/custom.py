"""An author's own timetable, as the scheduler knows it: the runs that it gave ahead of time.

The class is user code. The process that parses its DAG file asks it for the next runs and hands them over as a plan;
here they are used as they come due. Where the plan does not reach, PlanNeeded says that the file is to be asked anew.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct

from asynsched.errors import PlanNeeded
from asynsched.timetables.base import DagRunInfo, DataInterval, KnownTimetable, TimeRestriction

MAX_PLANNED = 100_000
"""Most runs of a plan."""
PUNCTUAL = timedelta(minutes=1)
"""A run that was planned ahead and is later than this is asked about again, unless all missed runs are made up for."""

Moment = Annotated[datetime, Meta(tz=True)]


class PlannedInterval(Struct, frozen=True):
    """A data interval."""

    start: Moment
    end: Moment

    def value(self) -> DataInterval:
        """Return it as timetables have it."""
        return DataInterval(self.start, self.end)


class PlannedRun(Struct, frozen=True):
    """A run that a timetable gave."""

    run_after: Moment
    interval: PlannedInterval


class TimetablePlan(Struct, frozen=True, omit_defaults=True):
    """The runs that follow one another after `after`, as the timetable gave them at `asked_at`."""

    asked_at: Moment
    after: PlannedInterval | None = None
    """Data interval of the last run that was assumed; None: there was none."""
    runs: Annotated[tuple[PlannedRun, ...], Meta(max_length=MAX_PLANNED)] = ()
    is_complete: bool = False
    """The timetable said that no further run follows."""


class CustomTimetable(KnownTimetable):
    """A timetable of an author's own.

    Args:
        name: Of its class.
        fields: What tells it from others of its class.
        summary: What the class says.
        description: What the class says.
        can_be_scheduled: What the class says.
        active_runs_limit: What the class says.
        plan: The runs that it gave.
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
        """Return the same timetable, with these runs."""
        known = {name: value for name, value in self.serialize().items() if name != "kind"}
        return CustomTimetable(**known, plan=plan)

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        """See `KnownTimetable`. Raises PlanNeeded when the plan does not have the answer, or has it no longer."""
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
        """Return how many runs the plan has after `last`; the greatest number there is when none can follow them."""
        position = self._position_after(last)
        if self._plan is None or position is None:
            return 0
        return MAX_PLANNED if self._plan.is_complete else len(self._plan.runs) - position

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Raises PlanNeeded: its file must be asked for each."""
        raise PlanNeeded(self._name)

    def _position_after(self, last: DataInterval | None) -> int | None:
        """Return where the plan goes on after `last`; None: it does not have that."""
        if self._plan is None:
            return None
        before = [self._plan.after, *(run.interval for run in self._plan.runs)]
        intervals = [None if interval is None else interval.value() for interval in before]
        return intervals.index(last) if last in intervals else None
