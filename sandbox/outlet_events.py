"""What a try tells of the assets that it has updated: a part of the frame that tells of its end."""

from typing import Any

from msgspec import Struct


class OutletEvent(Struct, frozen=True, omit_defaults=True):
    """What a task says of an update of one of its outlets, or of an asset that it adds to an alias.

    Outlets that nothing is said of are updated all the same.
    """

    name: str = ""
    """Of the asset; empty when it is known by its URI only."""
    uri: str = ""
    extra: dict[str, Any] = {}
    alias: str = ""
    """The alias that the event is added to."""
    group: str = "asset"
    asset_extra: dict[str, Any] = {}
    """Describes the asset, should it be new."""
