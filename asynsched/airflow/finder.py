"""The import finder: `import airflow...` gives asynsched's equivalents, and the provider packages that are installed.

A module is made when it is imported, and each of its names is looked up when it is used. So a file pays only for the
names that it uses. Where the real Airflow is installed beside the providers, its core stays out of the process: a
class of it would be no class of asynsched's.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder

from asynsched.airflow import configuration, names
from asynsched.authoring.connection import set_secrets_backend
from asynsched.authoring.defaults import options_of_operators, set_defaults
from asynsched.authoring.running.state_backend import set_state_store_backend
from asynsched.authoring.xcom import set_xcom_backend
from asynsched.errors import DagWarning, MovedNameWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any, Final

    from asynsched.authoring.connection import SecretsBackend

ROOT: Final = "airflow"
PROVIDERS = "airflow.providers"
SERVED_PROVIDER = "airflow.providers.standard"
"""Its classes are asynsched's own, also where the package is installed."""


def serve_airflow(kind: str, options: Mapping[str, str] | None = None) -> None:
    """From now on, make `import airflow` mean what the setting `airflow` says. Call this once, before user code.

    Args:
        kind: `ours`, `installed` (whatever Python finds), or `off` (nothing).
        options: What `conf` answers, by `section.key`, before it looks at the environment.
    """
    configuration.set_options((options or {}) if kind == "ours" else {})
    set_defaults({**options_of_operators(configuration.options_in(os.environ)), **(options or {})})
    set_xcom_backend(_class_path(options, "core", "xcom_backend"))
    set_state_store_backend(_class_path(options, "workers", "state_store_backend"))
    offer_secrets_backend()
    if kind == "ours":
        sys.meta_path.insert(0, AirflowFinder())
    elif kind == "off":
        sys.meta_path.insert(0, _NoAirflow())


@contextmanager
def served_in_program() -> Iterator[None]:
    """While a user's own program runs a DAG, make `import airflow` mean what `ASYNSCHED_AIRFLOW` says.

    Where it has a meaning already, by the program's own import or in a process of asynsched, that stays.
    """
    offer_secrets_backend()
    spec = getattr(sys.modules.get(ROOT), "__spec__", None)
    is_theirs = ROOT in sys.modules and not isinstance(getattr(spec, "loader", None), AirflowFinder)
    if is_theirs or any(map(_is_ours, sys.meta_path)):
        yield
        return
    serve_airflow(os.environ.get("ASYNSCHED_AIRFLOW") or "ours")
    try:
        yield
    finally:
        sys.meta_path[:] = [one for one in sys.meta_path if not _is_ours(one)]


def _is_ours(finder: object) -> bool:
    return isinstance(finder, (AirflowFinder, _NoAirflow))


def _class_path(options: Mapping[str, str] | None, section: str, option: str) -> str:
    return (options or {}).get(f"{section}.{option}") or os.environ.get(f"AIRFLOW__{section}__{option}".upper(), "")


def offer_secrets_backend() -> None:
    """From now on, ask a configured secrets backend for connections and variables; it is loaded when one is needed."""
    set_secrets_backend(_secrets_backend)


def _secrets_backend() -> SecretsBackend:
    from asynsched.airflow import secrets

    return secrets


EXAMPLES = "airflow.example_dags"
"""Airflow's own example files: DAG files, which use public names and import one another. They are served where they lie
on the path, as providers are."""
_FAMILIES = ("apache", "atlassian", "cncf", "common", "dbt", "microsoft")
"""Folders that have several providers."""


class AirflowFinder:
    """Finds the modules of the table, and the parts of installed providers."""

    def __init__(self) -> None:
        self._modules = _with_packages((*names.SERVED, *names.WHOLE, *names.MOVED, *names.MOVED_WHOLE, PROVIDERS))

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of Airflow's; None for other modules.

        Raises:
            ImportError: It cannot work here; the message says why.
            ModuleNotFoundError: There is no such module, or no such provider is installed.
        """
        if fullname != ROOT and not fullname.startswith("airflow."):
            return None
        if fullname in self._modules:
            spec = ModuleSpec(fullname, self, is_package=self._modules[fullname])  # type: ignore[arg-type]
            if spec.submodule_search_locations is not None and is_provider(fullname):
                spec.submodule_search_locations = list(_installed(fullname))
            return spec
        if is_provider(fullname) or f"{fullname}.".startswith(f"{EXAMPLES}."):
            found = PathFinder.find_spec(fullname, list(_installed(ROOT)) if fullname == EXAMPLES else path)
            if found is not None:
                return found
            if fullname.removeprefix(f"{PROVIDERS}.") in _FAMILIES:
                # The import goes on to the provider, so that the error names it.
                return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        if fullname in names.EMPTY:
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        if reason := refusal(fullname):
            raise ImportError(f"{fullname} cannot be imported: {reason}", name=fullname)
        raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Return None: Python makes an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module functions that look a name up when it is first used."""
        contents = ServedModule(module, self._modules)
        vars(module).update(__getattr__=contents.find, __dir__=contents.public, __all__=contents.public())


class ServedModule:
    """The names of one module of Airflow's."""

    def __init__(self, module: ModuleType, modules: Container[str]) -> None:
        self._module = module
        self._modules = modules
        self._name = module.__name__
        self._homes = dict(_pairs(names.SERVED.get(self._name, {})))
        self._moved = dict(_pairs(names.MOVED.get(self._name, {})))

    def public(self) -> list[str]:
        """Return the names of the module that can be used, sorted; `import *` takes all of them."""
        whole = self._whole()
        of_whole = () if whole is None else (name for name in dir(whole) if not name.startswith("_"))
        known = {*self._homes, *self._moved, *of_whole}
        return sorted(name for name in known if f"{self._name}.{name}" not in names.UNUSABLE)

    def find(self, name: str) -> Any:
        """Return the equivalent of a name of the module. Raises AttributeError if asynsched has none."""
        if name in self._homes:
            home, ours = self._homes[name]
            value = getattr(importlib.import_module(home), ours)
            if reason := names.UNUSABLE.get(f"{self._name}.{name}"):
                _warn(DagWarning(f"{self._name}.{name} can be imported, but its use is an error: {reason}"), 3)
        elif name in self._moved:
            value = self._find_moved(name)
        elif (submodule := f"{self._name}.{name}") in self._modules:
            # Airflow's own imports make its submodules known: `import airflow` was enough for `airflow.utils.dates`.
            value = importlib.import_module(submodule)
        else:
            whole = self._whole()
            if whole is None or name.startswith("_") or not hasattr(whole, name):
                why = f": {names.REFUSED[refused]}" if (refused := f"{self._name}.{name}") in names.REFUSED else ""
                raise AttributeError(
                    f"module {self._name!r} has no attribute {name!r}{why}", name=name, obj=self._module
                )
            value = getattr(whole, name)
        setattr(self._module, name, value)
        return value

    def _find_moved(self, name: str) -> Any:
        place, now = self._moved[name]
        _warn(MovedNameWarning(f"{self._name}.{name}", f"{place}.{now}"), 4)
        return getattr(importlib.import_module(place), now)

    def _whole(self) -> ModuleType | None:
        """Return the module here that has all of its names."""
        if self._name in names.MOVED_WHOLE:
            return importlib.import_module(names.MOVED_WHOLE[self._name])
        home = names.WHOLE.get(self._name)
        return None if home is None else importlib.import_module(home)


class _NoAirflow:
    """Keeps every process from importing Airflow."""

    def find_spec(self, fullname: str, _path: Sequence[str] | None = None, _target: object = None) -> None:
        if fullname == ROOT:
            raise ModuleNotFoundError("No module named 'airflow': the setting airflow is off", name=fullname)


def is_provider(module: str) -> bool:
    """Return whether a module is one of an installable provider, or a package of such."""
    return module == PROVIDERS or (
        module.startswith(f"{PROVIDERS}.") and not (module + ".").startswith(f"{SERVED_PROVIDER}.")
    )


def provider_of(module: str) -> str:
    """Return the name of the provider that has a module.

    >>> provider_of("airflow.providers.cncf.kubernetes.operators.pod")
    'cncf-kubernetes'
    """
    parts = module.split(".")[2:]
    return "-".join(parts[: 2 if parts[0] in _FAMILIES else 1]).replace("_", "-")


def is_installed(module: str) -> bool:
    """Return whether the provider of a module is on the path."""
    parts = module.split(".")
    return any(_installed(".".join(parts[: 4 if parts[2] in _FAMILIES else 3])))


def refusal(module: str) -> str:
    """Return why a module cannot work here; empty if nothing is known."""
    if module.startswith(f"{names.CONTRIB}."):
        from asynsched.airflow.contrib import replacement

        return replacement(module)
    while module:
        if module in names.REFUSED:
            return names.REFUSED[module]
        module = module.rpartition(".")[0]
    return ""


def _with_packages(modules: Sequence[str]) -> dict[str, bool]:
    """Return these modules and the packages that they are in, and whether each is a package."""
    found = dict.fromkeys(modules, False)
    for module in modules:
        while "." in module:
            module = module.rpartition(".")[0]
            found[module] = True
    found[PROVIDERS] = True
    return found


def _pairs(places: dict[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each of Airflow's names with the module that has it here, and its name there."""
    for place, texts in places.items():
        for text in texts.split():
            theirs, _, ours = text.partition("=")
            yield theirs, (place, ours or theirs)


def _installed(package: str) -> Iterator[str]:
    """Yield the folders of a package of providers."""
    relative = package.replace(".", "/")
    for entry in sys.path:
        folder = os.path.join(entry, relative)  # noqa: PTH118 - pathlib would be loaded for this
        if os.path.isdir(folder):  # noqa: PTH112
            yield folder


def _warn(warning: Warning, n_frames: int) -> None:
    """Warn of an import; `n_frames` are those from here to the importing statement, both included."""
    import warnings

    from asynsched.authoring.active import show_only_in_parses

    show_only_in_parses(type(warning))
    warnings.warn(warning, stacklevel=n_frames)
