"""The context of a running task: the values for templates and functions, with Airflow's names."""

from __future__ import annotations

from contextlib import suppress

from asynsched.authoring.airflow_2 import OLD_VALUES, source_of_value, tell_of_value, value_of_context
from asynsched.errors import AsynschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any

CONTEXT_KEYS = frozenset({
    "asset_state_store", "conf", "conn", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds",
    "ds_nodash", "exception", "expanded_ti_count", "inlet_events", "inlets", "logical_date", "macros",
    "map_index_template", "outlet_events", "outlets", "params", "partition_date", "partition_key",
    "prev_data_interval_end_success", "prev_data_interval_start_success", "prev_end_date_success",
    "prev_start_date_success", "reason", "run_id", "start_date", "task", "task_instance", "task_instance_key_str",
    "task_reschedule_count", "task_state_store", "templates_dict", "test_mode", "ti", "triggering_asset_events",
    "try_number", "ts", "ts_nodash", "ts_nodash_with_tz", "var",
})  # fmt: skip
"""Parameters of a task's function that need no argument."""


class Deferred:
    """A value of a context that is requested from the scheduler on first use."""

    __slots__ = ("find",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find

    def __repr__(self) -> str:
        return "..."


class Unmade(Deferred):
    """A value that is made on first use, without a request."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self.find())


class Context(dict[str, "Any"]):
    """The values that a running task can use, by name. Without a logical date, dates that depend on it are missing.

    Some values are requested from the scheduler on first use, and then kept. `repr` requests nothing, and shows `...`
    in their place.

    Attributes:
        has_rendered: Whether a template was rendered with these values.
    """

    has_rendered = False

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Deferred):
            value = self[key] = value.find()
        return value

    def __iter__(self) -> Iterator[str]:
        # Because this is Python code, `dict(context)` and `**context` read each value by `__getitem__`.
        return super().__iter__()

    def __missing__(self, key: str) -> Any:
        # Values of Airflow 2 can be read, but are not listed with the others.
        if not self._has_old(key):
            raise KeyError(key)
        tell_of_value(self["task"], key)
        return value_of_context(self.__getitem__, key)

    def old_values(self, named: Collection[str], *, takes_any: bool, without: Collection[str]) -> dict[str, Any]:
        """Return the values of Airflow 2 for a function's parameters, and for its `**` all that can be found."""
        old = [name for name in OLD_VALUES if self._has_old(name)]
        found = {name: self[name] for name in old if name in named and name not in without}
        for name in old if takes_any else ():
            if name not in named:
                # The timetable may be the user's own.
                with suppress(Exception):
                    found[name] = value_of_context(self.__getitem__, name)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self or self._has_old(key) else default

    def _has_old(self, key: str) -> bool:
        return key in OLD_VALUES and source_of_value(key) in self

    def items(self) -> dict_items[str, Any]:
        return dict(self).items()

    def values(self) -> dict_values[str, Any]:
        return dict(self).values()

    def pop(self, key: str, *default: Any) -> Any:
        return _found(super().pop(key, *default))

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        return key, _found(value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        super().setdefault(key, default)
        return self[key]

    def with_deferred(self) -> dict[str, Any]:
        """Return a copy with deferred values still deferred."""
        return dict(super().items())


def _found(value: Any) -> Any:
    return value.find() if isinstance(value, Deferred) else value


_running: list[Context] = []


class NoRunningTask(AsynschedError, RuntimeError):
    """The context of the running task was requested where none runs."""


def get_current_context() -> Context:
    """Return the context of the running task. Raises NoRunningTask outside of a task."""
    if not _running:
        raise NoRunningTask("get_current_context() works only inside a running task")
    return _running[-1]


class CurrentContext:
    """Within `with CurrentContext(context):`, `get_current_context` returns that context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Context:
        _running.append(self._context)
        return self._context

    def __exit__(self, *_: object) -> None:
        _running.pop()


own_variables: Callable[[Context], Mapping[str, str]] | None = None
"""Returns the variables that a policy adds to `context_variables`; None: there is no such policy."""


def context_variables(context: Context) -> dict[str, str]:
    """Return environment variables that describe the task to its process and commands, with Airflow's names.

    A context without a task instance, as tests of operators pass it, has none. Raises what a policy raises.
    """
    if "ti" not in context:
        return {}
    described = variables_of_task(context)
    return described if own_variables is None else {**own_variables(context), **described}


def variables_of_task(context: Context) -> dict[str, str]:
    """Return those of the variables that no policy has added."""
    ti, email = context["ti"], context["task"].email
    values = {
        "AIRFLOW_CTX_DAG_ID": ti.dag_id,
        "AIRFLOW_CTX_TASK_ID": ti.task_id,
        "AIRFLOW_CTX_DAG_RUN_ID": ti.run_id,
        "AIRFLOW_CTX_TRY_NUMBER": ti.try_number,
        "AIRFLOW_CTX_DAG_OWNER": context["task"].owner,
        "AIRFLOW_CTX_DAG_EMAIL": email if email is None or isinstance(email, str) else ",".join(email),
        "AIRFLOW_CTX_LOGICAL_DATE": context.get("ts"),
    }
    # Empty values are left out, and NUL characters removed: the environment cannot hold them.
    return {name: str(value).replace("\0", "") for name, value in values.items() if value}


def outlet_events(context: Context) -> list[dict[str, Any]]:
    """Return the events that the task described for its outlets. Raises DagError if an extra is not JSON."""
    events = context.with_deferred().get("outlet_events")
    return [] if events is None or isinstance(events, Deferred) else events.fields()
