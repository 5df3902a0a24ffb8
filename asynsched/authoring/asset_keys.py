"""The names by which Airflow tells assets and aliases apart."""

from __future__ import annotations

from typing import NamedTuple, Self

from asynsched.authoring.assets import Asset, AssetAlias


class AssetUniqueKey(NamedTuple):
    """The name and the URI of an asset."""

    name: str
    uri: str

    @classmethod
    def from_asset(cls, asset: Asset) -> Self:
        """Return the key of an asset."""
        return cls(asset.name, asset.uri)

    def to_asset(self) -> Asset:
        """Return an asset with this key."""
        return Asset(self.name, self.uri)


class AssetAliasUniqueKey(NamedTuple):
    """The name of an alias."""

    name: str

    @classmethod
    def from_asset_alias(cls, asset_alias: AssetAlias) -> Self:
        """Return the key of an alias."""
        return cls(asset_alias.name)

    def to_asset_alias(self) -> AssetAlias:
        """Return an alias with this key."""
        return AssetAlias(self.name)
