"""Listeners: functions of plugins that Airflow calls when a task instance or a run changes its state.

A process without listeners does not load this module, and so not pluggy. DAG files import from it by Airflow's names.

Source of the hooks and their arguments: Apache Airflow 3.3.2, `airflow/listeners/spec`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from pluggy import HookimplMarker, HookspecMarker, PluginManager

from asynsched.authoring.assets import Asset, AssetAlias, AssetRef

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator
    from typing import Any

    from asynsched.authoring.running.context import Context
    from asynsched.authoring.running.try_context import OutletEvents

hookspec = HookspecMarker("airflow")
hookimpl = HookimplMarker("airflow")
RUN_EVENTS = ("on_dag_run_running", "on_dag_run_success", "on_dag_run_failed")
CREATION_EVENTS = ("on_asset_created", "on_asset_alias_created")
IMPORT_ERROR_EVENTS = ("on_new_dag_import_error", "on_existing_dag_import_error")
COMPONENT_EVENTS = ("on_starting", "before_stopping")
ASSET_EVENTS = ("on_asset_changed", "on_asset_event_emitted")


class _Hooks:
    """Every hook of Airflow. docs/how-to/plugins-and-policies.md says when asynsched calls each."""

    @hookspec
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None: ...
    @hookspec
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None: ...
    @hookspec
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None: ...
    @hookspec
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None: ...
    @hookspec
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None: ...
    @hookspec
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None: ...
    @hookspec
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None: ...
    @hookspec
    def on_asset_created(self, asset: Any) -> None: ...
    @hookspec
    def on_asset_alias_created(self, asset_alias: Any) -> None: ...
    @hookspec
    def on_asset_changed(self, asset: Any) -> None: ...
    @hookspec
    def on_asset_event_emitted(self, asset_event: Any) -> None: ...
    @hookspec
    def on_new_dag_import_error(self, filename: Any, stacktrace: Any) -> None: ...
    @hookspec
    def on_existing_dag_import_error(self, filename: Any, stacktrace: Any) -> None: ...
    @hookspec
    def on_starting(self, component: Any) -> None: ...
    @hookspec
    def before_stopping(self, component: Any) -> None: ...


class Job(NamedTuple):
    """A scheduler, as `on_starting` and `before_stopping` get it. Its fields have Airflow's names."""

    id: str
    hostname: str
    unixname: str
    start_date: dt.datetime
    state: str = "running"
    job_type: str = "SchedulerJob"


class AssetEvent(NamedTuple):
    """An update of an asset, as `on_asset_event_emitted` gets it. Its fields have Airflow's names."""

    asset: Asset | AssetRef
    extra: dict[str, Any]
    source_dag_id: str | None
    source_task_id: str | None
    source_run_id: str | None
    source_map_index: int | None
    source_aliases: list[AssetAlias]
    partition_key: str | None
    partition_date: dt.datetime | None = None


def asset_events_of(context: Context) -> Iterator[AssetEvent]:
    """Yield the updates that follow from a task's success: those of its outlets, and of assets added to aliases."""
    ti, run = context["ti"], context["dag_run"]
    source = (ti.dag_id, ti.task_id, ti.run_id, ti.map_index)
    told: OutletEvents = context["outlet_events"]
    aliases: dict[tuple[Asset | AssetRef, str], tuple[dict[str, Any], list[AssetAlias]]] = {}
    for outlet in context["task"].outlets:
        if isinstance(outlet, AssetAlias):
            for asset, extra in told[outlet].asset_alias_events:
                # Events of one asset with the same extra are one, under however many aliases.
                aliases.setdefault((asset, repr(extra)), (extra, []))[1].append(outlet)
            continue
        for key in sorted(told[outlet].partition_keys) or [run.partition_key]:
            date = run.partition_date if key == run.partition_key else None
            yield AssetEvent(outlet, told[outlet].extra, *source, [], key, date)
    for (asset, _), (extra, sources) in aliases.items():
        yield AssetEvent(asset, extra, *source, sources, run.partition_key, run.partition_date)


class ListenerManager:
    """The listeners of this process; `hook` calls them."""

    def __init__(self) -> None:
        self.pm = PluginManager("airflow")
        self.pm.add_hookspecs(_Hooks)

    @property
    def hook(self) -> Any:
        return self.pm.hook

    @property
    def has_listeners(self) -> bool:
        return bool(self.pm.get_plugins())

    def add_listener(self, listener: Any) -> None:
        """Add a listener, a module or an object. Raises an error of pluggy if a hook has an unknown argument."""
        if not self.pm.is_registered(listener):
            self.pm.register(listener)

    def hears(self, event: str) -> bool:
        """Return whether any listener has this hook."""
        return bool(getattr(self.hook, event).get_hookimpls())

    def tell(self, event: str, **arguments: Any) -> list[str]:
        """Call a hook of every listener. One that fails is logged; returns its error in one line."""
        import logging

        try:
            getattr(self.hook, event)(**arguments)
        except Exception as exc:
            exc.__suppress_context__ = True  # the task's own error, if any, is logged as such
            logging.getLogger("asynsched.task").exception("A listener's %s failed", event)
            return [f"a listener's {event} failed: {type(exc).__name__}: {exc}"]
        return []


@cache
def get_listener_manager() -> ListenerManager:
    """Return the manager of this process."""
    return ListenerManager()
