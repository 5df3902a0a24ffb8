"""Plugins: additions of an installation for all DAG files, as `AirflowPlugin` classes in its own folder or in packages.

Macros, operator links, listeners and readers of lineage take effect. DAG files can use timetables, priority weight
strategies, partition mappers, windows and deadline references without a plugin, and so with one. Additions to Airflow's
web page and services have no effect.

Source of the names and of how plugins are found: Apache Airflow 3.3.2, `airflow/plugins_manager.py`.
"""

from __future__ import annotations

import os
import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType
    from typing import Any

ENTRY_POINTS = "airflow.plugins"
USED = (
    "macros", "operator_extra_links", "global_operator_extra_links", "listeners", "timetables",
    "priority_weight_strategies", "partition_mappers", "windows", "deadline_references", "hook_lineage_readers",
)  # fmt: skip
"""Parts of a plugin that have an effect."""
IGNORED = (
    "admin_views", "flask_blueprints", "fastapi_apps", "fastapi_root_middlewares", "external_views", "react_apps",
    "menu_links", "appbuilder_views", "appbuilder_menu_items",
)  # fmt: skip
_MACROS = ("airflow.sdk.execution_time.macros", "airflow.macros")


class AirflowPluginException(Exception):
    """A plugin is invalid."""


class AirflowPlugin:
    """Base class of plugins. Subclasses list what they add to Airflow."""

    name: str | None = None
    source: Any = None
    macros: list[Any] = []  # noqa: RUF012 - subclasses replace them
    admin_views = flask_blueprints = fastapi_apps = fastapi_root_middlewares = external_views = react_apps = macros
    menu_links = appbuilder_views = appbuilder_menu_items = global_operator_extra_links = macros
    operator_extra_links = timetables = partition_mappers = windows = deadline_references = listeners = macros
    hook_lineage_readers = priority_weight_strategies = macros

    @classmethod
    def validate(cls) -> None:
        """Raise AirflowPluginException if the plugin has no name."""
        if not cls.name:
            raise AirflowPluginException(f"the plugin {cls.__name__} has no name")

    @classmethod
    def on_load(cls, *_args: Any, **_kwargs: Any) -> None:
        """Do what the plugin needs when it is loaded. Subclasses may implement this."""


class Plugins:
    """The plugins of this process. `errors` says for each file or entry point why it gave none."""

    def __init__(self) -> None:
        self.plugins: list[AirflowPlugin] = []
        self.errors: dict[str, BaseException] = {}

    def load(
        self, folder: str, entry_points: str, *, without: Collection[str] = (),
        begin: Callable[[str], object] = lambda _: None,
    ) -> None:  # fmt: skip
        """Load the plugins of a folder, then the plugins of entry points (`module:class`, separated by spaces).

        Args:
            without: Files below the folder, and entry points, that are left out.
            begin: Is told each of these before its code runs, which may end the process.
        """
        found = {os.path.relpath(path, folder): partial(_objects_in, path) for path in python_files(folder)}
        found |= {value: partial(_objects_at, value) for value in entry_points.split()}
        for source, objects in found.items():
            if source not in without:
                begin(source)
                self._add_from(source, objects)

    def _add_from(self, source: str, objects: Callable[[], list[Any]]) -> None:
        try:
            for cls in objects():
                if isinstance(cls, type) and issubclass(cls, AirflowPlugin) and cls is not AirflowPlugin:
                    self._add(cls, source)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - user code; other plugins are loaded all the same
            self.errors[source] = exc

    def _add(self, cls: type[AirflowPlugin], source: str) -> None:
        cls.validate()
        if any(type(plugin) is cls for plugin in self.plugins):
            return  # imported by another plugin file
        if any(plugin.name == cls.name for plugin in self.plugins):
            raise AirflowPluginException(f"there is another plugin of the name {cls.name!r}")
        plugin = cls()
        plugin.source = source
        plugin.on_load()
        _add_macros(plugin)
        self.plugins.append(plugin)

    def links_of(self, operator_class: type) -> Iterator[Any]:
        """Yield the operator links that plugins add to this class of operators."""
        for plugin in self.plugins:
            yield from plugin.global_operator_extra_links
            yield from (link for link in plugin.operator_extra_links if operator_class in link.operators)

    @property
    def listeners(self) -> list[Any]:
        return [listener for plugin in self.plugins for listener in plugin.listeners]


def python_files(folder: str) -> Iterator[str]:
    """Yield the Python files below a folder in the order of their names, except hidden ones."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield from (f"{parent}/{name}" for name in sorted(files) if name.endswith(".py") and not name.startswith("."))


def _module_of(path: str) -> ModuleType:
    """Import a plugin file, under its own name, as the import from a DAG file finds it; another module has priority."""
    import importlib.util

    name = os.path.basename(path).removesuffix(".py")  # noqa: PTH119 - pathlib would be loaded for this
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    if name == "__init__" or known is not None or name in sys.stdlib_module_names:
        name = f"asynsched_plugin_{path.replace('/', '_').removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _objects_in(path: str) -> list[Any]:
    return list(vars(_module_of(path)).values())


def _objects_at(value: str) -> list[Any]:
    return [_object_at(value)]


def _object_at(value: str) -> Any:
    from importlib import import_module

    module, _, names = value.partition(":")
    found: Any = import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def _add_macros(plugin: AirflowPlugin) -> None:
    """Make the macros of a plugin `macros.<plugin>.<name>` in templates, and importable below `airflow.macros`."""
    if not plugin.macros:
        return
    from types import ModuleType

    from asynsched.authoring import macros

    name = str(plugin.name)
    module = ModuleType(f"{_MACROS[0]}.{name}")
    vars(module).update((macro.__name__, macro) for macro in plugin.macros)
    setattr(macros, name, module)
    for package in _MACROS:
        sys.modules[f"{package}.{name}"] = module
