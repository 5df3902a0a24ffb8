"""Timetables read from their serialized form, which a process that ran user code wrote."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import TimetableError
from asynsched.timetables.base import KnownTimetable
from asynsched.timetables.cron import MAX_EXPRESSION_LENGTH, FoldPolicy, GapPolicy
from asynsched.timetables.custom import CustomTimetable
from asynsched.timetables.delta import LONGEST
from asynsched.timetables.events import MAX_EVENTS, EventsTimetable
from asynsched.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from asynsched.timetables.simple import ContinuousTimetable, NullTimetable, OnceTimetable
from asynsched.timetables.trigger import (
    MAX_EXPRESSIONS,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from asynsched.timetables.zones import MAX_ZONE_LENGTH

if TYPE_CHECKING:
    from asynsched.timetables.delta import AnyDelta

_Expression = Annotated[str, Meta(max_length=MAX_EXPRESSION_LENGTH)]
_Zone = Annotated[str, Meta(max_length=MAX_ZONE_LENGTH)]
_Seconds = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())]
_Whole = Annotated[int, Meta(ge=-100_000, le=100_000)]
_Part = Annotated[float, Meta(ge=-1e15, le=1e15)]
_Text = Annotated[str, Meta(max_length=1000)]
_Moment = Annotated[datetime, Meta(tz=True)]


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


def _delta(form: float | _Relative) -> "AnyDelta":
    return form.value() if isinstance(form, _Relative) else timedelta(seconds=form)


class _Null(Struct, tag_field="kind", tag="null", forbid_unknown_fields=True):
    def timetable(self) -> KnownTimetable:
        return NullTimetable()


class _Once(Struct, tag_field="kind", tag="once", forbid_unknown_fields=True):
    def timetable(self) -> KnownTimetable:
        return OnceTimetable()


class _Continuous(Struct, tag_field="kind", tag="continuous", forbid_unknown_fields=True):
    def timetable(self) -> KnownTimetable:
        return ContinuousTimetable()


class _OptionsOfCronTriggers(Struct, kw_only=True):
    timezone: _Zone
    interval: _Seconds | _Relative = 0.0
    run_immediately: bool | _Seconds = False
    gap: GapPolicy | None = None
    fold: FoldPolicy | None = None

    def options(self) -> dict[str, Any]:
        return {
            "timezone": self.timezone,
            "interval": _delta(self.interval),
            "run_immediately": _run_immediately(self.run_immediately),
            "gap": self.gap,
            "fold": self.fold,
        }


class _CronTrigger(_OptionsOfCronTriggers, tag_field="kind", tag="cron_trigger", forbid_unknown_fields=True):
    expression: _Expression

    def timetable(self) -> KnownTimetable:
        return CronTriggerTimetable(self.expression, **self.options())


class _MultipleCronTrigger(
    _OptionsOfCronTriggers, tag_field="kind", tag="multiple_cron_trigger", forbid_unknown_fields=True
):
    expressions: Annotated[list[_Expression], Meta(max_length=MAX_EXPRESSIONS)]

    def timetable(self) -> KnownTimetable:
        return MultipleCronTriggerTimetable(*self.expressions, **self.options())


class _CronDataInterval(Struct, tag_field="kind", tag="cron_data_interval", forbid_unknown_fields=True):
    expression: _Expression
    timezone: _Zone
    gap: GapPolicy | None = None
    fold: FoldPolicy | None = None

    def timetable(self) -> KnownTimetable:
        return CronDataIntervalTimetable(self.expression, self.timezone, gap=self.gap, fold=self.fold)


class _DeltaTrigger(Struct, tag_field="kind", tag="delta_trigger", forbid_unknown_fields=True):
    delta: _Seconds | _Relative
    interval: _Seconds | _Relative = 0.0

    def timetable(self) -> KnownTimetable:
        return DeltaTriggerTimetable(_delta(self.delta), interval=_delta(self.interval))


class _DeltaDataInterval(Struct, tag_field="kind", tag="delta_data_interval", forbid_unknown_fields=True):
    delta: _Seconds | _Relative

    def timetable(self) -> KnownTimetable:
        return DeltaDataIntervalTimetable(_delta(self.delta))


class _Events(Struct, tag_field="kind", tag="events", forbid_unknown_fields=True):
    event_dates: Annotated[list[_Moment], Meta(max_length=MAX_EVENTS)]
    restrict_to_events: bool = False
    description: Annotated[str, Meta(max_length=1000)] | None = None

    def timetable(self) -> KnownTimetable:
        return EventsTimetable(self.event_dates, self.restrict_to_events, description=self.description)


class _Custom(Struct, tag_field="kind", tag="custom", forbid_unknown_fields=True):
    name: _Text
    fields: dict[str, Any]
    summary: _Text
    description: _Text = ""
    can_be_scheduled: bool = True
    active_runs_limit: Annotated[int, Meta(ge=1)] | None = None

    def timetable(self) -> KnownTimetable:
        return CustomTimetable(**msgspec.structs.asdict(self))


def _run_immediately(form: bool | float) -> bool | timedelta:
    return form if isinstance(form, bool) else timedelta(seconds=form)


_Form = (
    _Null
    | _Once
    | _Continuous
    | _CronTrigger
    | _MultipleCronTrigger
    | _CronDataInterval
    | _DeltaTrigger
    | _DeltaDataInterval
    | _Events
    | _Custom
)


def decode(data: dict[str, Any]) -> KnownTimetable:
    """Return the timetable from the result of `KnownTimetable.serialize`.

    Raises:
        TimetableError: `data` is not a timetable, or has an invalid schedule; the message is one line.
    """
    try:
        form: _Form = msgspec.convert(data, _Form)
    except msgspec.ValidationError as exc:
        raise TimetableError(f"a serialized timetable is malformed: {exc}") from exc
    try:
        return form.timetable()
    except (ValueError, OverflowError, TypeError) as exc:
        raise TimetableError(f"a serialized timetable of kind {data['kind']!r} is invalid: {exc}") from exc
