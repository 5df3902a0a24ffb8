"""Conditions on assets in the serialized form of schedules, inlets and outlets.

The JSON is Airflow's expression: `{"all": [{"asset": {...}}, {"any": [...]}]}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import TimetableError

MAX_DEPTH = 50
MAX_LEAVES = 10_000

AssetName = Annotated[str, Meta(min_length=1, max_length=1500)]
_Reference = Annotated[str, Meta(max_length=1500)]


class AssetForm(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An asset."""

    name: AssetName
    uri: AssetName
    group: AssetName = "asset"
    extra: dict[str, Any] = {}


class AliasForm(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An alias: a name for assets that are known only when a task runs."""

    name: AssetName
    group: AssetName = "asset"


class RefForm(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A reference to an asset by its name or its URI."""

    name: _Reference = ""
    uri: _Reference = ""


class AssetCondition(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A node of an expression. Exactly one field is set; `all` and `any` have parts, the others are leaves."""

    asset: AssetForm | None = None
    alias: AliasForm | None = None
    asset_ref: RefForm | None = None
    all: tuple[AssetCondition, ...] | None = None
    any: tuple[AssetCondition, ...] | None = None

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            raise ValueError("a condition on assets must have exactly one of asset, alias, asset_ref, all and any")
        if self.asset_ref is not None and bool(self.asset_ref.name) == bool(self.asset_ref.uri):
            raise ValueError("a reference to an asset has either a name or a uri")

    @property
    def parts(self) -> tuple[AssetCondition, ...]:
        """The parts of an expression; empty for a leaf."""
        return self.all or self.any or ()

    @property
    def is_leaf(self) -> bool:
        """Whether it is an asset, an alias or a reference."""
        return self.all is None and self.any is None

    @property
    def label(self) -> str:
        """A leaf's name for people: its name, or the URI that it refers to."""
        if self.asset is not None:
            return self.asset.name
        if self.alias is not None:
            return self.alias.name
        return "" if self.asset_ref is None else self.asset_ref.name or self.asset_ref.uri

    @property
    def text(self) -> str:
        """The condition in the form `a and (b or c)`."""
        if self.is_leaf:
            return self.label
        word = " or " if self.any is not None else " and "
        return word.join(part.text if part.is_leaf or len(part.parts) == 1 else f"({part.text})" for part in self.parts)

    def leaves(self) -> Iterator[AssetCondition]:
        """Yield the leaves, in order."""
        if self.is_leaf:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def names(self, asset: AssetNames) -> bool:
        """Return whether a leaf waits for events of this asset."""
        if self.asset is not None:
            return (self.asset.name, self.asset.uri) == (asset.name, asset.uri)
        if self.asset_ref is not None:
            return self.asset_ref.name == asset.name or self.asset_ref.uri == asset.uri
        return self.alias is not None and self.alias.name in asset.aliases


class AssetNames(NamedTuple):
    """The names of an asset: its name, its URI, and the aliases through which it was updated."""

    name: str
    uri: str
    aliases: frozenset[str] = frozenset()


class PartitionEvent(NamedTuple):
    """An event of a partition that waits for a DAG.

    Attributes:
        key: Of the event; `run_key`: of the run that it counts for; empty if it is not mapped yet.
        date: Of the partition of the run that made the event.
    """

    event_id: int
    asset: AssetNames
    created_at: datetime
    key: str
    date: datetime | None
    run_key: str


def read_condition(form: object) -> AssetCondition:
    """Return a condition from its JSON values. Raises TimetableError if they do not form a valid condition."""
    try:
        condition = msgspec.convert(form, AssetCondition)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise TimetableError(f"a condition on assets is malformed: {exc}") from exc
    check_condition(condition)
    return condition


def check_condition(condition: AssetCondition) -> None:
    """Raise TimetableError if a condition has no assets, too many, or is nested too deeply."""
    n_leaves = _count_leaves(condition, MAX_DEPTH)
    if n_leaves > MAX_LEAVES:
        raise TimetableError(f"a condition on assets has {n_leaves} assets; at most {MAX_LEAVES} are allowed")


def _count_leaves(condition: AssetCondition, depth: int) -> int:
    if depth == 0:
        raise TimetableError(f"a condition on assets is nested more than {MAX_DEPTH} deep")
    if condition.is_leaf:
        return 1
    if not condition.parts:
        raise TimetableError("an expression of assets is empty")
    return sum(_count_leaves(part, depth - 1) for part in condition.parts)
