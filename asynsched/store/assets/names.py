"""Queries of `asset` and `asset_alias`: the names of assets and aliases, and which assets an alias stands for."""

from collections.abc import Collection, Iterable
from datetime import datetime
from hashlib import sha256

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import fetch, fetch_in, fetch_one, near_names, select_in, to_json
from asynsched.store.schema import AssetRow, asset, asset_alias, asset_alias_asset
from asynsched.store.statements import insert_ignoring
from asynsched.timetables.asset_condition import AliasForm, AssetCondition, AssetForm

_ALL = sa.select(asset).order_by(asset.c.name, asset.c.uri)


def digest_of(kind: str, *names: str) -> str:
    """Return the index key of an asset, an alias or a reference: 64 hexadecimal digits."""
    return sha256("\0".join((kind, *names)).encode("utf-8", "surrogatepass")).hexdigest()


def leaf_digest(leaf: AssetCondition) -> str:
    """Return the digest of an asset, an alias or a reference."""
    kind, name, uri = leaf_names(leaf)
    return digest_of(kind, name, uri) if kind == "asset" else digest_of(kind, name or uri)


def leaf_names(leaf: AssetCondition) -> tuple[str, str, str]:
    """Return the kind, the name and the URI of an asset, an alias or a reference."""
    if leaf.asset is not None:
        return "asset", leaf.asset.name, leaf.asset.uri
    if leaf.alias is not None:
        return "alias", leaf.alias.name, ""
    if leaf.asset_ref is None:
        raise ValueError("an expression of assets has no name of its own")
    return ("name", leaf.asset_ref.name, "") if leaf.asset_ref.name else ("uri", "", leaf.asset_ref.uri)


def waiting_digests(name: str, uri: str, aliases: Collection[str]) -> list[str]:
    """Return the digests of everything that may wait for an event of an asset through these aliases."""
    own = [digest_of("asset", name, uri), digest_of("name", name), digest_of("uri", uri)]
    return own + [digest_of("alias", alias) for alias in sorted(aliases)]


def put_assets(conn: Connection, assets: Iterable[AssetForm], now: datetime, *, describe: bool) -> dict[str, int]:
    """Store new assets. Returns row ids by digest.

    Args:
        describe: Whether to update the group and the extra of known assets.
    """
    forms = {digest_of("asset", form.name, form.uri): form for form in assets}
    known = _by_digest(conn, forms)
    for digest, form in sorted(forms.items()):
        before = known.get(digest)
        if before is None:
            values = {"digest": digest, "name": form.name, "uri": form.uri, "group_name": form.group}
            conn.execute(insert_ignoring(conn, asset), {**values, "extra": form.extra, "created_at": now})
        elif describe and (before.group_name, to_json(before.extra)) != (form.group, to_json(form.extra)):
            described = sa.update(asset).where(asset.c.digest == digest)
            conn.execute(described.values(group_name=form.group, extra=form.extra))
    if len(known) < len(forms):
        known = _by_digest(conn, forms)
    return {digest: row.id for digest, row in known.items()}


def _by_digest(conn: Connection, digests: Iterable[str]) -> dict[str, AssetRow]:
    return {row.digest: row for row in fetch_in(conn, AssetRow, sa.select(asset), asset.c.digest, list(digests))}


def put_aliases(conn: Connection, aliases: Iterable[AliasForm]) -> dict[str, int]:
    """Store new aliases. Returns row ids by name."""
    forms = {digest_of("alias", form.name): form for form in aliases}
    for digest, form in sorted(forms.items()):
        values = {"digest": digest, "name": form.name, "group_name": form.group}
        conn.execute(insert_ignoring(conn, asset_alias), values)
    rows = select_in(conn, sa.select(asset_alias.c.id, asset_alias.c.digest), asset_alias.c.digest, list(forms))
    return {forms[row.digest].name: row.id for row in rows}


def link_alias(conn: Connection, alias_id: int, asset_id: int) -> None:
    """Record that an alias stands for an asset."""
    conn.execute(insert_ignoring(conn, asset_alias_asset), {"alias_id": alias_id, "asset_id": asset_id})


def find_asset(conn: Connection, *, name: str = "", uri: str = "") -> AssetRow | None:
    """Return the newest asset of a name, or of a URI, or of both; None if none exists."""
    if name and uri:
        is_it = asset.c.digest == digest_of("asset", name, uri)
    else:
        is_it = asset.c.name == name if name else asset.c.uri == uri
    return fetch_one(conn, AssetRow, sa.select(asset).where(is_it).order_by(asset.c.id.desc()).limit(1))


def get_asset(conn: Connection, name_or_uri: str) -> AssetRow:
    """Return an asset by its name or its URI. Raises NotFound with the nearest names."""
    found = find_asset(conn, name=name_or_uri) or find_asset(conn, uri=name_or_uri)
    if found is None:
        raise NotFound("asset", name_or_uri, near_names(name_or_uri, (row.name for row in conn.execute(_ALL))))
    return found


def list_assets(conn: Connection) -> list[AssetRow]:
    """Return all assets, by name."""
    return fetch(conn, AssetRow, _ALL)


def aliases_of(conn: Connection, asset_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the names of the aliases that stand for assets, by the assets' row ids."""
    found: dict[int, list[str]] = {asset_id: [] for asset_id in asset_ids}
    query = (
        sa.select(asset_alias_asset.c.asset_id, asset_alias.c.name)
        .join(asset_alias, asset_alias.c.id == asset_alias_asset.c.alias_id)
        .order_by(asset_alias.c.name)
    )
    for row in select_in(conn, query, asset_alias_asset.c.asset_id, sorted(found)):
        found[row.asset_id].append(row.name)
    return found


def list_aliases(conn: Connection) -> list[tuple[str, str, list[str]]]:
    """Return the name and the group of each alias, and the names of the assets that it stands for."""
    query = (
        sa.select(asset_alias.c.name, asset_alias.c.group_name, asset.c.name.label("asset_name"))
        .join(asset_alias_asset, asset_alias_asset.c.alias_id == asset_alias.c.id, isouter=True)
        .join(asset, asset.c.id == asset_alias_asset.c.asset_id, isouter=True)
        .order_by(asset_alias.c.name, asset.c.name)
    )
    found: dict[tuple[str, str], list[str]] = {}
    for row in conn.execute(query):
        assets = found.setdefault((row.name, row.group_name), [])
        if row.asset_name is not None:
            assets.append(row.asset_name)
    return [(*names, assets) for names, assets in found.items()]
