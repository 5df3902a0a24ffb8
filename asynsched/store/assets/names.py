"""Queries of `asset` and `asset_alias`: what assets and aliases are called, and which of them stand for which."""

from collections.abc import Collection, Iterable
from datetime import datetime
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import from_json, near_names, to_json
from asynsched.store.schema import asset, asset_alias, asset_alias_asset
from asynsched.store.statements import insert_ignoring
from asynsched.timetables.asset_condition import AliasForm, AssetCondition, AssetForm


class AssetRow(Struct, frozen=True):
    """An asset. `extra` describes it."""

    id: int
    name: str
    uri: str
    group_name: str
    extra: dict[str, Any]
    created_at: datetime


_ASSETS = sa.select(
    asset.c.id, asset.c.digest, asset.c.name, asset.c.uri, asset.c.group_name, asset.c.extra, asset.c.created_at
)
_ALL = _ASSETS.order_by(asset.c.name, asset.c.uri)
_BY_DIGEST = _ASSETS.where(asset.c.digest.in_(sa.bindparam("digests", expanding=True)))
_BY_NAME = _ASSETS.where(asset.c.name == sa.bindparam("text")).order_by(asset.c.id.desc()).limit(1)
_BY_URI = _ASSETS.where(asset.c.uri == sa.bindparam("text")).order_by(asset.c.id.desc()).limit(1)
_DESCRIBE = (
    sa.update(asset)
    .where(asset.c.digest == sa.bindparam("key"))
    .values(group_name=sa.bindparam("new_group"), extra=sa.bindparam("new_extra"))
)
_ALIASES = sa.select(asset_alias.c.id, asset_alias.c.digest).where(
    asset_alias.c.digest.in_(sa.bindparam("digests", expanding=True))
)
_ALL_ALIASES = (
    sa.select(asset_alias.c.name, asset_alias.c.group_name, asset.c.name.label("asset_name"))
    .join(asset_alias_asset, asset_alias_asset.c.alias_id == asset_alias.c.id, isouter=True)
    .join(asset, asset.c.id == asset_alias_asset.c.asset_id, isouter=True)
    .order_by(asset_alias.c.name, asset.c.name)
)


_ALIASES_OF = (
    sa.select(asset_alias.c.name)
    .join(asset_alias_asset, asset_alias_asset.c.alias_id == asset_alias.c.id)
    .where(asset_alias_asset.c.asset_id == sa.bindparam("asset"))
    .order_by(asset_alias.c.name)
)


def digest_of(kind: str, *names: str) -> str:
    """Return what stands for an asset, an alias or a reference in indexes: 64 hexadecimal digits."""
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
    """Return the digests of all that may wait for an event of an asset that came through these aliases."""
    own = [digest_of("asset", name, uri), digest_of("name", name), digest_of("uri", uri)]
    return own + [digest_of("alias", alias) for alias in sorted(aliases)]


def put_assets(conn: Connection, assets: Iterable[AssetForm], now: datetime, *, describe: bool) -> dict[str, int]:
    """Store assets that are new. Returns row ids by digest.

    Args:
        describe: Also take over the group and the extra of those that are known.
    """
    forms = {digest_of("asset", form.name, form.uri): form for form in assets}
    known = {row.digest: row for row in conn.execute(_BY_DIGEST, {"digests": list(forms)})} if forms else {}
    for digest, form in sorted(forms.items()):
        extra = to_json(form.extra)
        if digest not in known:
            values = {"digest": digest, "name": form.name, "uri": form.uri, "group_name": form.group}
            conn.execute(insert_ignoring(conn, asset), {**values, "extra": extra, "created_at": now})
        elif describe and (known[digest].group_name, known[digest].extra) != (form.group, extra):
            conn.execute(_DESCRIBE, {"key": digest, "new_group": form.group, "new_extra": extra})
    if len(known) < len(forms):
        known = {row.digest: row for row in conn.execute(_BY_DIGEST, {"digests": list(forms)})}
    return {digest: row.id for digest, row in known.items()}


def put_aliases(conn: Connection, aliases: Iterable[AliasForm]) -> dict[str, int]:
    """Store aliases that are new. Returns row ids by name."""
    forms = {digest_of("alias", form.name): form for form in aliases}
    for digest, form in sorted(forms.items()):
        values = {"digest": digest, "name": form.name, "group_name": form.group}
        conn.execute(insert_ignoring(conn, asset_alias), values)
    rows = conn.execute(_ALIASES, {"digests": list(forms)}) if forms else ()
    return {forms[row.digest].name: row.id for row in rows}


def link_alias(conn: Connection, alias_id: int, asset_id: int) -> None:
    """Note that an alias was found to stand for an asset."""
    conn.execute(insert_ignoring(conn, asset_alias_asset), {"alias_id": alias_id, "asset_id": asset_id})


def find_asset(conn: Connection, *, name: str = "", uri: str = "") -> AssetRow | None:
    """Return the newest asset of a name, or of a URI, or of both; None when there is none."""
    if name and uri:
        row = conn.execute(_BY_DIGEST, {"digests": [digest_of("asset", name, uri)]}).first()
    else:
        row = conn.execute(_BY_NAME if name else _BY_URI, {"text": name or uri}).first()
    return None if row is None else _asset(row)


def get_asset(conn: Connection, name_or_uri: str) -> AssetRow:
    """Return an asset that a person names by its name or its URI. Raises NotFound with the nearest names."""
    found = find_asset(conn, name=name_or_uri) or find_asset(conn, uri=name_or_uri)
    if found is None:
        raise NotFound("asset", name_or_uri, near_names(name_or_uri, (row.name for row in conn.execute(_ALL))))
    return found


def list_assets(conn: Connection) -> list[AssetRow]:
    """Return all assets, by name."""
    return [_asset(row) for row in conn.execute(_ALL)]


def aliases_of(conn: Connection, asset_id: int) -> list[str]:
    """Return the names of the aliases that were found to stand for an asset."""
    return list(conn.scalars(_ALIASES_OF, {"asset": asset_id}))


def list_aliases(conn: Connection) -> list[tuple[str, str, list[str]]]:
    """Return the name and the group of each alias, and the names of the assets that it was found to stand for."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in conn.execute(_ALL_ALIASES):
        assets = found.setdefault((row.name, row.group_name), [])
        if row.asset_name is not None:
            assets.append(row.asset_name)
    return [(*names, assets) for names, assets in found.items()]


def _asset(row: Any) -> AssetRow:
    values = {name: value for name, value in row._mapping.items() if name != "digest"}  # noqa: SLF001 - public in spite of its name
    return AssetRow(**{**values, "extra": from_json(row.extra)})
