"""Partition rules: for which runs the events of partitioned assets count, and whether the events of a run suffice.

Source: Apache Airflow's `AssetManager._queue_partitioned_dags` and
`SchedulerJobRunner._create_dagruns_for_partitioned_asset_dags`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from asynsched.errors import KeysNeeded, TimetableError
from asynsched.scheduling.rules.assets import evaluate
from asynsched.timetables.asset_condition import AssetCondition, AssetNames, PartitionEvent
from asynsched.timetables.partitions import OwnMapper, Partitioning, RollupMapper
from asynsched.timetables.zones import in_zone

MOST_NAMED = 3
"""The number of waiting partitions that a sentence names."""
_UNREADABLE = (ValueError, TypeError, OverflowError, TimetableError)
"""The errors of mappers that get a key that they cannot read."""


class Mapped(NamedTuple):
    """Some waiting events, mapped.

    Attributes:
        events: All that count for a run, each once for each run.
        mapped: The events among them that were not mapped before.
        no_longer_unmapped: The ids of the events that were not mapped before.
        unmapped: Why some of these count for no run.
        unanswered: The events that only a parse can map.
    """

    events: list[PartitionEvent]
    mapped: list[PartitionEvent]
    no_longer_unmapped: list[int]
    unmapped: tuple[str, ...]
    unanswered: list[PartitionEvent]


def map_events(partitioning: Partitioning, waiting: Iterable[PartitionEvent]) -> Mapped:
    """Return the events with the runs that they count for: the runs of the keys that their asset's mapper returns."""
    known: list[PartitionEvent] = []
    mapped: list[PartitionEvent] = []
    ids: list[int] = []
    unmapped: list[str] = []
    unanswered: list[PartitionEvent] = []
    for event in waiting:
        if event.run_key:
            known.append(event)
            continue
        try:
            keys = partitioning.keys_of_event(event.asset.name, event.asset.uri, event.key)
        except KeysNeeded:
            unanswered.append(event)
            continue
        except TimetableError as exc:
            keys = []
            unmapped.append(str(exc))
        ids.append(event.event_id)
        mapped += [event._replace(run_key=key) for key in keys]
    events = {(event.event_id, event.run_key): event for event in (*known, *mapped)}
    return Mapped(sorted(events.values(), key=lambda event: event.event_id), mapped, ids, tuple(unmapped), unanswered)


class WaitingPartition(NamedTuple):
    """A partition for which events have arrived.

    Attributes:
        key: Of the run.
        date: Of the run's partition; None if its key has no such meaning, or its assets disagree on it.
        reason: Why its run is not created yet; empty if it is.
        events: The events that have arrived.
        is_answered: Whether user code need not be asked about it.
    """

    key: str
    date: datetime | None
    reason: str
    events: list[PartitionEvent]
    is_answered: bool = True

    @property
    def is_ready(self) -> bool:
        return not self.reason


def judge(
    partitioning: Partitioning, condition: AssetCondition, events: Iterable[PartitionEvent]
) -> list[WaitingPartition]:
    """Return the partitions of some mapped events, in the order of their first events, and whether each is ready."""
    by_key: dict[str, list[PartitionEvent]] = {}
    for event in events:
        by_key.setdefault(event.run_key, []).append(event)
    return [_judged(partitioning, condition, key, found) for key, found in by_key.items()]


def _judged(
    partitioning: Partitioning, condition: AssetCondition, key: str, events: list[PartitionEvent]
) -> WaitingPartition:
    try:
        date = partition_date(partitioning, key, events)
        return WaitingPartition(key, date, _lacking(partitioning, condition, key, events), events)
    except KeysNeeded as exc:
        return WaitingPartition(key, None, str(exc), events, is_answered=False)


def _lacking(partitioning: Partitioning, condition: AssetCondition, key: str, events: Sequence[PartitionEvent]) -> str:
    """Return why the events of a partition do not suffice; empty if they do."""
    arrived: list[AssetNames] = []
    incomplete: list[str] = []
    for asset in dict.fromkeys(event.asset for event in events):
        keys = {event.key for event in events if event.asset == asset}
        reason = _incomplete(partitioning, asset, key, keys)
        if reason:
            incomplete.append(reason)
        else:
            arrived.append(asset)
    verdict = evaluate(condition, arrived)
    return "" if verdict.met else "; ".join([verdict.reason, *incomplete])


def _incomplete(partitioning: Partitioning, asset: AssetNames, key: str, arrived: set[str]) -> str:
    """Return why the window of a rolled-up asset is incomplete; empty if it is complete, or there is no window."""
    mapper = partitioning.mapper_of(asset.name, asset.uri)
    if not isinstance(mapper, RollupMapper) and not (isinstance(mapper, OwnMapper) and mapper.is_rollup):
        return ""
    try:
        found = mapper.progress(key, arrived)
    except _UNREADABLE as exc:
        return f"the window of {asset.name} cannot be computed: {exc}"
    if found.is_unreachable:
        return f"the wait policy of {asset.name} can never be met: its window has {found.n_expected} keys"
    if found.is_enough:
        return ""
    return f"{found.n_arrived} of the {found.n_expected} keys of {asset.name} have arrived"


def partition_date(partitioning: Partitioning, key: str, events: Sequence[PartitionEvent]) -> datetime | None:
    """Return the date of a run's partition: the one that the mappers of its assets read from its key.

    If they disagree, or one cannot read it, there is none. Mappers that read no date take over that of the events, if
    these agree on it: two that differ cancel each other, and the next one counts again, as in Airflow.
    """
    mappers = {event.asset: partitioning.mapper_of(event.asset.name, event.asset.uri) for event in events}
    try:
        dates = {in_zone(date, UTC) for one in mappers.values() if (date := one.to_partition_date(key)) is not None}
    except _UNREADABLE:
        return None
    if dates:
        return dates.pop() if len(dates) == 1 else None
    carried: datetime | None = None
    for event in events:
        date = mappers[event.asset].carry_partition_date(event.date)
        if carried is None:
            carried = date
        elif date is not None and date != carried:
            carried = None
    return carried


def waits_for(condition: AssetCondition, judged: Sequence[WaitingPartition]) -> str:
    """Return in words which events a DAG lacks for the partitions that wait."""
    if not judged:
        return f"it waits for events of {condition.text} with a partition key"
    named = [f"for the partition {one.key!r}, {one.reason}" for one in judged[:MOST_NAMED]]
    more = [f"and {len(judged) - MOST_NAMED} more partitions wait"] if len(judged) > MOST_NAMED else []
    return "; ".join([*named, *more])
