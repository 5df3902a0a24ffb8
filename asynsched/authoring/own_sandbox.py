"""Leaves the name `sandbox` to user code, although asynsched has a package with that name.

A DAG folder, which comes last in `sys.path`, may have its own module `sandbox`. So before a process imports user code,
it removes asynsched's modules from `sys.modules`, and makes the import system prefer any other `sandbox` in `sys.path`.
From then on, asynsched imports its own package within `own_sandbox`.
"""

import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import asynsched

_NAME = "sandbox"
_FOLDER = Path(asynsched.__file__).parent.with_name(_NAME)
_FILE = str(_FOLDER / "__init__.py")

_own: dict[str, ModuleType] = {}
"""The modules of asynsched's package while the name belongs to user code."""


def give_way() -> None:
    """From now on, make `import sandbox` prefer any other module with that name. Call this once."""
    _own.update(_take_modules())
    for entry in sys.path:
        found = pkgutil.get_importer(entry)
        if isinstance(found, importlib.machinery.FileFinder) and is_own(found.find_spec(_NAME)):
            hiding = _HidingFinder(entry)
            vars(hiding).update(vars(found))
            sys.path_importer_cache[entry] = hiding


@contextmanager
def own_sandbox() -> Iterator[None]:
    """Within this context, `sandbox` is asynsched's package."""
    if not _own and _is_visible():
        yield
        return
    others = _take_modules()
    if _own:
        sys.modules.update(_own)
    else:
        _load()
    sys.meta_path.insert(0, _OwnFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_OwnFinder)
        _own.update(_take_modules())
        sys.modules.update(others)


def is_own(spec: importlib.machinery.ModuleSpec | None) -> bool:
    """Return whether this is the location of asynsched's package."""
    return spec is not None and spec.origin == _FILE


class _OwnFinder:
    """Finds the modules of asynsched's package before those with the same names of a DAG file's version."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the location of a module in the package."""
        is_ours = fullname.startswith(f"{_NAME}.")
        return importlib.machinery.PathFinder.find_spec(fullname, path, target) if is_ours else None


class _HidingFinder(importlib.machinery.FileFinder):
    """Finds the modules beside asynsched's package, but the package itself only if no other has its name."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname == _NAME and _is_elsewhere(sys.path):
            return None
        return super().find_spec(fullname, target)


def _is_elsewhere(entries: Iterable[str]) -> bool:
    finders = (pkgutil.get_importer(entry) for entry in entries)
    others = (finder for finder in finders if finder is not None and not isinstance(finder, _HidingFinder))
    return any(finder.find_spec(_NAME) is not None for finder in others)


def _take_modules() -> dict[str, ModuleType]:
    """Remove `sandbox` and its submodules from `sys.modules`, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == _NAME]
    return {name: sys.modules.pop(name) for name in names}


def _is_visible() -> bool:
    """Return whether `import sandbox` finds asynsched's package."""
    module = sys.modules.get(_NAME)
    return is_own(importlib.util.find_spec(_NAME)) if module is None else getattr(module, "__file__", None) == _FILE


def _load() -> None:
    """Import asynsched's package from its location, although another one would be found first."""
    spec = importlib.util.spec_from_file_location(_NAME, _FILE, submodule_search_locations=[str(_FOLDER)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[_NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
