"""Which events of assets follow from a task's success.

Source: Apache Airflow's `register_asset_changes_in_db`: each outlet that is an asset or a reference is updated, with
the extra that the task gave its event. An outlet that is an alias stands for the assets that the task added to it;
of one asset with the same extra there is one event, whatever the number of aliases.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from asynsched.protocol.messages import OutletEvent
from asynsched.timetables.asset_condition import AssetCondition


class AssetUpdate(Struct, frozen=True):
    """An update of an asset. Of one that is known by its name or its URI only, the other is empty."""

    name: str
    uri: str
    extra: dict[str, Any]
    aliases: tuple[str, ...] = ()
    group: str = "asset"
    asset_extra: dict[str, Any] = {}


def updates_of(outlets: Iterable[AssetCondition], told: Iterable[OutletEvent]) -> list[AssetUpdate]:
    """Return the updates of assets, in the order of the outlets; those of aliases last.

    Args:
        outlets: Those of the task.
        told: What the task said of its outlets.
    """
    told = list(told)
    outlets = list(outlets)
    aliases = {outlet.alias.name for outlet in outlets if outlet.alias is not None}
    plain = [_update(outlet, told) for outlet in outlets if outlet.alias is None]
    return plain + list(_updates_of_aliases(event for event in told if event.alias in aliases))


def _update(outlet: AssetCondition, told: list[OutletEvent]) -> AssetUpdate:
    asset = outlet.asset
    name, uri = (outlet.asset_ref.name, outlet.asset_ref.uri) if outlet.asset_ref is not None else ("", "")
    if asset is not None:
        name, uri = asset.name, asset.uri
    extra = next((event.extra for event in told if not event.alias and _is_of(event, name, uri)), {})
    if asset is None:
        return AssetUpdate(name, uri, extra)
    return AssetUpdate(name, uri, extra, group=asset.group, asset_extra=asset.extra)


def _is_of(event: OutletEvent, name: str, uri: str) -> bool:
    """Return whether an event is of the asset, where either may be known by one of its names only."""
    names_agree = not (event.name and name) or event.name == name
    uris_agree = not (event.uri and uri) or event.uri == uri
    return names_agree and uris_agree and bool((event.name and name) or (event.uri and uri))


def _updates_of_aliases(told: Iterable[OutletEvent]) -> Iterator[AssetUpdate]:
    by_event: list[tuple[OutletEvent, list[str]]] = []
    for event in told:
        for other, aliases in by_event:
            if (other.name, other.uri, other.extra) == (event.name, event.uri, event.extra):
                if event.alias not in aliases:
                    aliases.append(event.alias)
                break
        else:
            by_event.append((event, [event.alias]))
    for event, aliases in by_event:
        yield AssetUpdate(event.name, event.uri, event.extra, tuple(aliases), event.group, event.asset_extra)
