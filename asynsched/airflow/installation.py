"""The installation's own code: plugins, policies, listeners and helper modules, beside the DAG folder or in packages.

    airflow.cfg, dags/, plugins/, config/airflow_local_settings.py, include/

It is user code, so only processes that run user code load it. A parse of an installation without any loads nothing: the
process that forks it has looked.
"""

from __future__ import annotations

import os
import sys
from functools import cache, cached_property

from asynsched.airflow.configuration import option_of_settings, options_in, read_cfg, with_cfg
from asynsched.authoring.defaults import options_of_operators
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any

    from asynsched.airflow.listeners import ListenerManager
    from asynsched.airflow.plugins_manager import Plugins
    from asynsched.airflow.policies import Policies
    from asynsched.authoring.dag import DAG
    from asynsched.authoring.running.context import Context

HELPERS = "include"
CONFIG = "config"
LOCAL_SETTINGS = "airflow_local_settings"
_PLUGIN_PACKAGES, _POLICY_PACKAGES = "asynsched.plugins", "asynsched.policies"
"""Options that name the entry points of installed packages; the scheduler looks for them when it starts."""


def folders_of(plugins_folder: str, airflow_folder: str) -> list[str]:
    """Return the existing folders that hold code of the installation."""
    places = [plugins_folder, *(f"{airflow_folder}/{name}" for name in (CONFIG, HELPERS))]
    return [place for place in places if os.path.isdir(place)]  # noqa: PTH112 - pathlib would be loaded for this


def digest_of(folders: Iterable[str]) -> str:
    """Return a digest of the Python files in these folders; empty without any. Blocks: reads all of them."""
    from asynsched.airflow.plugins_manager import python_files

    digest = None
    for folder in folders:
        for path in python_files(folder):
            import hashlib

            digest = digest or hashlib.sha256()
            try:
                with open(path, "rb") as file:  # noqa: PTH123
                    digest.update(
                        f"\n{os.path.relpath(path, folder)}\n".encode("utf-8", "surrogateescape") + file.read()
                    )
            except OSError:
                continue  # gone meanwhile, or not for this user: its import will say so
    return digest.hexdigest() if digest else ""


def options_of_processes(options: Mapping[str, str], cfg: str | None = None) -> dict[str, str]:
    """Return the options of `serve_airflow` for processes that run user code, with the plugins of installed packages.

    Args:
        options: The options of `Settings.airflow_options`.
        cfg: The airflow.cfg, for processes that may read it.
    """
    of_operators = options_of_operators({**_options_of_cfg(cfg), **options_in(os.environ)})
    return {**of_operators, **with_cfg(options, cfg), **entry_points_of_packages()}


@cache
def _options_of_cfg(path: str | None) -> Mapping[str, str]:
    """Return the options of an airflow.cfg as of the first call: later, the file may be away."""
    return read_cfg(path) if path else {}


@cache
def entry_points_of_packages() -> Mapping[str, str]:
    """Return the options that name plugins and policies of installed packages, as of the first call.

    That call blocks: it reads the metadata of all packages.
    """
    from importlib.metadata import entry_points

    from asynsched.airflow import plugins_manager, policies

    found = {}
    for option, group in ((_PLUGIN_PACKAGES, plugins_manager.ENTRY_POINTS), (_POLICY_PACKAGES, policies.ENTRY_POINTS)):
        if values := sorted({entry.value.partition(" ")[0] for entry in entry_points(group=group)}):
            found[option] = " ".join(values)
    return found


class Installation:
    """The plugins, policies and listeners that this process has loaded."""

    def __init__(
        self, folders: list[str], plugins: Plugins, policies: Policies, manager: ListenerManager | None
    ) -> None:
        self.folders = folders
        self.plugins = plugins
        self.policies = policies
        self._manager = manager

    @cached_property
    def digest(self) -> str:
        """Digest of the code in the folders."""
        return digest_of(self.folders)

    @property
    def events(self) -> tuple[Any, ...]:
        """The events of runs and of new assets and aliases that listeners hear."""
        return self._heard("RUN_EVENTS") + self._heard("CREATION_EVENTS")

    @property
    def import_error_events(self) -> tuple[Any, ...]:
        """The events of files with errors that listeners hear."""
        return self._heard("IMPORT_ERROR_EVENTS")

    @property
    def component_events(self) -> tuple[str, ...]:
        """The events of a scheduler's start and stop that listeners hear."""
        return self._heard("COMPONENT_EVENTS")

    def _heard(self, group: str) -> tuple[str, ...]:
        if (manager := self._manager) is None:
            return ()
        from asynsched.airflow import listeners

        return tuple(event for event in getattr(listeners, group) if manager.hears(event))

    def begins(self, context: Context) -> None:
        """Apply the hook of task instances, before any code of the task runs. An error of the hook is raised."""
        if not self.policies.mutate_tries:
            return
        from asynsched.authoring.awaited_try import ROUTED, own_config

        ti = context["ti"]
        route = {name: getattr(ti, name) for name in ROUTED}
        ti.executor_config = own_config(ti.task)  # with the objects that it has at the parse: a launch has JSON
        self.policies.mutate(ti, context["dag_run"])
        vars(ti).update(route)  # the try runs there by now

    def runs(self, context: Context) -> None:
        """Tell listeners that a task is about to be executed."""
        if self._manager is not None:
            self._manager.tell("on_task_instance_running", previous_state="queued", task_instance=context["ti"])

    def has_ended(self, context: Context, state: str, error: BaseException | None) -> None:
        """Tell listeners how a task's code has ended."""
        if self._manager is None:
            return
        told: dict[str, Any] = {"previous_state": "running", "task_instance": context["ti"]}
        if state == "failed":
            told["error"] = error
        context["ti"].state = state
        self._manager.tell(f"on_task_instance_{state}", **told)
        if state == "success" and context["task"].outlets:
            self._tell_of_assets(self._manager, context)

    def _tell_of_assets(self, manager: ListenerManager, context: Context) -> None:
        from asynsched.airflow.listeners import ASSET_EVENTS, asset_events_of

        if any(manager.hears(event) for event in ASSET_EVENTS):
            for asset_event in asset_events_of(context):
                manager.tell("on_asset_changed", asset=asset_event.asset)
                manager.tell("on_asset_event_emitted", asset_event=asset_event)

    def hears_run(self, event: str, context: Context, reason: str) -> list[str]:
        """Tell listeners of an event of a run. Returns the errors of listeners, each in one line."""
        if self._manager is None:
            return ["no listener is loaded any more"]
        run = context["dag_run"]
        run.state = event.removeprefix("on_dag_run_")
        return self._manager.tell(event, dag_run=run, msg=reason)

    def tells_of_component(self, event: str, component: Any) -> list[str]:
        """Tell listeners that a scheduler starts or stops. Returns their errors, each in one line."""
        return [] if self._manager is None else self._manager.tell(event, component=component)

    def hears(self, event: str, subjects: Iterable[Mapping[str, Any]]) -> list[str]:
        """Tell listeners of new assets or aliases, or of files with errors. Returns their errors, each in one line."""
        if (manager := self._manager) is None:
            return ["no listener is loaded any more"]
        return [error for values in subjects for error in manager.tell(event, **_told(event, values))]


def _told(event: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a hook from the values that the database has of its subject."""
    from asynsched.authoring.assets import Asset, AssetAlias

    match event:
        case "on_asset_created":
            return {"asset": Asset(**values)}
        case "on_asset_alias_created":
            return {"asset_alias": AssetAlias(**values)}
        case _:
            folder = option_of_settings("core.dags_folder")
            return {"filename": f"{folder}/{values['file']}", "stacktrace": values["stacktrace"]}


loaded: Installation | None = None
"""None: there is nothing of the installation's own."""
_is_absent = False


def look() -> None:
    """Find out whether there is anything to load, for processes that are forked from this one.

    Call `serve_airflow` before. A folder that is made later is found by the next process that looks.
    """
    global _is_absent
    dags_folder = option_of_settings("core.dags_folder")
    _is_absent = not (
        _folders()
        or option_of_settings(_PLUGIN_PACKAGES)
        or option_of_settings(_POLICY_PACKAGES)
        or _has_local_settings()
        or os.path.isfile(f"{dags_folder}/{LOCAL_SETTINGS}.py")  # noqa: PTH113 - pathlib would be loaded for this
    )


def load(*, without: Collection[str] = (), begin: Callable[[str], object] = lambda _: None) -> None:
    """Load everything, once in a process that has called `serve_airflow`, with the DAG folder on `sys.path`.

    A plugin that cannot be loaded is an entry in `loaded.plugins.errors`.

    Args:
        without: Sources of plugins, or LOCAL_SETTINGS for all policies, that are left out.
        begin: Is told each of these before its code runs, which may end the process, and "" at the end.

    Raises PolicyError if the policies cannot be loaded.
    """
    if _is_absent or not option_of_settings("asynsched.airflow_folder"):
        return
    try:
        _load(without, begin)
    finally:
        begin("")


def while_loading(source: str) -> str:
    """Return the end of a sentence about a process that ended while it loaded a plugin or the policies; "" for none."""
    if not source:
        return ""
    return f" while loading {'the policies' if source == LOCAL_SETTINGS else f'the plugin {source}'}"


def _load(without: Collection[str], begin: Callable[[str], object]) -> None:
    global loaded
    folders = _folders()
    if folders:
        _make_importable(folders)
    packages, policy_packages = option_of_settings(_PLUGIN_PACKAGES), option_of_settings(_POLICY_PACKAGES)
    has_policies = policy_packages or _has_local_settings()
    if not (folders or packages or has_policies):
        return
    from asynsched.airflow.plugins_manager import Plugins
    from asynsched.airflow.policies import CONTEXT_VARIABLES, Policies
    from asynsched.authoring.running import execution

    plugins, policies = Plugins(), Policies()
    plugins.load(option_of_settings("core.plugins_folder"), packages, without=without, begin=begin)
    begin("")
    manager = _listening(plugins)
    if any(plugin.hook_lineage_readers for plugin in plugins.plugins):
        from asynsched.airflow.lineage import collect

        collect()
    loaded = execution.installation = Installation(folders, plugins, policies, manager)
    if has_policies and LOCAL_SETTINGS not in without:
        begin(LOCAL_SETTINGS)
        policies.load(policy_packages)
    if policies.sources(CONTEXT_VARIABLES):
        from asynsched.airflow.context import own_variables
        from asynsched.authoring.running import context

        context.own_variables = own_variables


def admitted(dags: Iterable[DAG]) -> Iterator[DAG]:
    """Yield the DAGs that the policies admit, and log why they refuse one."""
    for dag in dags:
        try:
            if loaded is None or loaded.policies.admits(dag):
                yield dag
        except DagError as exc:
            import logging

            logging.getLogger("asynsched.task").warning("%s", exc)


def _folders() -> list[str]:
    """Return the folders with the installation's code; none in a process without Airflow's names."""
    folder = option_of_settings("asynsched.airflow_folder")
    return folders_of(option_of_settings("core.plugins_folder"), folder) if folder else []


def _make_importable(folders: list[str]) -> None:
    """Append the folders of plugins and configuration to `sys.path`, and make `include` and `plugins` packages."""
    names = {os.path.basename(folder): folder for folder in folders}  # noqa: PTH119
    sys.path += [folder for name, folder in names.items() if name != HELPERS and folder not in sys.path]
    names.pop(CONFIG, None)
    sys.meta_path.append(_FolderFinder(names))


class _FolderFinder:
    """Finds folders beside the DAG folder as packages, after everything else: `from include.queries import q`.

    The folder above cannot be on `sys.path` instead, because a parse may not read it.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        folder = self._folders.get(fullname)
        if folder is None:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import spec_from_file_location

        if os.path.isfile(f"{folder}/__init__.py"):  # noqa: PTH113
            return spec_from_file_location(fullname, f"{folder}/__init__.py", submodule_search_locations=[folder])
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec


def _has_local_settings() -> bool:
    import importlib.util

    return importlib.util.find_spec(LOCAL_SETTINGS) is not None


def _listening(plugins: Plugins) -> ListenerManager | None:
    """Return the manager with the plugins' listeners; None without any: then pluggy is not loaded."""
    if not plugins.listeners:
        return None
    from asynsched.airflow.listeners import get_listener_manager

    manager = get_listener_manager()
    for plugin in plugins.plugins:
        for listener in plugin.listeners:
            try:
                manager.add_listener(listener)
            except Exception as exc:  # noqa: BLE001 - of pluggy, which has several
                plugins.errors[str(plugin.source)] = exc
    return manager
