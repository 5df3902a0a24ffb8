"""Partitions of assets: mappers from the key of an event to the keys of runs, and how many keys a run waits for.

The classes and their arguments are Airflow's. A mapper, its window and its wait policy are data: the scheduler, which
runs no user code, makes the same objects from their serialized form. A mapper with a part of a user's own class stays
where DAG files are parsed; the scheduler has an OwnMapper in its place, which knows what a parse has answered.

Source: Airflow's `airflow.partition_mappers` and `airflow.timetables.simple.PartitionedAssetTimetable`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from asynsched.errors import KeysNeeded, TimetableError
from asynsched.timetables.simple import AssetTriggeredTimetable
from asynsched.timetables.zones import as_zone, in_zone, instant_of, zone_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set
    from datetime import tzinfo
    from typing import Any, ClassVar

    from asynsched.timetables.asset_condition import AssetCondition
    from asynsched.timetables.own_partitions import AssetAnswers, OfRun

MAX_KEY_LENGTH = 250
"""The longest partition key, in characters (Airflow's limit)."""
MAX_EVENTS_OF_TRY = 1000
"""The largest number of partition keys, and of assets added to aliases, of one try: each makes an event."""
MAX_DOWNSTREAM_KEYS = 1000
"""The largest number of keys that one event is mapped to, unless a mapper sets its own (Airflow's default)."""
ISO_FORMAT = "%Y-%m-%dT%H:%M:%S"
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")


def checked_key(key: object) -> str:
    """Return a partition key if it can be one. Raises ValueError for any other value."""
    if not isinstance(key, str) or not key.strip() or "\0" in key:
        raise ValueError(f"a partition key is a string that is neither blank nor has NUL characters, not {key!r:.100}")
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(f"the partition key {key[:40]!r}… has {len(key)} characters; at most 250 are allowed")
    if _HALF_OF_A_PAIR.search(key):
        raise ValueError(f"the partition key {key!r} has half of a surrogate pair, which no database stores")
    return key


def check_events_of_try(keys: Sequence[object], n_of_aliases: int) -> None:
    """Raise ValueError if a try gives its outlets and aliases too many partition keys or events."""
    if len(keys) + n_of_aliases > MAX_EVENTS_OF_TRY:
        raise ValueError(
            f"a try names at most {MAX_EVENTS_OF_TRY} partition keys and events of aliases in all, not"
            f" {len(keys) + n_of_aliases}: divide them among several tasks, or the instances of a mapped task"
        )
    for key in keys:
        checked_key(key)


class _Described:
    """An object whose serialized form names its class and arguments."""

    arguments: ClassVar[tuple[str, ...]] = ()

    def serialize(self) -> dict[str, Any]:
        """Return the class and the arguments as JSON values."""
        return {"kind": type(self).__name__, **{name: _form_of(getattr(self, name)) for name in self.arguments}}


def _form_of(value: Any) -> Any:
    if isinstance(value, _Described):
        return value.serialize()
    if isinstance(value, list | tuple):
        return [_form_of(item) for item in value]
    return value


def own_classes(value: Any) -> list[str]:
    """Return the names of the classes of a user's own in a mapper and its parts."""
    if isinstance(value, list | tuple):
        return [name for item in value for name in own_classes(item)]
    if not isinstance(value, _Described):
        return []
    kind = type(value)
    if _KINDS.get(kind.__name__) is not kind:
        return [kind.__name__]
    return [name for argument in kind.arguments for name in own_classes(getattr(value, argument))]


# Mappers


class PartitionMapper(_Described):
    """Maps the partition key of an event to the keys of the runs that it counts for. For your own, subclass this.

    A subclass implements `to_downstream`, and `to_partition_date` if its keys stand for dates. Its code never runs in
    the scheduler: the confined process that parses the DAG file is asked what it makes of the keys that have arrived.

    Args:
        max_downstream_keys: The largest number of keys for one event; None for the scheduler's limit of 1000.
    """

    is_rollup: bool = False
    expected_decoded_type: ClassVar[type] = str
    max_downstream_keys: int | None = None

    def __init__(self, *, max_downstream_keys: int | None = None) -> None:
        if max_downstream_keys is not None and (
            not isinstance(max_downstream_keys, int) or isinstance(max_downstream_keys, bool) or max_downstream_keys < 1
        ):
            raise ValueError(f"max_downstream_keys must be a positive integer or None, not {max_downstream_keys!r}")
        self.max_downstream_keys = max_downstream_keys

    def to_downstream(self, key: str) -> str | Iterable[str]:
        """Return the key, or the keys, of the runs that an event with this key counts for. Raises ValueError."""
        raise NotImplementedError(f"{type(self).__name__} has no to_downstream()")

    def decode_downstream(self, downstream_key: str) -> Any:
        """Return the value, for a window, that a run's key stands for."""
        return downstream_key

    def encode_upstream(self, decoded: Any) -> str:
        """Return the key of the events that a value of a window stands for."""
        text: str = decoded
        return text

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the instant at which a run's partition begins; None if the key has no such meaning."""
        return None

    def carry_partition_date(self, source_partition_date: datetime | None) -> datetime | None:
        """Return the partition's date that a run takes over from the run that made the event."""
        return None


class IdentityMapper(PartitionMapper):
    """Leaves the key as it is."""

    arguments = ("max_downstream_keys",)

    def to_downstream(self, key: str) -> str:
        return key

    def carry_partition_date(self, source_partition_date: datetime | None) -> datetime | None:
        return source_partition_date


class AllowedKeyMapper(PartitionMapper):
    """Leaves the key as it is if it is one of some keys; other events count for nothing."""

    arguments = ("allowed_keys", "max_downstream_keys")

    def __init__(self, allowed_keys: list[str], *, max_downstream_keys: int | None = None) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.allowed_keys = [checked_key(key) for key in allowed_keys]

    def to_downstream(self, key: str) -> str:
        if key not in self.allowed_keys:
            raise ValueError(f"the key {key!r} is not one of the allowed keys {', '.join(self.allowed_keys)}")
        return key


class FixedKeyMapper(PartitionMapper):
    """Maps every key to the same one, as the rollup of a SegmentWindow needs it."""

    arguments = ("downstream_key", "max_downstream_keys")

    def __init__(self, downstream_key: str, *, max_downstream_keys: int | None = None) -> None:
        if not isinstance(downstream_key, str) or not downstream_key:
            raise ValueError(f"FixedKeyMapper needs a string that is not empty, not {downstream_key!r}")
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.downstream_key = downstream_key

    def to_downstream(self, key: str) -> str:
        return self.downstream_key


class _OfSeveral(PartitionMapper):
    arguments: ClassVar[tuple[str, ...]] = ("mappers", "max_downstream_keys")

    def __init__(self, *mappers: PartitionMapper, max_downstream_keys: int | None = None) -> None:
        if len(mappers) < 2 or not all(isinstance(mapper, PartitionMapper) for mapper in mappers):
            raise TypeError(f"{type(self).__name__} combines at least two partition mappers")
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.mappers = list(mappers)


class ChainMapper(_OfSeveral):
    """Applies several mappers, one after the other, each to all keys of the one before.

    None of them may give more keys in all than one event may have.
    """

    def to_downstream(self, key: str) -> str | Iterable[str]:
        limit = self.max_downstream_keys or MAX_DOWNSTREAM_KEYS
        keys = [key]
        for mapper in self.mappers:
            each = (found for one in keys for found in keys_of(mapper, one))
            keys = list(islice(each, limit + 1))
            if len(keys) > limit:
                raise ValueError(f"a ChainMapper gives it more than {limit} keys (max_downstream_keys)")
        return keys[0] if len(keys) == 1 else keys

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.mappers[-1].to_partition_date(downstream_key)


class ProductMapper(_OfSeveral):
    """Maps each segment of a composite key, such as `region|time`, with a mapper of its own."""

    arguments = ("mappers", "delimiter", "max_downstream_keys")

    def __init__(self, *mappers: PartitionMapper, delimiter: str = "|", max_downstream_keys: int | None = None) -> None:
        super().__init__(*mappers, max_downstream_keys=max_downstream_keys)
        if not isinstance(delimiter, str) or not delimiter:
            raise ValueError("the delimiter of a ProductMapper is a string that is not empty")
        self.delimiter = delimiter

    def to_downstream(self, key: str) -> str:
        segments = key.split(self.delimiter)
        if len(segments) != len(self.mappers):
            raise ValueError(f"the key {key!r} has {len(segments)} segments, not {len(self.mappers)}")
        mapped = [mapper.to_downstream(segment) for mapper, segment in zip(self.mappers, segments, strict=True)]
        if not all(isinstance(one, str) for one in mapped):
            raise TypeError("the mappers of a ProductMapper must return one key each")
        return self.delimiter.join(map(str, mapped))

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        segments = downstream_key.split(self.delimiter)
        if len(segments) != len(self.mappers):
            return None
        dates = [mapper.to_partition_date(one) for mapper, one in zip(self.mappers, segments, strict=True)]
        known = [date for date in dates if date is not None]
        return known[0] if len(known) == 1 else None


class _StartOfMapper(PartitionMapper):
    """Maps a time to the start of the period that contains it.

    Args:
        timezone: Of the periods, and of keys without an offset.
        input_format: Of the events' keys, for `strptime`.
        output_format: Of the runs' keys, for `strftime`.
    """

    arguments = ("timezone", "input_format", "output_format", "max_downstream_keys")
    expected_decoded_type = datetime
    default_output_format: ClassVar[str]

    def __init__(
        self,
        *,
        timezone: str | tzinfo = "UTC",
        input_format: str = ISO_FORMAT,
        output_format: str | None = None,
        max_downstream_keys: int | None = None,
    ) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        self._zone = as_zone(timezone)
        self.timezone = zone_name(self._zone)
        self.input_format = _checked_format(input_format)
        self.output_format = _checked_format(output_format or self.default_output_format)
        self._check_output_format()

    def _check_output_format(self) -> None:
        """Raise ValueError if keys of the output_format cannot be decoded."""

    def normalize(self, dt: datetime) -> datetime:
        """Return the start of the period."""
        raise NotImplementedError

    def format(self, dt: datetime) -> str:
        """Return the key of a period by its start."""
        return dt.strftime(self.output_format)

    def to_downstream(self, key: str) -> str:
        found = datetime.strptime(key, self.input_format)  # noqa: DTZ007 - most keys have no offset
        return self.format(self.normalize(self._aware(found) if found.tzinfo is None else in_zone(found, self._zone)))

    def decode_downstream(self, downstream_key: str) -> datetime:
        return datetime.strptime(downstream_key, self.output_format)  # noqa: DTZ007 - as above

    def to_partition_date(self, downstream_key: str) -> datetime:
        start = self.normalize(self.decode_downstream(downstream_key))
        return instant_of(start, self._zone) if start.tzinfo is None else start

    def encode_upstream(self, decoded: datetime) -> str:
        naive = decoded if decoded.tzinfo is None else in_zone(decoded, self._zone).replace(tzinfo=None)
        return self._aware(naive).strftime(self.input_format)

    def _aware(self, naive: datetime) -> datetime:
        return in_zone(instant_of(naive, self._zone), self._zone)


class StartOfHourMapper(_StartOfMapper):
    """Maps a time to its hour: `2024-03-13T10:42:15` to `2024-03-13T10`."""

    default_output_format = "%Y-%m-%dT%H"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(minute=0, second=0, microsecond=0)


class StartOfDayMapper(_StartOfMapper):
    """Maps a time to its day: `2024-03-13T10:42:15` to `2024-03-13`."""

    default_output_format = "%Y-%m-%d"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(hour=0, minute=0, second=0, microsecond=0)


class StartOfWeekMapper(_StartOfMapper):
    """Maps a time to the Monday of its week: `2024-03-13T10:42:15` to `2024-03-11 (W11)`."""

    default_output_format = "%Y-%m-%d (W%V)"

    def _check_output_format(self) -> None:
        self._pattern = _pattern_of(self.output_format)

    def normalize(self, dt: datetime) -> datetime:
        return (dt - timedelta(days=dt.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)

    def decode_downstream(self, downstream_key: str) -> datetime:
        parts = _parsed(self._pattern, downstream_key, self.output_format, ("Y", "m", "d"))
        return datetime(parts[0], parts[1], parts[2])  # noqa: DTZ001 - a wall-clock time, as strptime returns it


class StartOfMonthMapper(_StartOfMapper):
    """Maps a time to its month: `2024-03-13T10:42:15` to `2024-03`."""

    default_output_format = "%Y-%m"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


class StartOfQuarterMapper(_StartOfMapper):
    """Maps a time to its quarter: `2024-03-13T10:42:15` to `2024-Q1`. Its output_format may have `{quarter}`."""

    default_output_format = "%Y-Q{quarter}"

    def _check_output_format(self) -> None:
        self._pattern = _pattern_of(self.output_format, quarter="[1-4]")

    def normalize(self, dt: datetime) -> datetime:
        month = (dt.month - 1) // 3 * 3 + 1
        return dt.replace(month=month, day=1, hour=0, minute=0, second=0, microsecond=0)

    def format(self, dt: datetime) -> str:
        return dt.strftime(self.output_format).replace("{quarter}", str((dt.month - 1) // 3 + 1))

    def decode_downstream(self, downstream_key: str) -> datetime:
        year, quarter = _parsed(self._pattern, downstream_key, self.output_format, ("Y", "quarter"))
        return datetime(year, (quarter - 1) * 3 + 1, 1)  # noqa: DTZ001 - as above


class StartOfYearMapper(_StartOfMapper):
    """Maps a time to its year: `2024-03-13T10:42:15` to `2024`."""

    default_output_format = "%Y"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)


_DIRECTIVE = re.compile(r"%([YmdHMSVUW])|\{([^}]*)\}|(.)", re.DOTALL)


def _checked_format(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_KEY_LENGTH or "\0" in text:
        raise ValueError(f"the format of a partition key is a string of 1 to 250 characters, not {text!r:.100}")
    return text


def _pattern_of(output_format: str, **placeholders: str) -> re.Pattern[str]:
    """Return the pattern of keys of a format, with a group for each directive and placeholder. Raises ValueError."""
    parts: list[str] = []
    names: list[str] = []
    for match in _DIRECTIVE.finditer(output_format):
        directive, placeholder, literal = match.groups()
        if literal is not None:
            parts.append(re.escape(literal))
            continue
        name = directive or placeholder
        if not name.isidentifier() or name in names:
            raise ValueError(f"the output_format {output_format!r} has {match[0]!r} twice, or no name in its braces")
        names.append(name)
        digits = r"\d{4}" if name == "Y" else r"\d{2}"
        parts.append(f"(?P<{name}>{digits if directive else placeholders.get(name, r'[^{}]+?')})")
    return re.compile("".join(parts))


def _parsed(pattern: re.Pattern[str], key: str, output_format: str, names: tuple[str, ...]) -> list[int]:
    match = pattern.fullmatch(key)
    if match is None or not set(names) <= match.groupdict().keys():
        needed = ", ".join(f"{{{name}}}" if len(name) > 1 else f"%{name}" for name in names)
        raise ValueError(f"the key {key!r} does not fit the output_format {output_format!r}, which must have {needed}")
    return [int(match[name]) for name in names]


# Windows


class Window(_Described):
    """The values, as the upstream mapper decodes them, that one period consists of.

    For your own, subclass this, and implement `to_upstream`; it runs where the DAG file is parsed.

    Args:
        direction: Whether the period begins at a key (`Window.Direction.FORWARD`) or ends with it.
    """

    class Direction(StrEnum):
        """The direction of a window from a key."""

        BACKWARD = "backward"
        FORWARD = "forward"

    arguments = ("direction",)
    expected_decoded_type: ClassVar[type] = str

    def __init__(self, *, direction: Window.Direction | str = "forward") -> None:
        self.direction = self.Direction(direction)

    def to_upstream(self, decoded_downstream: Any) -> Iterable[Any]:
        """Return the values of a period."""
        raise NotImplementedError(f"{type(self).__name__} has no to_upstream()")

    @property
    def _is_backward(self) -> bool:
        return self.direction is Window.Direction.BACKWARD


class _TimeWindow(Window):
    expected_decoded_type = datetime
    _count: ClassVar[int]
    _step: ClassVar[timedelta | None]
    """None for months, each of which has to begin on its first day."""

    def to_upstream(self, decoded_downstream: datetime) -> list[datetime]:
        start = decoded_downstream
        first = 1 - self._count if self._is_backward else 0
        numbers = range(first, first + self._count)
        if self._step is not None:
            return [start + self._step * number for number in numbers]
        _require_first_day(start, self)
        return [_months_later(start, number) for number in numbers]


class HourWindow(_TimeWindow):
    """The 60 minutes of an hour."""

    _count, _step = 60, timedelta(minutes=1)


class DayWindow(_TimeWindow):
    """The 24 hours of a day. Where the clock changes, use keys in UTC: the day has 24 hours here in any case."""

    _count, _step = 24, timedelta(hours=1)


class WeekWindow(_TimeWindow):
    """The seven days of a week."""

    _count, _step = 7, timedelta(days=1)


class MonthWindow(Window):
    """The days of a month; backward: the days after the first of the month before, up to the first of this month."""

    expected_decoded_type = datetime

    def to_upstream(self, decoded_downstream: datetime) -> list[datetime]:
        start = decoded_downstream
        _require_first_day(start, self)
        if self._is_backward:
            before = _months_later(start, -1)
            return [before + timedelta(days=number + 1) for number in range((start - before).days)]
        return [start + timedelta(days=number) for number in range((_months_later(start, 1) - start).days)]


class QuarterWindow(_TimeWindow):
    """The three months of a quarter."""

    _count, _step = 3, None


class YearWindow(_TimeWindow):
    """The twelve months of a year."""

    _count, _step = 12, None


class SegmentWindow(Window):
    """A fixed set of keys, such as regions.

    Args:
        segments: The keys.
    """

    arguments = ("segments",)

    def __init__(self, segments: Iterable[str]) -> None:
        super().__init__()
        found = list(segments)
        if not found or not all(isinstance(key, str) and key for key in found):
            raise ValueError(f"the segments of a SegmentWindow are keys that are not empty, not {found!r:.100}")
        self.segments = sorted(set(found))

    def to_upstream(self, decoded_downstream: Any) -> frozenset[str]:
        return frozenset(self.segments)


def _require_first_day(start: datetime, window: Window) -> None:
    if start.day != 1:
        raise ValueError(f"{type(window).__name__} needs a period that begins on the first of a month, not {start}")


def _months_later(start: datetime, number: int) -> datetime:
    total = start.month - 1 + number
    return start.replace(year=start.year + total // 12, month=total % 12 + 1)


# Rollup and fan-out


class WaitPolicy(_Described):
    """Decides by the number of keys that have arrived whether a rollup's run is created.

    For your own, subclass this; it runs where the DAG file is parsed.
    """

    def is_satisfied(self, matched: int, expected: int) -> bool:
        """Return whether this number of the expected keys suffices."""
        raise NotImplementedError

    def is_unreachable(self, expected: int) -> bool:
        """Return whether no number of keys suffices."""
        return False


class WaitForAll(WaitPolicy):
    """Waits for all keys of the window."""

    def is_satisfied(self, matched: int, expected: int) -> bool:
        return matched == expected


class MinimumCount(WaitPolicy):
    """Waits for `n` keys; if `n` is negative, for all keys but `-n`."""

    arguments = ("n",)

    def __init__(self, n: int) -> None:
        if not isinstance(n, int) or n == 0:
            raise ValueError(
                f"MinimumCount needs a whole number other than 0, not {n!r}; use WaitForAll() for all keys"
            )
        self.n = n

    def is_satisfied(self, matched: int, expected: int) -> bool:
        return matched >= (self.n if self.n > 0 else max(0, expected + self.n))

    def is_unreachable(self, expected: int) -> bool:
        return self.n > expected


class Progress(NamedTuple):
    """How many keys of a window have arrived, and whether they suffice, or none ever will."""

    n_arrived: int
    n_expected: int
    is_enough: bool
    is_unreachable: bool


class RollupMapper(PartitionMapper):
    """Maps many keys to one, whose run waits until the keys of a window have arrived.

    Args:
        upstream_mapper: Maps each key to the key of its period.
        window: The keys of a period.
        wait_policy: How many of them a run waits for; by default all.
    """

    arguments = ("upstream_mapper", "window", "wait_policy", "max_downstream_keys")
    is_rollup = True

    def __init__(
        self,
        *,
        upstream_mapper: PartitionMapper,
        window: Window,
        wait_policy: WaitPolicy | None = None,
        max_downstream_keys: int | None = None,
    ) -> None:
        if upstream_mapper.expected_decoded_type is not window.expected_decoded_type:
            raise TypeError(
                f"{type(window).__name__} is a window of {window.expected_decoded_type.__name__} values, and"
                f" {type(upstream_mapper).__name__} gives {upstream_mapper.expected_decoded_type.__name__} values"
            )
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.upstream_mapper = upstream_mapper
        self.window = window
        self.wait_policy = WaitForAll() if wait_policy is None else wait_policy

    def to_downstream(self, key: str) -> str | Iterable[str]:
        return self.upstream_mapper.to_downstream(key)

    def to_upstream(self, downstream_key: str) -> frozenset[str]:
        """Return all keys that a run's key consists of. Raises ValueError if it cannot be read."""
        decoded = self.upstream_mapper.decode_downstream(downstream_key)
        return frozenset(map(self.upstream_mapper.encode_upstream, self.window.to_upstream(decoded)))

    def progress(self, downstream_key: str, arrived: Set[str]) -> Progress:
        """Return how far a run's window is. Raises as `to_upstream`."""
        expected = self.to_upstream(downstream_key)
        n_arrived, n_expected = len(arrived & expected), len(expected)
        return Progress(
            n_arrived,
            n_expected,
            self.wait_policy.is_satisfied(n_arrived, n_expected),
            self.wait_policy.is_unreachable(n_expected),
        )

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.upstream_mapper.to_partition_date(downstream_key)


class FanOutMapper(PartitionMapper):
    """Maps one key to the keys of all parts of its period.

    Args:
        upstream_mapper: Maps the key to its period.
        window: The parts of a period.
        downstream_mapper: Gives each part its key; by default that for the window.
    """

    arguments = ("upstream_mapper", "window", "downstream_mapper", "max_downstream_keys")
    default_downstream_mapper_by_window_name: ClassVar[dict[str, type[PartitionMapper]]] = {
        "DayWindow": StartOfHourMapper,
        "WeekWindow": StartOfDayMapper,
        "MonthWindow": StartOfDayMapper,
        "QuarterWindow": StartOfMonthMapper,
        "YearWindow": StartOfMonthMapper,
    }

    def __init__(
        self,
        *,
        upstream_mapper: PartitionMapper,
        window: Window,
        downstream_mapper: PartitionMapper | None = None,
        max_downstream_keys: int | None = None,
    ) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        if downstream_mapper is None:
            default = self.default_downstream_mapper_by_window_name.get(type(window).__name__)
            if default is None:
                raise ValueError(f"FanOutMapper needs a downstream_mapper for a {type(window).__name__}")
            downstream_mapper = default()
        self.upstream_mapper = upstream_mapper
        self.window = window
        self.downstream_mapper = downstream_mapper

    def to_downstream(self, key: str) -> list[str]:
        period = self.upstream_mapper.to_downstream(key)
        if not isinstance(period, str):
            raise TypeError("the upstream_mapper of a FanOutMapper must return one key")
        return [self._key_of(part) for part in self.window.to_upstream(self.upstream_mapper.decode_downstream(period))]

    def _key_of(self, part: Any) -> str:
        if isinstance(self.downstream_mapper, _StartOfMapper):
            return self.downstream_mapper.format(part)
        return part.isoformat() if isinstance(part, datetime) else str(part)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.downstream_mapper.to_partition_date(downstream_key)


class OwnMapper(PartitionMapper):
    """Stands in the scheduler for a mapper that has a part of a user's own class.

    Every method raises KeysNeeded if no parse has answered for the key, and ValueError if the user's code failed.

    Args:
        name: The user's classes, for people.
        is_rollup: Whether it is a RollupMapper.
        answers: What a parse has answered for one asset.
    """

    arguments = ("name", "is_rollup", "max_downstream_keys")

    def __init__(
        self, name: str, is_rollup: bool, *, max_downstream_keys: int | None, answers: AssetAnswers | None = None
    ) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.name = name
        self.is_rollup = bool(is_rollup)
        self._answers = answers

    def answered(self, answers: AssetAnswers | None) -> OwnMapper:
        """Return the mapper with the answers for an asset."""
        return OwnMapper(self.name, self.is_rollup, max_downstream_keys=self.max_downstream_keys, answers=answers)

    def to_downstream(self, key: str) -> list[str]:
        found = None if self._answers is None else self._answers.of_keys.get(key)
        if found is None:
            raise KeysNeeded(self.name)
        if found.error:
            raise ValueError(found.error)
        return list(found.run_keys)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return _in_utc(self._of_run(downstream_key).date)

    def carry_partition_date(self, source_partition_date: datetime | None) -> datetime | None:
        if source_partition_date is None:
            return None
        known = {} if self._answers is None else dict(self._answers.of_dates)
        if source_partition_date not in known:
            raise KeysNeeded(self.name)
        return _in_utc(known[source_partition_date])

    def progress(self, downstream_key: str, arrived: Set[str]) -> Progress:
        """Return how far a run's window is."""
        found = self._of_run(downstream_key)
        if found.error:
            raise ValueError(found.error)
        n_arrived = len(arrived & set(found.window))
        return Progress(n_arrived, len(found.window), n_arrived in found.enough, found.is_unreachable)

    def _of_run(self, run_key: str) -> OfRun:
        found = None if self._answers is None else self._answers.of_runs.get(run_key)
        if found is None:
            raise KeysNeeded(self.name)
        return found


def _in_utc(date: datetime | None) -> datetime | None:
    """Return an instant in UTC; None also for one that is out of the calendar there."""
    try:
        return None if date is None else in_zone(date, UTC)
    except TimetableError:
        return None


def _checked_date(date: object) -> datetime:
    if not isinstance(date, datetime) or date.tzinfo is None:
        raise ValueError(f"to_partition_date gives {date!r}, and not a datetime with a time zone")
    return in_zone(date, UTC)


def keys_of(mapper: PartitionMapper, key: str) -> list[str]:
    """Return the keys that a mapper gives for a key, as a list."""
    found = mapper.to_downstream(key)
    return [found] if isinstance(found, str) else list(found)


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        IdentityMapper, AllowedKeyMapper, FixedKeyMapper, ChainMapper, ProductMapper, StartOfHourMapper,
        StartOfDayMapper, StartOfWeekMapper, StartOfMonthMapper, StartOfQuarterMapper, StartOfYearMapper, RollupMapper,
        FanOutMapper, OwnMapper, HourWindow, DayWindow, WeekWindow, MonthWindow, QuarterWindow, YearWindow,
        SegmentWindow, WaitForAll, MinimumCount,
    )
}  # fmt: skip


def _read(form: Any) -> Any:
    """Return the object of a serialized form."""
    if not isinstance(form, dict):
        return form
    arguments = {name: _read(value) for name, value in form.items() if name != "kind"}
    mappers = [_read(one) for one in arguments.pop("mappers", ())]
    return _KINDS[form["kind"]](*mappers, **arguments)


# Of a schedule


class Partitioning:
    """The mappers of a schedule by partitioned assets.

    Args:
        default: The mapper of assets that have no other.
        by_name: The mappers of others, by their names; `by_uri`: by their URIs.
    """

    def __init__(
        self,
        default: PartitionMapper,
        by_name: dict[str, PartitionMapper] | None = None,
        by_uri: dict[str, PartitionMapper] | None = None,
    ) -> None:
        self.default = default
        self.by_name = by_name or {}
        self.by_uri = by_uri or {}

        self._answers: dict[tuple[str, str], AssetAnswers] = {}

    @property
    def needs_user_code(self) -> bool:
        """Whether only a parse can say what a mapper makes of a key."""
        mappers = (self.default, *self.by_name.values(), *self.by_uri.values())
        return any(isinstance(mapper, OwnMapper) or own_classes(mapper) for mapper in mappers)

    def answered(self, answers: Iterable[AssetAnswers]) -> Partitioning:
        """Return the same mappers, with what a parse has answered for those of a user's own."""
        other = Partitioning(self.default, self.by_name, self.by_uri)
        other._answers = {(one.name, one.uri): one for one in answers}
        return other

    def mapper_of(self, name: str, uri: str) -> PartitionMapper:
        """Return the mapper of an asset, by its name or its URI."""
        mapper = self.by_name.get(name) or self.by_uri.get(uri) or self.default
        return mapper.answered(self._answers.get((name, uri))) if isinstance(mapper, OwnMapper) else mapper

    def date_of_key(self, condition: AssetCondition | None, key: str) -> datetime | None:
        """Return the date that a key has for the mappers of all assets of a schedule.

        None without one, or if they disagree. Raises ValueError if a mapper cannot read the key; KeysNeeded.
        """
        leaves = () if condition is None else condition.leaves()
        named = [(leaf.asset or leaf.asset_ref) for leaf in leaves]
        mappers = [self.mapper_of(one.name, one.uri) for one in named if one is not None]
        dates = {_checked_date(date) for one in mappers if (date := one.to_partition_date(key)) is not None}
        return dates.pop() if len(dates) == 1 else None

    def keys_of_event(self, name: str, uri: str, key: str) -> list[str]:
        """Return the keys of the runs that an event with this key counts for.

        Raises TimetableError with the reason if the key cannot be mapped, or only to too many keys; KeysNeeded.
        """
        mapper = self.mapper_of(name, uri)
        try:
            keys = [checked_key(found) for found in keys_of(mapper, key)]
        except (ValueError, TypeError, OverflowError, TimetableError) as exc:
            raise TimetableError(f"the partition key {key!r} of the asset {name!r} cannot be mapped: {exc}") from exc
        limit = mapper.max_downstream_keys or MAX_DOWNSTREAM_KEYS
        if len(keys) > limit:
            raise TimetableError(
                f"the partition key {key!r} of the asset {name!r} is mapped to {len(keys)} keys; at most {limit} are"
                " allowed (max_downstream_keys)"
            )
        return list(dict.fromkeys(keys))

    def serialize(self) -> dict[str, Any]:
        """Return the mappers as JSON values, an OwnMapper in place of one of a user's."""
        named = {"by_name": self.by_name, "by_uri": self.by_uri}
        forms = {name: {key: _for_scheduler(one) for key, one in mappers.items()} for name, mappers in named.items()}
        return {"default": _for_scheduler(self.default), **forms}


def _for_scheduler(mapper: PartitionMapper) -> dict[str, Any]:
    names = own_classes(mapper)
    if not names:
        return mapper.serialize()
    is_rollup = isinstance(mapper, RollupMapper)
    return OwnMapper(
        ", ".join(dict.fromkeys(names)), is_rollup, max_downstream_keys=mapper.max_downstream_keys
    ).serialize()


def read_partitioning(form: dict[str, Any]) -> Partitioning:
    """Return a schedule's mappers from their serialized form. Raises TimetableError if it is none."""
    import json

    return _partitioning(json.dumps(form, sort_keys=True))


@lru_cache(maxsize=1024)
def _partitioning(form: str) -> Partitioning:
    import json

    known = json.loads(form)
    try:
        named = [{key: _read(one) for key, one in known[name].items()} for name in ("by_name", "by_uri")]
        found = Partitioning(_read(known["default"]), *named)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, TimetableError) as exc:
        raise TimetableError(f"the partition mappers of a schedule are malformed: {exc}") from exc
    if not all(isinstance(one, PartitionMapper) for one in (found.default, *named[0].values(), *named[1].values())):
        raise TimetableError("the partition mappers of a schedule are malformed: one of them is none")
    return found


class PartitionedAssetTimetable(AssetTriggeredTimetable):
    """Runs for each partition key of its assets' events, as soon as the events with that key have arrived.

    Args:
        assets: An asset, an expression of assets, or several of these, all of which are required.
        partition_mapper_config: The mappers from the keys of events to the keys of runs, by asset.
        default_partition_mapper: The mapper of the other assets; by default the key stays as it is.
    """

    summary = "Partitioned Asset"

    def __init__(
        self,
        assets: Any,
        *,
        partition_mapper_config: Mapping[Any, PartitionMapper] | None = None,
        default_partition_mapper: PartitionMapper | None = None,
    ) -> None:
        super().__init__(assets)
        self.partitioning = Partitioning(default_partition_mapper or IdentityMapper())
        mappers = [self.partitioning.default, *(partition_mapper_config or {}).values()]
        if not all(isinstance(mapper, PartitionMapper) for mapper in mappers):
            raise TimetableError("the mappers of a PartitionedAssetTimetable are partition mappers")
        for asset, mapper in (partition_mapper_config or {}).items():
            for leaf in asset.iter_leaves():
                kind = leaf.key()[0]
                if kind == "alias":
                    raise TimetableError("an asset alias has no partition mapper: name the assets that it stands for")
                if leaf.name:
                    self.partitioning.by_name[leaf.name] = mapper
                if leaf.uri:
                    self.partitioning.by_uri[leaf.uri] = mapper
