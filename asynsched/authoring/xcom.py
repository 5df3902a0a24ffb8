"""XComs as tasks write and read them, and BaseXCom, the base of classes that keep values elsewhere.

The setting `xcom_backend` names such a class. It writes a value elsewhere, gives the scheduler a reference to
store, and reads the value by that reference. Only processes that run user code load it.
"""

from __future__ import annotations

from collections import namedtuple

from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.supervisor import SupervisorNotFound, ask, ask_in_parts
from asynsched.authoring.transport import TYPE_KEY, from_transport, to_transport
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

XComResult = namedtuple("XComResult", "key value")
"""A stored XCom, as `deserialize_value` gets it."""
_BUILT_IN = ("", "airflow.sdk.bases.xcom.BaseXCom", "airflow.models.xcom.BaseXCom", "asynsched.BaseXCom")
_path = ""
_class: type[BaseXCom] | None = None


def set_xcom_backend(path: str) -> None:
    """Set the class that writes and reads XComs in this process, as `package.module.Class`; empty for asynsched's."""
    global _path, _class
    _path, _class = path, None


def xcom_class() -> type[BaseXCom]:
    """Return the class that writes and reads XComs, which is imported when it is first needed.

    Raises:
        AsynschedException: It cannot be imported, or is no subclass of BaseXCom.
    """
    global _class
    if _class is None:
        _class = BaseXCom if _path in _BUILT_IN else _imported(_path)
    return _class


def _imported(path: str) -> type[BaseXCom]:
    from asynsched.authoring.class_paths import imported_class

    try:
        return imported_class(path.replace(":", "."), BaseXCom)
    except ImportError as exc:
        raise AsynschedException(f"xcom_backend: {exc}") from exc


def written_xcom(value: Any, what: str, key: str, ti: Any) -> Any:
    """Return the JSON that the scheduler stores for an XCom of a task instance.

    `what` names the value in messages. Raises TypeError and ValueError as `to_transport` does.
    """
    cls = xcom_class()
    if cls is BaseXCom:
        return to_transport(value, what)
    ids = {"task_id": ti.task_id, "dag_id": ti.dag_id, "run_id": ti.run_id, "map_index": ti.map_index}
    return _written_by(cls, value, what, key=key, **ids)


def _written_by(cls: type[BaseXCom], value: Any, what: str, **place: Any) -> Any:
    written = cls.serialize_value(value=value, **place)
    # JSON is stored as it is, so that commands show the reference. Some classes return bytes.
    return written if isinstance(written, (str, int, float, list, dict, type(None))) else to_transport(written, what)


def read_xcom(stored: Any, key: str) -> Any:
    """Return the value of an XCom that is stored as this JSON."""
    return _read_by(xcom_class(), stored, key)


def _read_by(cls: type[BaseXCom], stored: Any, key: str) -> Any:
    if cls is BaseXCom:
        return from_transport(stored)
    if isinstance(stored, dict) and stored.get(TYPE_KEY) == "bytes":
        stored = from_transport(stored)
    return cls.deserialize_value(XComResult(key, stored))


def stored_xcoms(**wanted: Any) -> list[tuple[str, int, Any]]:
    """Return the XComs that match: the task_id, the map index and the stored JSON of each."""
    try:
        return [tuple(found) for part in ask_in_parts("xcom_pull", **wanted) for found in part]
    except SupervisorNotFound:
        return []


def pulled_xcoms(**wanted: Any) -> list[tuple[str, int, Any]]:
    """Return the XComs that match: the task_id, the map index and the value of each."""
    return [(name, index, read_xcom(stored, wanted["key"])) for name, index, stored in stored_xcoms(**wanted)]


class BaseXCom:
    """The XComs in the scheduler's database, by DAG, run, task and key.

    A subclass that keeps values elsewhere overrides `serialize_value`, `deserialize_value` and `purge`.
    """

    XCOM_RETURN_KEY = XCOM_RETURN_KEY

    @staticmethod
    def serialize_value(
        value: Any,
        *,
        key: str | None = None,
        task_id: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        map_index: int | None = None,
    ) -> Any:
        """Return the JSON that is stored for a value. A subclass may return a reference to the value, such as a URL."""
        del task_id, dag_id, run_id, map_index
        return to_transport(value, f"XCom {key!r}")

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        """Return the value of a stored XCom, whose JSON is `result.value`."""
        return from_transport(result.value)

    def orm_deserialize_value(self: Any) -> Any:
        """Return the value without the work of `deserialize_value`, for backends written for Airflow 2.

        Its web page called it. Here, commands and the page show what is stored, and run no user code.
        """
        return BaseXCom.deserialize_value(self)

    @classmethod
    def purge(cls, xcom: Any, *args: Any) -> None:
        """Remove the value that the JSON `xcom.value` refers to from where the subclass keeps it."""

    @classmethod
    def get_one(
        cls,
        *,
        key: str,
        dag_id: str,
        task_id: str,
        run_id: str,
        map_index: int | None = None,
        include_prior_dates: bool = False,
    ) -> Any:
        """Return an XCom; None if there is none. Of a mapped task without `map_index`, that of its first instance.

        Raises:
            SupervisorError: No task is running.
        """
        indexes = None if map_index is None else [map_index]
        found = cls._stored(key, dag_id, task_id, run_id, indexes, include_prior_dates)
        return _read_by(cls, found[0], key) if found else None

    @classmethod
    def get_all(
        cls, *, key: str, dag_id: str, task_id: str, run_id: str, include_prior_dates: bool = False
    ) -> list[Any] | None:
        """Return the XComs of all instances of a task, by map index; None if there are none."""
        found = cls._stored(key, dag_id, task_id, run_id, None, include_prior_dates)
        return [_read_by(cls, stored, key) for stored in found] or None

    @classmethod
    def get_value(cls, *, ti_key: Any, key: str) -> Any:
        """Return the XCom of a task instance, given that or its key; None if there is none."""
        return cls.get_one(
            key=key, task_id=ti_key.task_id, dag_id=ti_key.dag_id, run_id=ti_key.run_id, map_index=ti_key.map_index
        )

    @classmethod
    def set(
        cls, key: str, value: Any, *, dag_id: str, task_id: str, run_id: str, map_index: int = -1, **_of_airflow: Any
    ) -> None:
        """Store an XCom of the running task.

        Raises:
            AsynschedException: The ids are another task's. Only a task itself can write its XComs.
        """
        place = {"task_id": task_id, "dag_id": dag_id, "run_id": run_id, "map_index": map_index}
        _check_own("set", **place)
        what = f"XCom {key!r} of task {task_id!r}"
        ask("xcom_push", key=key, value=_written_by(cls, value, what, key=key, **place))

    @classmethod
    def delete(cls, key: str, task_id: str, dag_id: str, run_id: str, map_index: int | None = None) -> None:
        """Delete an XCom of the running task, and purge the value that it refers to.

        Raises:
            AsynschedException: The ids are another task's.
        """
        index = -1 if map_index is None else map_index
        _check_own("delete", task_id=task_id, dag_id=dag_id, run_id=run_id, map_index=index)
        for stored in cls._stored(key, dag_id, task_id, run_id, [index], include_prior_dates=False):
            cls.purge(XComResult(key, stored))
            ask("xcom_delete", key=key)

    @classmethod
    async def aget_one(cls, **wanted: Any) -> Any:
        """Call `get_one` in a thread."""
        return await in_thread(cls.get_one, **wanted)

    @classmethod
    async def aget_all(cls, **wanted: Any) -> Any:
        """Call `get_all` in a thread."""
        return await in_thread(cls.get_all, **wanted)

    @classmethod
    async def aget_value(cls, *, ti_key: Any, key: str) -> Any:
        """Call `get_value` in a thread."""
        return await in_thread(cls.get_value, ti_key=ti_key, key=key)

    @classmethod
    async def aset(cls, key: str, value: Any, **place: Any) -> None:
        """Call `set` in a thread."""
        await in_thread(cls.set, key, value, **place)

    @classmethod
    def _stored(
        cls,
        key: str,
        dag_id: str,
        task_id: str,
        run_id: str,
        map_indexes: list[int] | None,
        include_prior_dates: bool,
    ) -> list[Any]:
        found = stored_xcoms(
            task_ids=[task_id],
            key=key,
            map_indexes=map_indexes,
            run_id=run_id,
            dag_id=dag_id,
            include_prior_dates=include_prior_dates,
        )
        return [stored for _, _, stored in found]


def _check_own(what: str, **place: Any) -> None:
    from asynsched.authoring.running.context import get_current_context

    ti = get_current_context()["ti"]
    if any(getattr(ti, name) != value for name, value in place.items()):
        raise AsynschedException(
            f"XCom.{what}() for task {place['task_id']!r} of DAG {place['dag_id']!r}: only the task itself can write"
            " its XComs"
        )


async def in_thread(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread, which waits for the answer of the scheduler."""
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


def __getattr__(name: str) -> Any:
    """Return the class of this process as `XCom`, the name that it has in Airflow."""
    if name == "XCom":
        return xcom_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
