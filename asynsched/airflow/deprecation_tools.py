"""Lets packages give old names of objects that have moved, each with a warning."""

from __future__ import annotations

from asynsched.airflow.exceptions import DeprecatedImportWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def add_deprecated_classes(
    module_imports: dict[str, dict[str, str]],
    package: str,
    override_deprecated_classes: dict[str, dict[str, str]] | None = None,
    extra_message: str | None = None,
    message: str | None = None,
) -> None:
    """Add old names to a package: to the package itself, or to modules that it no longer has.

    Args:
        module_imports: For each module, the old names and the places of the objects now; the name `*` stands for all.
            The package itself is named in full, its modules without the package.
        package: The package; it must be imported.
        override_deprecated_classes: Places that the warnings name instead.
        extra_message: A sentence at the end of the warnings.
        message: The warning, with `{module}`, `{name}` and `{target}`.

    Raises:
        ValueError: The package is not imported.
    """
    import sys
    from types import ModuleType

    for module_name, imports in module_imports.items():
        shown = (override_deprecated_classes or {}).get(module_name, {})
        if module_name == package:
            if package not in sys.modules:
                raise ValueError(f"the package {package} is not imported")
            module = sys.modules[package]
        else:
            whole = f"{package}.{module_name}"
            module = sys.modules.setdefault(whole, ModuleType(whole))
        vars(module)["__getattr__"] = _Moved(module.__name__, imports, shown, extra_message or "", message or "")


def getattr_with_deprecation(
    imports: dict[str, str],
    module: str,
    override_deprecated_classes: dict[str, str],
    extra_message: str,
    name: str,
    message_override: str = "",
) -> Any:
    """Return the object with an old name, and warn. Raises AttributeError for other names."""
    return _Moved(module, imports, override_deprecated_classes, extra_message, message_override)(name)


class _Moved:
    """The old names of one module."""

    def __init__(self, module: str, imports: dict[str, str], shown: dict[str, str], extra: str, message: str) -> None:
        self._module = module
        self._imports = imports
        self._shown = shown
        self._extra = extra
        self._message = message or "{module}.{name} is deprecated; use {target}"

    def __call__(self, name: str) -> Any:
        import warnings
        from importlib import import_module

        target = self._imports.get(name)
        if target is None and "*" in self._imports and not name.startswith("__"):
            target = f"{self._imports['*']}.{name}"
        if target is None:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        said = self._message.format(module=self._module, name=name, target=self._shown.get(name, target))
        warnings.warn(f"{said}. {self._extra}." if self._extra else said, DeprecatedImportWarning, stacklevel=2)
        place, _, its_name = target.rpartition(".")
        try:
            return getattr(import_module(place), its_name)
        except ImportError as exc:
            raise ImportError(f"{self._module}.{name} needs {target}, which cannot be imported. {self._extra}") from exc
