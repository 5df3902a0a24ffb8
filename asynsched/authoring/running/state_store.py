"""Values that a task keeps between its tries, `task_state_store`, and values on assets, `asset_state_store`.

Values are JSON. Each `get`, `set`, `delete` and `clear` has a form to await: `aget`, `aset`, `adelete`, `aclear`.

Source: Apache Airflow's `airflow.sdk.execution_time.context`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.assets import Asset, AssetAlias, AssetRef
from asynsched.authoring.json_values import check_json
from asynsched.authoring.running.state_backend import REFERENCE_KEY, AssetScope, TaskScope, state_store_backend
from asynsched.authoring.supervisor import ask, ask_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    AssetKey = Asset | AssetRef

NEVER_EXPIRE = dt.timedelta.max
"""As `retention` of a value: keep it as long as its run."""
LARGE_BYTES = 65_535
"""Larger values are stored with a warning, as in Airflow."""


class _StateStore:
    """Reads and writes values by key: requests that begin with `_kind`, about the task or asset that `_scope` names."""

    _kind: str

    def __init__(self, scope: dict[str, str]) -> None:
        self._scope = scope

    def _place(self) -> Any:
        """Return the scope that a backend gets."""
        raise NotImplementedError

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; the default if there is none."""
        found = ask_or_none(f"{self._kind}_get", **self._scope, key=key)
        if found is None:
            return default
        backend = state_store_backend()
        if backend is None or not isinstance(found, dict) or REFERENCE_KEY not in found:
            return found
        return getattr(backend, f"deserialize_{self._kind}_store_from_ref")(found[REFERENCE_KEY])

    def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        ask(f"{self._kind}_delete", **self._scope, key=key)
        if (backend := state_store_backend()) is not None:
            backend.delete(self._place(), key)

    def clear(self) -> None:
        """Delete all values."""
        ask(f"{self._kind}_clear", **self._scope)
        if (backend := state_store_backend()) is not None:
            backend.clear(self._place())

    async def aget(self, key: str, default: Any = None) -> Any:
        """Call `get` in a thread."""
        import asyncio

        return await asyncio.to_thread(self.get, key, default)

    async def adelete(self, key: str) -> None:
        """Call `delete` in a thread."""
        import asyncio

        await asyncio.to_thread(self.delete, key)

    async def aclear(self) -> None:
        """Call `clear` in a thread."""
        import asyncio

        await asyncio.to_thread(self.clear)

    def _checked(self, key: str, value: Any) -> Any:
        """Return the stored form of a value: itself, or a backend's reference to it.

        Raises ValueError for None, TypeError for a value that is not JSON.
        """
        if value is None:
            raise ValueError(f"the value of the state key {key!r} must not be None: delete({key!r}) removes it")
        check_json(value, f"the value of the state key {key!r}")
        backend = state_store_backend()
        if backend is not None:
            keep = getattr(backend, f"serialize_{self._kind}_store_to_ref")
            value = {REFERENCE_KEY: keep(value=value, key=key, scope=self._place())}
        _warn_if_large(key, value)
        return value


def _warn_if_large(key: str, value: Any) -> None:
    import json

    size = len(json.dumps(value))
    if size > LARGE_BYTES:
        import logging

        logging.getLogger("asynsched.task").warning(
            "The value of the state key %r has %d bytes. A state store is for values below %d bytes: store the rest"
            " elsewhere, and keep its address.",
            key, size, LARGE_BYTES,
        )  # fmt: skip


class TaskStateStoreAccessor(_StateStore):
    """`task_state_store`: values of one task instance in one run, which all its tries share.

    They stay when it succeeds, and when it is cleared, until they expire or their run is deleted.
    """

    _kind = "task_state"

    def __init__(self) -> None:
        super().__init__({})

    def _place(self) -> Any:
        from asynsched.authoring.running.context import get_current_context

        ti = get_current_context()["ti"]
        return TaskScope(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)

    def set(self, key: str, value: Any, *, retention: dt.timedelta | None = None) -> None:
        """Store a value under a key.

        Args:
            retention: How long the value is kept: NEVER_EXPIRE, a timedelta, or None for the setting
                `retention.task_state_days`.

        Raises:
            ValueError: The value is None.
            TypeError: The value is not JSON; store a datetime as `value.isoformat()`.
        """
        if retention is not None and not isinstance(retention, dt.timedelta):
            raise TypeError(f"retention must be a timedelta or NEVER_EXPIRE, not {type(retention).__name__}")
        seconds = None if retention is None else retention.total_seconds()
        ask("task_state_set", key=key, value=self._checked(key, value), seconds=seconds)

    async def aset(self, key: str, value: Any, *, retention: dt.timedelta | None = None) -> None:
        """Call `set` in a thread."""
        import asyncio

        await asyncio.to_thread(self.set, key, value, retention=retention)

    def __repr__(self) -> str:
        return "<TaskStateStoreAccessor>"


TASK_STATE_STORE = TaskStateStoreAccessor()
"""The store of every task: a request is about the task whose process sends it."""


class AssetStateStoreAccessor(_StateStore):
    """The values of one asset. They belong to no run, and never expire."""

    _kind = "asset_state"

    def __init__(self, *, name: str | None = None, uri: str | None = None) -> None:
        if not name and not uri:
            raise ValueError("AssetStateStoreAccessor() needs a name or a uri")
        super().__init__({"name": name or "", "uri": uri or ""})

    def _place(self) -> Any:
        return AssetScope(name=self._scope["name"] or None, uri=self._scope["uri"] or None)

    def set(self, key: str, value: Any) -> None:
        """Store a value under a key. Raises ValueError if it is None, TypeError if it is not JSON."""
        ask("asset_state_set", **self._scope, key=key, value=self._checked(key, value))

    async def aset(self, key: str, value: Any) -> None:
        """Call `set` in a thread."""
        import asyncio

        await asyncio.to_thread(self.set, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AssetStateStoreAccessor) and self._scope == other._scope

    def __hash__(self) -> int:
        return hash(tuple(self._scope.values()))

    def __repr__(self) -> str:
        return f"<AssetStateStoreAccessor {self._scope['name'] or self._scope['uri']!r}>"


class AssetStateStoreAccessors:
    """`asset_state_store`: the values of each inlet and outlet of a task, by the asset.

    A task with one asset may leave the asset out: `asset_state_store.get("key")`. An alias among the inlets stands for
    the assets that it has stood for until now; an alias among the outlets for none.
    """

    def __init__(self, inlets: Iterable[Any], outlets: Iterable[Any] = ()) -> None:
        known: dict[AssetKey, None] = {}
        for inlet in inlets:
            if isinstance(inlet, AssetAlias):
                found = ask("assets_of_alias", name=inlet.name)
                known.update((Asset(each["name"], each["uri"]), None) for each in found)
            elif isinstance(inlet, (Asset, AssetRef)):
                known[inlet] = None
        known.update((outlet, None) for outlet in outlets if isinstance(outlet, (Asset, AssetRef)))
        self._stores = {key: AssetStateStoreAccessor(name=key.name, uri=key.uri) for key in known}

    def __getitem__(self, key: AssetKey) -> AssetStateStoreAccessor:
        """Return the values of an asset. Raises KeyError for one that is neither inlet nor outlet of the task."""
        if not isinstance(key, (Asset, AssetRef)):
            raise TypeError(f"asset_state_store has assets as keys, not {key!r}")
        for known, store in self._stores.items():
            if known == key or (known.name and known.name == key.name) or (known.uri and known.uri == key.uri):
                return store
        raise KeyError(f"{key!r} is neither an inlet nor an outlet of this task")

    def __getattr__(self, name: str) -> Any:
        if name not in ("get", "set", "delete", "clear", "aget", "aset", "adelete", "aclear"):
            raise AttributeError(name)
        if len(self._stores) != 1:
            raise ValueError(
                f"this task has {len(self._stores)} assets among its inlets and outlets:"
                f" say which, as in asset_state_store[ASSET].{name}(...)"
            )
        return getattr(next(iter(self._stores.values())), name)

    def __repr__(self) -> str:
        return f"<AssetStateStoreAccessors {[*self._stores]!r}>"


def has_assets(inlets: Iterable[Any], outlets: Iterable[Any]) -> bool:
    """Return whether a task has an `asset_state_store`."""
    return any(isinstance(each, (Asset, AssetRef, AssetAlias)) for each in (*inlets, *outlets))
