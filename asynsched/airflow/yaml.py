"""PyYAML, with its fast loader and dumper where they are installed. asynsched does not need PyYAML itself."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def safe_load(stream: Any) -> Any:
    """Return the value that a YAML text or file describes."""
    yaml = _yaml()
    return yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump(data: Any, **kwargs: Any) -> Any:
    """Return a value as YAML; the arguments are those of `yaml.dump`."""
    yaml = _yaml()
    return yaml.dump(data, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), **kwargs)


def __getattr__(name: str) -> Any:
    return getattr(_yaml(), name)


def _yaml() -> Any:
    from importlib import import_module

    return import_module("yaml")
