"""Asset rules: which events a task's success causes, and whether the events that arrived are those a DAG waits for.

Source: Apache Airflow's `AssetEvaluator` and `register_asset_changes_in_db`.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from asynsched.protocol.messages import OutletEvent
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.timetables.asset_condition import AssetCondition, AssetNames


def evaluate(condition: AssetCondition, arrived: Collection[AssetNames]) -> Verdict:
    """Decide by the events that have arrived whether to create a run.

    An event counts until a run consumes it, however old it is. An event of any asset that an alias stands for meets
    the alias.
    """
    missing = _missing(condition, frozenset(arrived))
    return Verdict(met=False, reason=f"it waits for events of {missing}") if missing else MET


def _missing(condition: AssetCondition, arrived: frozenset[AssetNames], *, inner: bool = False) -> str:
    """Return in words the assets that a condition lacks; empty when it is met."""
    if condition.is_leaf:
        return "" if any(condition.names(asset) for asset in arrived) else condition.label
    lacking = [_missing(part, arrived, inner=True) for part in condition.parts]
    if condition.any is not None:
        return "" if "" in lacking else _joined(" or ", lacking, inner=inner)
    return _joined(" and ", [words for words in lacking if words], inner=inner)


def _joined(word: str, words: list[str], *, inner: bool) -> str:
    text = word.join(words)
    return f"({text})" if inner and len(words) > 1 else text


class AssetUpdate(Struct, frozen=True):
    """An update of an asset. If only the name or only the URI is known, the other is empty."""

    name: str
    uri: str
    extra: dict[str, Any]
    aliases: tuple[str, ...] = ()
    group: str = "asset"
    asset_extra: dict[str, Any] = {}
    partition_key: str = ""


def updates_of(outlets: Iterable[AssetCondition], told: Iterable[OutletEvent]) -> list[AssetUpdate]:
    """Return the updates that follow from a task's success, in the order of its outlets, those of aliases last.

    Each outlet that is an asset or a reference is updated, with the extra that the task gave its event; once for each
    partition key that the task gave it. An alias stands for the assets that the task added to it. Events of one asset
    with the same extra make one update, under however many aliases they were added.
    """
    told, outlets = list(told), list(outlets)
    aliases = {outlet.alias.name for outlet in outlets if outlet.alias is not None}
    plain = [update for outlet in outlets if outlet.alias is None for update in _updates(outlet, told)]
    return plain + list(_updates_of_aliases(event for event in told if event.alias in aliases))


def _updates(outlet: AssetCondition, told: list[OutletEvent]) -> Iterator[AssetUpdate]:
    asset = outlet.asset
    name, uri = (outlet.asset_ref.name, outlet.asset_ref.uri) if outlet.asset_ref is not None else ("", "")
    if asset is not None:
        name, uri = asset.name, asset.uri
    own = [event for event in told if not event.alias and _is_of(event, name, uri)]
    about: dict[str, Any] = {} if asset is None else {"group": asset.group, "asset_extra": asset.extra}
    extras: dict[str, dict[str, Any]] = {}
    for event in own:
        extras.setdefault(event.partition_key, event.extra)
    for key in [key for key in extras if key] or [""]:
        yield AssetUpdate(name, uri, extras.get(key, {}), partition_key=key, **about)


def _is_of(event: OutletEvent, name: str, uri: str) -> bool:
    """Return whether an event is of an asset. Either may lack its name or its URI; those that both have must agree."""
    names_agree = not (event.name and name) or event.name == name
    uris_agree = not (event.uri and uri) or event.uri == uri
    return names_agree and uris_agree and bool((event.name and name) or (event.uri and uri))


def _updates_of_aliases(told: Iterable[OutletEvent]) -> Iterator[AssetUpdate]:
    by_event: dict[tuple[str, str, bytes], tuple[OutletEvent, dict[str, None]]] = {}
    for event in told:
        key = (event.name, event.uri, msgspec.json.encode(event.extra, order="deterministic"))
        _, aliases = by_event.setdefault(key, (event, {}))
        aliases.setdefault(event.alias)
    for event, aliases in by_event.values():
        yield AssetUpdate(event.name, event.uri, event.extra, tuple(aliases), event.group, event.asset_extra)
