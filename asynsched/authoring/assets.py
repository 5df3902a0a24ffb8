"""Assets: names for data that tasks update and that trigger DAGs.

An *event* is an update of an asset. Expressions of assets, made with `&` and `|`, define which events a DAG waits for.

Source: Apache Airflow's `airflow.sdk.definitions.asset`.
"""

from __future__ import annotations

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from asynsched.authoring.triggers.base import BaseEventTrigger

MAX_NAME_LENGTH = 1500
"""The longest name, URI or group, in characters (Airflow's limit)."""
RESERVED_NAMES = ("self", "context")
"""Parameters of `@asset` functions with another meaning."""
RESERVED_SCHEMES = ("airflow", "asynsched")


class BaseAsset:
    """An asset, a reference to one, an alias, or an expression of these: the parts of a schedule."""

    def __and__(self, other: object) -> AssetAll:
        return AssetAll(self, other) if isinstance(other, BaseAsset) else NotImplemented

    def __or__(self, other: object) -> AssetAny:
        return AssetAny(self, other) if isinstance(other, BaseAsset) else NotImplemented

    def __bool__(self) -> bool:
        return True

    def as_expression(self) -> dict[str, Any]:
        """Return the expression as plain JSON values, in Airflow's form."""
        raise NotImplementedError

    def iter_leaves(self) -> Iterator[Asset | AssetAlias | AssetRef]:
        """Yield the assets, references and aliases of the expression, in order."""
        raise NotImplementedError


class _Leaf(BaseAsset):
    """An asset, reference or alias: a value that equals another with the same key."""

    def key(self) -> tuple[str, ...]:
        """Return the kind and the names."""
        raise NotImplementedError

    def iter_leaves(self) -> Iterator[Any]:
        yield self

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, _Leaf) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())


class Asset(_Leaf):
    """Data that tasks update (`outlets=[asset]`) and DAGs wait for (`schedule=[asset]`).

    Args:
        name: The asset's name; by default the URI.
        uri: The asset's location, in any form; by default the name. Nothing is ever read from it.
        group: A word to group assets by.
        extra: JSON values that describe the asset.
        watchers: Triggers that run while an unpaused DAG waits for the asset; each of their events updates it.
        access_control: Accepted for Airflow's files. There are no teams, so it has no effect.

    Raises:
        TypeError: Neither name nor uri is given.
    """

    def __init__(
        self,
        name: str | None = None,
        uri: Any = None,
        *,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Iterable[AssetWatcher] | None = None,
        access_control: Any = None,
    ) -> None:
        if name is None and uri is None:
            raise TypeError("Asset() needs a name or a uri")
        self.name = _checked_name(str(uri) if name is None else name)
        self.uri = sanitized_uri(self.name if uri is None else uri)
        self.group = check_text("group of an asset", group)
        self.extra = checked_extra(f"asset {self.name!r}", extra)
        self.watchers = list(watchers or ())
        for watcher in self.watchers:
            if not isinstance(watcher, AssetWatcher):
                raise DagError(f"asset {self.name!r}: watchers is a list of AssetWatcher, not of {watcher!r:.100}")
        self.access_control = access_control
        if access_control is not None:
            from asynsched.authoring.active import warn_of_no_effect

            warn_of_no_effect(f"asset {self.name!r}", ("access_control",))

    @staticmethod
    def ref(*, name: str = "", uri: str = "") -> AssetRef:
        """Return a reference to an asset made elsewhere, by its name or URI. Raises TypeError unless one is given."""
        return AssetRef(name=name, uri=uri)

    def key(self) -> tuple[str, ...]:
        return ("asset", self.name, self.uri)

    @property
    def normalized_uri(self) -> str | None:
        """The URI as the installed provider of its scheme writes it; None if there is none, or it refuses the URI."""
        from asynsched.authoring.providers import normalized_uri

        return normalized_uri(self.uri)

    def __fspath__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Asset(name={self.name!r}, uri={self.uri!r})"

    def as_expression(self) -> dict[str, Any]:
        form: dict[str, Any] = {"uri": self.uri, "name": self.name, "group": self.group}
        return {"asset": {**form, "extra": self.extra} if self.extra else form}


class AssetWatcher:
    """A trigger that updates an asset with each of its events: `Asset("x", watchers=[AssetWatcher(…)])`.

    Args:
        name: Names the watcher for people.
        trigger: Runs while an unpaused DAG waits for the asset, and is started again when it ends or fails.

    Raises:
        DagError: The trigger is not a BaseEventTrigger.
    """

    def __init__(self, name: str, trigger: BaseEventTrigger) -> None:
        from asynsched.authoring.triggers.base import BaseEventTrigger

        self.name = check_text("name of an asset watcher", name)
        if not isinstance(trigger, BaseEventTrigger):
            raise DagError(
                f"the trigger of the asset watcher {name!r} must be a BaseEventTrigger, which may fire more than once,"
                f" not a {type(trigger).__name__}"
            )
        self.trigger = trigger

    def __repr__(self) -> str:
        return f"AssetWatcher(name={self.name!r}, trigger={self.trigger!r})"


class AssetRef(_Leaf):
    """A reference to an asset by its name or its URI, made by `Asset.ref`."""

    def __init__(self, *, name: str = "", uri: str = "") -> None:
        if bool(name) == bool(uri):
            raise TypeError("Asset.ref() needs either name= or uri=")
        self.name = check_text("name of an asset", name) if name else ""
        self.uri = sanitized_uri(uri) if uri else ""

    def key(self) -> tuple[str, ...]:
        return ("asset_ref", self.name, self.uri)

    def __repr__(self) -> str:
        return f"Asset.ref(name={self.name!r})" if self.name else f"Asset.ref(uri={self.uri!r})"

    def as_expression(self) -> dict[str, Any]:
        return {"asset_ref": {"name": self.name} if self.name else {"uri": self.uri}}


class AssetAlias(_Leaf):
    """A name for assets that are known only when a task runs; the task adds their events to the alias."""

    def __init__(self, name: str, *, group: str = "asset") -> None:
        self.name = check_text("name of an asset alias", name)
        self.group = check_text("group of an asset alias", group)

    def key(self) -> tuple[str, ...]:
        return ("alias", self.name)

    def __repr__(self) -> str:
        return f"AssetAlias({self.name!r})"

    def as_expression(self) -> dict[str, Any]:
        return {"alias": {"name": self.name, "group": self.group}}


class Combination(BaseAsset):
    """A combination of assets and expressions. Raises TypeError for other objects."""

    _word = ""

    def __init__(self, *objects: BaseAsset) -> None:
        for item in objects:
            if not isinstance(item, BaseAsset):
                raise TypeError(f"{type(self).__name__} combines assets, not {item!r}")
        self.objects = objects

    def as_expression(self) -> dict[str, Any]:
        return {self._word: [item.as_expression() for item in self.objects]}

    def iter_leaves(self) -> Iterator[Any]:
        for item in self.objects:
            yield from item.iter_leaves()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.objects))})"


class AssetAny(Combination):
    """Met when any of its parts is met: `a | b`."""

    _word = "any"

    def __or__(self, other: object) -> AssetAny:
        return AssetAny(*self.objects, other) if isinstance(other, BaseAsset) else NotImplemented


class AssetAll(Combination):
    """Met when all of its parts are met: `a & b`, or a list of assets as `schedule`."""

    _word = "all"

    def __and__(self, other: object) -> AssetAll:
        return AssetAll(*self.objects, other) if isinstance(other, BaseAsset) else NotImplemented


class Metadata:
    """A description of an outlet's event, yielded by a task that is a generator: `yield Metadata(asset, {...})`.

    Args:
        extra: JSON values for its event.
        alias: The alias through which the asset is updated, if any.
    """

    def __init__(self, asset: Asset, extra: Mapping[str, Any] | None = None, alias: AssetAlias | None = None) -> None:
        self.asset = asset
        self.extra = checked_extra(f"asset {asset.name!r}", extra)
        self.alias = alias

    def __repr__(self) -> str:
        return f"Metadata({self.asset!r}, {self.extra!r}, {self.alias!r})"


def check_text(what: str, value: object) -> str:
    """Return a string if it is neither blank nor too long. Raises DagError."""
    if not isinstance(value, str) or not value.strip():
        raise DagError(f"the {what} must be a string that is not blank, not {value!r}")
    if "\0" in value:
        raise DagError(f"the {what} {value!r} contains a NUL character, which cannot be stored")
    if len(value) > MAX_NAME_LENGTH:
        raise DagError(f"the {what} {value[:40]!r}… has {len(value)} characters; at most {MAX_NAME_LENGTH} are allowed")
    return value


def checked_extra(who: str, extra: object) -> dict[str, Any]:
    """Return the extra of an asset or an event if it is a dict of JSON values. Raises DagError."""
    if extra is None:
        return {}
    from asynsched.authoring.json_values import check_json

    if not isinstance(extra, dict):
        raise DagError(f"{who}: extra must be a dict, not {type(extra).__name__}")
    try:
        check_json(extra, f"{who}: extra")
    except TypeError as exc:
        raise DagError(str(exc)) from None
    return extra


def _checked_name(name: object) -> str:
    text = check_text("name of an asset", name)
    if text in RESERVED_NAMES:
        raise DagError(f"an asset cannot be named {text!r}: @asset functions have a parameter with that name")
    return text


def sanitized_uri(uri: object) -> str:
    """Return a URI in its normal form: without user, fragment and trailing slashes, and with its query sorted.

    A URI without a scheme, or with one that begins with `x-`, does not change. Raises DagError if it is blank, too long
    or invalid, or has a reserved scheme.
    """
    text = check_text("uri of an asset", str(uri))
    if ":" not in text and not text.startswith("//"):
        return text
    from urllib.parse import parse_qsl, urlencode, urlsplit

    try:
        parts = urlsplit(text)
    except ValueError as exc:
        raise DagError(f"the uri {text!r} of an asset cannot be read: {exc}") from None
    if not parts.scheme or parts.scheme.startswith("x-"):
        return text
    if parts.scheme in RESERVED_SCHEMES:
        raise DagError(f"the uri {text!r} of an asset has the scheme {parts.scheme!r}, which is reserved")
    user, _, host = parts.netloc.rpartition("@")
    if user:
        import warnings

        warnings.warn(
            f"the uri of an asset, at {host!r}, has a user name or password, which is removed",
            UserWarning,
            stacklevel=3,
        )
    query = urlencode(sorted(parse_qsl(parts.query)))
    return parts._replace(netloc=host, path=parts.path.rstrip("/") or "/", query=query, fragment="").geturl()
