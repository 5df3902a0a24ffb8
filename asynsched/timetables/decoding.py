"""Timetables read from their serialized form, which a process that ran user code wrote; among them users' own.

A user's class is user code. The process that parses its DAG file asks it for the next runs, and passes them on as a
plan, which the scheduler uses as they come due. If the plan does not reach far enough, PlanNeeded requests another
parse.
"""

from copy import copy
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self, Union

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import PlanNeeded, TimetableError
from asynsched.timetables.base import PUNCTUAL, DagRunInfo, DataInterval, KnownTimetable, TimeRestriction
from asynsched.timetables.cron import MAX_EXPRESSION_LENGTH, FoldPolicy, GapPolicy
from asynsched.timetables.delta import LONGEST
from asynsched.timetables.own_partitions import AssetAnswers, Moment
from asynsched.timetables.partitions import ISO_FORMAT
from asynsched.timetables.repeating import (
    MAX_EXPRESSIONS,
    MAX_OFFSET,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from asynsched.timetables.simple import (
    MAX_EVENTS,
    ContinuousTimetable,
    EventsTimetable,
    NullTimetable,
    OnceTimetable,
    PartitionedAtRuntime,
)
from asynsched.timetables.zones import MAX_ZONE_LENGTH

if TYPE_CHECKING:
    from asynsched.timetables.delta import AnyDelta

MAX_PLANNED = 100_000
"""The largest number of runs in a plan."""

RUN_NAME = r"^(?!(?:\.\.?|latest)\Z)[A-Za-z0-9_.~:+-]{0,250}\Z"
"""The names that an author's timetable may give runs, and the empty one."""
RunName = Annotated[str, Meta(pattern=RUN_NAME)]


class PlannedInterval(Struct, frozen=True):
    """A data interval."""

    start: Moment
    end: Moment

    def value(self) -> DataInterval:
        """Return the DataInterval."""
        return DataInterval(self.start, self.end)


class PlannedRun(Struct, frozen=True, omit_defaults=True):
    """A run that a timetable returned; `run_id` is empty unless its code names runs."""

    run_after: Moment
    interval: PlannedInterval
    run_id: RunName = ""

    @classmethod
    def of(cls, info: DagRunInfo) -> Self:
        """Return the run as it is sent to and from the process of a parse."""
        return cls(info.run_after, PlannedInterval(*info.data_interval), info.run_id)

    def value(self) -> DagRunInfo:
        """Return the DagRunInfo."""
        return DagRunInfo(self.run_after, self.interval.value(), run_id=self.run_id)


class TimetablePlan(Struct, frozen=True, omit_defaults=True, dict=True):
    """What user code of a DAG's schedule has answered at `asked_at`.

    Of a user's timetable: consecutive runs after `after`.
    """

    asked_at: Moment
    after: PlannedInterval | None = None
    """The data interval of the run before the plan; None for a new DAG."""
    runs: Annotated[tuple[PlannedRun, ...], Meta(max_length=MAX_PLANNED)] = ()
    is_complete: bool = False
    """Whether no run follows the plan."""
    names_runs: bool = False
    """Whether the timetable gives runs names of its own."""
    partitions: tuple[AssetAnswers, ...] = ()
    """Of the partition mappers of a user's own."""

    @cached_property
    def positions(self) -> dict[DataInterval | None, int]:
        """The index of the run that follows a data interval, or that of a new DAG."""
        before = (self.after, *(run.interval for run in self.runs))
        found: dict[DataInterval | None, int] = {}
        for position, interval in enumerate(before):
            found.setdefault(None if interval is None else interval.value(), position)
        return found


class CustomTimetable(KnownTimetable):
    """A user's timetable.

    Args:
        name: The name of its class.
        fields: The result of its `serialize`.
        plan: The runs that it returned.
    """

    kind = "custom"
    summary = ""
    description = ""

    def __init__(
        self,
        name: str,
        *,
        fields: dict[str, Any],
        summary: str,
        description: str = "",
        periodic: bool = True,
        can_be_scheduled: bool = True,
        active_runs_limit: int | None = None,
        plan: TimetablePlan | None = None,
    ) -> None:
        self.name = name
        self.fields = fields
        self.summary = summary
        self.description = description
        self.periodic = periodic
        self.can_be_scheduled = can_be_scheduled
        self.active_runs_limit = active_runs_limit
        self._plan = plan

    def serialize(self) -> dict[str, Any]:
        names = ("kind", "name", "fields", "summary", "description", "can_be_scheduled", "active_runs_limit")
        # Versions that were stored without it are the same.
        return {name: getattr(self, name) for name in names} | ({} if self.periodic else {"periodic": False})

    def planned(self, plan: TimetablePlan | None) -> "CustomTimetable":
        """Return a copy with another plan."""
        other = copy(self)
        other._plan = plan  # noqa: SLF001 - of the same class
        return other

    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        """Return the next run of the plan. Raises PlanNeeded if the plan has no answer, or an outdated one."""
        if not self.can_be_scheduled:
            return None
        plan = self._plan
        position = self._position_after(last)
        if plan is None or position is None:
            raise PlanNeeded(self.name)
        if position == len(plan.runs):
            if plan.is_complete:
                return None
            raise PlanNeeded(self.name)
        run = plan.runs[position]
        was_ahead = plan.asked_at < run.run_after
        if was_ahead and now - run.run_after > PUNCTUAL and restriction.catchup is not True:
            raise PlanNeeded(self.name)
        return run.value()

    def n_left(self, last: DataInterval | None) -> int:
        """Return the number of runs in the plan after `last`; MAX_PLANNED if no run follows the plan."""
        position = self._position_after(last)
        if self._plan is None or position is None:
            return 0
        return MAX_PLANNED if self._plan.is_complete else len(self._plan.runs) - position

    def manual_interval(self, run_after: datetime) -> DataInterval:
        """Raise PlanNeeded: only a parse of the file can answer."""
        raise PlanNeeded(self.name)

    def _position_after(self, last: DataInterval | None) -> int | None:
        """Return the index in the plan of the run after `last`; None if `last` is unknown."""
        return None if self._plan is None else self._plan.positions.get(last)


_Expression = Annotated[str, Meta(max_length=MAX_EXPRESSION_LENGTH)]
_Zone = Annotated[str, Meta(max_length=MAX_ZONE_LENGTH)]
_Seconds = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())]
_Whole = Annotated[int, Meta(ge=-100_000, le=100_000)]
_Part = Annotated[float, Meta(ge=-1e15, le=1e15)]
_Text = Annotated[str, Meta(max_length=1000)]


class _Relative(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A relativedelta: relative parts in the plural, absolute ones in the singular."""

    years: _Whole = 0
    months: _Whole = 0
    days: _Part = 0
    leapdays: _Whole = 0
    hours: _Part = 0
    minutes: _Part = 0
    seconds: _Part = 0
    microseconds: _Part = 0
    year: _Whole | None = None
    month: _Whole | None = None
    day: _Whole | None = None
    hour: _Whole | None = None
    minute: _Whole | None = None
    second: _Whole | None = None
    microsecond: Annotated[int, Meta(ge=0, lt=1_000_000)] | None = None
    weekday: tuple[Annotated[int, Meta(ge=0, le=6)], Annotated[int, Meta(ge=-53, le=53)]] | None = None

    def value(self) -> "AnyDelta":
        from dateutil.relativedelta import relativedelta, weekday

        parts = {name: getattr(self, name) for name in self.__struct_fields__ if name != "weekday"}
        return relativedelta(**parts, weekday=None if self.weekday is None else weekday(*self.weekday))


_EXPRESSION, _ZONE = ("expression", _Expression), ("timezone", _Zone)
_DELTA, _INTERVAL = ("delta", _Seconds | _Relative), ("interval", _Seconds | _Relative, 0.0)
_POLICY = (("gap", GapPolicy | None, None), ("fold", FoldPolicy | None, None))
_OPTIONS_OF_TRIGGERS = (_ZONE, _INTERVAL, ("run_immediately", bool | _Seconds, False), *_POLICY)
_FIELDS: dict[type[KnownTimetable], tuple[Any, ...]] = {
    NullTimetable: (),
    PartitionedAtRuntime: (),
    OnceTimetable: (),
    ContinuousTimetable: (),
    CronTriggerTimetable: (_EXPRESSION, *_OPTIONS_OF_TRIGGERS),
    MultipleCronTriggerTimetable: (
        ("expressions", Annotated[list[_Expression], Meta(max_length=MAX_EXPRESSIONS)]), *_OPTIONS_OF_TRIGGERS,
    ),
    CronPartitionTimetable: (
        _EXPRESSION, _ZONE, ("run_immediately", bool | _Seconds, False),
        ("run_offset", Annotated[int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)], 0), ("key_format", _Text, ISO_FORMAT),
    ),
    CronDataIntervalTimetable: (_EXPRESSION, _ZONE, *_POLICY),
    DeltaTriggerTimetable: (_DELTA, _INTERVAL),
    DeltaDataIntervalTimetable: (_DELTA,),
    EventsTimetable: (
        ("event_dates", Annotated[list[Moment], Meta(max_length=MAX_EVENTS)]),
        ("restrict_to_events", bool, False),
        ("description", _Text | None, None),
    ),
    CustomTimetable: (
        ("name", _Text), ("fields", dict[str, Any]), ("summary", _Text), ("description", _Text, ""),
        ("periodic", bool, True), ("can_be_scheduled", bool, True),
        ("active_runs_limit", Annotated[int, Meta(ge=1)] | None, None),
    ),
}  # fmt: skip
"""The fields of each timetable's serialized form: the arguments of its class, but for the expressions."""
_TIMETABLES: dict[type[Struct], type[KnownTimetable]] = {
    msgspec.defstruct(made.__name__, fields, tag_field="kind", tag=made.kind, forbid_unknown_fields=True): made
    for made, fields in _FIELDS.items()
}
_Form: Any = Union[tuple(_TIMETABLES)]  # noqa: UP007 - of any number of classes


def _timetable(form: Struct) -> KnownTimetable:
    given = msgspec.structs.asdict(form)
    for name in ("delta", "interval", "run_immediately"):
        value = given.get(name)
        if isinstance(value, _Relative):
            given[name] = value.value()
        elif isinstance(value, float):
            given[name] = timedelta(seconds=value)
    expressions = [given.pop("expression")] if "expression" in given else given.pop("expressions", ())
    return _TIMETABLES[type(form)](*expressions, **given)


def decode(data: dict[str, Any]) -> KnownTimetable:
    """Return the timetable from the result of `KnownTimetable.serialize`.

    Raises TimetableError if `data` is not a timetable, or has an invalid schedule; the message is one line.
    """
    try:
        form = msgspec.convert(data, _Form)
    except msgspec.ValidationError as exc:
        raise TimetableError(f"a serialized timetable is malformed: {exc}") from exc
    try:
        return _timetable(form)
    except (ValueError, OverflowError, TypeError) as exc:
        raise TimetableError(f"a serialized timetable of kind {data['kind']!r} is invalid: {exc}") from exc
