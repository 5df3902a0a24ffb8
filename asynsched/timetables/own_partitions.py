"""Partition mappers of users' own, asked by the process that parses their DAG file, and their answers.

A mapper, a window or a wait policy of a user's own is user code. The parse of its file is told the keys of the events
that wait for the DAG, and answers for all of them; the scheduler uses the answers as it would use a mapper. If it has a
key without an answer, KeysNeeded requests another parse.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from asynsched.timetables.asset_condition import PartitionEvent
from asynsched.timetables.partitions import (
    MAX_DOWNSTREAM_KEYS,
    MAX_KEY_LENGTH,
    Partitioning,
    PartitionMapper,
    RollupMapper,
    checked_key,
    own_classes,
)

T = TypeVar("T")
MAX_WINDOW = 10_000
"""The largest number of keys of a window of a user's own."""
MAX_ERROR = 500
"""Characters of an error of a user's code; a longer one is cut."""

Key = Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]
Error = Annotated[str, Meta(max_length=MAX_ERROR)]
Moment = Annotated[datetime, Meta(tz=True)]


class AssetKeys(Struct, frozen=True, omit_defaults=True):
    """The question about an asset: the keys of its events, those of runs that wait, and the dates of its events."""

    name: str
    uri: str
    keys: tuple[str, ...] = ()
    run_keys: tuple[str, ...] = ()
    dates: tuple[datetime, ...] = ()


class OfKey(Struct, frozen=True, omit_defaults=True):
    """The runs that an event with a key counts for; or the error of the user's code."""

    run_keys: tuple[Key, ...] = ()
    error: Error = ""


class OfRun(Struct, frozen=True, omit_defaults=True):
    """The window of a run's key, if its mapper is a rollup; or the error of the user's code.

    Attributes:
        date: The instant at which its partition begins.
        window: All keys that it consists of.
        enough: The numbers of arrived keys that suffice.
        is_unreachable: No number suffices.
    """

    date: Moment | None = None
    window: Annotated[tuple[Key, ...], Meta(max_length=MAX_WINDOW)] = ()
    enough: tuple[int, ...] = ()
    is_unreachable: bool = False
    error: Error = ""


class AssetAnswers(Struct, frozen=True, omit_defaults=True):
    """What the mapper of an asset makes of keys. `of_dates`: the date of a run for that of an event."""

    name: str
    uri: str
    of_keys: dict[str, OfKey] = {}
    of_runs: dict[str, OfRun] = {}
    of_dates: tuple[tuple[Moment, Moment | None], ...] = ()


def keys_to_ask(waiting: Iterable[PartitionEvent]) -> tuple[AssetKeys, ...]:
    """Return the questions about the events that wait for a DAG."""
    by_asset: dict[tuple[str, str], list[PartitionEvent]] = {}
    for event in waiting:
        by_asset.setdefault((event.asset.name, event.asset.uri), []).append(event)
    return tuple(
        AssetKeys(
            name,
            uri,
            keys=tuple(dict.fromkeys(event.key for event in events if not event.run_key)),
            run_keys=tuple(dict.fromkeys(event.run_key for event in events if event.run_key)),
            dates=tuple(dict.fromkeys(event.date for event in events if event.date is not None)),
        )
        for (name, uri), events in by_asset.items()
    )


def answers_to(questions: Iterable[AssetKeys], partitioning: Partitioning) -> tuple[AssetAnswers, ...]:
    """Ask the mappers of a DAG, which may be user code. An error of it is the answer."""
    return tuple(
        _answers(asked, mapper)
        for asked in questions
        if own_classes(mapper := partitioning.mapper_of(asked.name, asked.uri))
    )


def _answers(asked: AssetKeys, mapper: PartitionMapper) -> AssetAnswers:
    of_keys = {key: _of_key(mapper, key) for key in asked.keys}
    run_keys = dict.fromkeys((*asked.run_keys, *(key for found in of_keys.values() for key in found.run_keys)))
    return AssetAnswers(
        asked.name,
        asked.uri,
        of_keys,
        {key: _of_run(mapper, key) for key in run_keys},
        tuple((date, _date(mapper.carry_partition_date, date)) for date in asked.dates),
    )


def _of_key(mapper: PartitionMapper, key: str) -> OfKey:
    # One more than the limit: the scheduler says that these are too many.
    at_most = (mapper.max_downstream_keys or MAX_DOWNSTREAM_KEYS) + 1
    try:
        found = mapper.to_downstream(key)
        some = [found] if isinstance(found, str) else islice(found, at_most)
        return OfKey(tuple(dict.fromkeys(map(checked_key, some))))
    except Exception as exc:  # noqa: BLE001 - of user code
        return OfKey(error=_text(exc))


def _of_run(mapper: PartitionMapper, run_key: str) -> OfRun:
    date = _date(mapper.to_partition_date, run_key)
    if not isinstance(mapper, RollupMapper):
        return OfRun(date)
    try:
        window = tuple(sorted(map(checked_key, mapper.to_upstream(run_key))))
        if len(window) > MAX_WINDOW:
            return OfRun(date, error=f"it has {len(window)} keys; at most {MAX_WINDOW} are allowed")
        policy = mapper.wait_policy
        enough = tuple(n for n in range(len(window) + 1) if policy.is_satisfied(n, len(window)))
        return OfRun(date, window, enough, bool(policy.is_unreachable(len(window))))
    except Exception as exc:  # noqa: BLE001 - of user code
        return OfRun(date, error=_text(exc))


def _date(find: Callable[[T], object], of: T) -> datetime | None:
    try:
        date = find(of)
        return date if isinstance(date, datetime) and date.tzinfo is not None else None
    except Exception:  # noqa: BLE001 - of user code; as of a mapper of Airflow that cannot read the key
        return None


def _text(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}".encode(errors="replace").decode()[:MAX_ERROR]
