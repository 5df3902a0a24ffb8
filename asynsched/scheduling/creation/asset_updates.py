"""Updates of assets that somebody tells of: from the command line, or from an embedding program."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from asynsched.authoring.assets import Asset, checked_extra
from asynsched.store.assets.events import record_events
from asynsched.store.assets.names import get_asset
from asynsched.store.audit import record_audit
from asynsched.store.runs.changes import AssetEventRow


def update_asset(
    conn: Connection, asset: str | Asset, extra: Mapping[str, Any] | None, *, now: datetime
) -> tuple[str, list[str]]:
    """Store an event of an asset, and let it wait for the DAGs that are scheduled by it.

    Args:
        asset: The asset; or its name or URI, if it is known.
        extra: JSON values that describe the update.

    Returns:
        The asset's name, and those DAGs.

    Raises:
        NotFound: There is no asset of that name or URI.
        DagError: The extra is no JSON.
    """
    if isinstance(asset, str):
        known = get_asset(conn, asset)
        asset = Asset(known.name, known.uri, group=known.group_name, extra=known.extra)
    told = checked_extra(f"event of the asset {asset.name!r}", None if extra is None else dict(extra))
    event = AssetEventRow(asset.name, asset.uri, told, now, group=asset.group, asset_extra=asset.extra)
    return asset.name, record_events(conn, [event])


def update_by_program(conn: Connection, asset: str | Asset, extra: Mapping[str, Any] | None, *, now: datetime) -> None:
    """Store an event of an asset on behalf of the program that the scheduler lives in."""
    name, _ = update_asset(conn, asset, extra, now=now)
    record_audit(conn, at=now, actor="program", action="asset.event", detail={"asset": name})
