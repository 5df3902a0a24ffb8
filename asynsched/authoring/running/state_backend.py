"""Backends of the state stores: classes that keep values of tasks and assets elsewhere than in the database.

The setting `state_store_backend` names such a class. It writes a value elsewhere, gives the scheduler a reference to
store, and reads the value by that reference. Only processes that run tasks load it.

Source: Apache Airflow 3.3.2, `airflow.sdk.state`.
"""

from __future__ import annotations

from collections import namedtuple

from asynsched.authoring.exceptions import AsynschedException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REFERENCE_KEY = "__airflow_state_ref__"
"""The key of the stored JSON object that holds a reference."""
TaskScope = namedtuple("TaskScope", "dag_id run_id task_id map_index", defaults=(-1,))
"""A task instance, whose values a backend keeps."""
AssetScope = namedtuple("AssetScope", "asset_id name uri", defaults=(None, None, None))
"""An asset, whose values a backend keeps; `asset_id` is None."""
_path = ""
_backend: BaseStoreBackend | None = None


class BaseStoreBackend:
    """Base class of a store for large values. Each method gets a TaskScope or an AssetScope.

    A subclass overrides the four methods that turn values into references and back, and `delete` and `clear`. A
    reference to a value must depend on its scope and key alone, so that these two find it.
    """

    def delete(self, scope: Any, key: str, *, session: Any = None) -> None:
        """Remove the value of a key, if there is one."""

    def clear(self, scope: Any, *, all_map_indices: bool = False, session: Any = None) -> None:
        """Remove all values."""

    def serialize_task_state_store_to_ref(self, *, value: Any, key: str, scope: Any) -> str:
        """Keep a value of a task, and return the reference to it; by default, the value as JSON."""
        import json

        del key, scope
        return json.dumps(value)

    def deserialize_task_state_store_from_ref(self, stored: str) -> Any:
        """Return the value that a reference leads to."""
        import json

        return json.loads(stored)

    def serialize_asset_state_store_to_ref(self, *, value: Any, key: str, scope: Any) -> str:
        """Do as `serialize_task_state_store_to_ref` for a value of an asset."""
        return self.serialize_task_state_store_to_ref(value=value, key=key, scope=scope)

    def deserialize_asset_state_store_from_ref(self, stored: str) -> Any:
        """Return the value that a reference leads to."""
        return self.deserialize_task_state_store_from_ref(stored)


def set_state_store_backend(path: str) -> None:
    """Set the class that keeps values of state stores, as `package.module.Class`; empty for the database alone."""
    global _path, _backend
    _path, _backend = path, None


def state_store_backend() -> BaseStoreBackend | None:
    """Return the backend of this process, which is made when it is first needed; None if none is configured.

    Raises:
        AsynschedException: The class cannot be imported, or is no subclass of BaseStoreBackend.
    """
    global _backend
    if _backend is None and _path:
        from asynsched.authoring.class_paths import imported_class

        try:
            _backend = imported_class(_path, BaseStoreBackend)()
        except ImportError as exc:
            raise AsynschedException(f"state_store_backend: {exc}") from exc
    return _backend
