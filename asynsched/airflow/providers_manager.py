"""ProvidersManager: tells providers about the installed providers."""

from __future__ import annotations

from collections import namedtuple

from asynsched.authoring.class_paths import imported
from asynsched.authoring.providers import hook_paths, providers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HookInfo = namedtuple(
    "HookInfo",
    "hook_class_name connection_id_attribute_name package_name hook_name connection_type connection_testable dialects",
)
"""The hook of a type of connections."""
ProviderInfo = namedtuple("ProviderInfo", "version data")
DialectInfo = namedtuple("DialectInfo", "name dialect_class_name provider_name")


def _hook(connection_type: str) -> HookInfo | None:
    """Return the hook of a type of connections; None if no installed provider has one. Raises ImportError."""
    if connection_type not in (paths := hook_paths()):
        return None
    path, package = paths[connection_type]
    hook = imported(path)
    return HookInfo(
        hook_class_name=path,
        connection_id_attribute_name=hook.conn_name_attr,
        package_name=package,
        hook_name=getattr(hook, "hook_name", connection_type),
        connection_type=connection_type,
        connection_testable=hasattr(hook, "test_connection"),
        dialects=[],
    )


class _Hooks(dict[str, "HookInfo | None"]):
    """Hooks by type of connection; each is imported when it is asked for."""

    def __getitem__(self, connection_type: str) -> HookInfo | None:
        if super().__getitem__(connection_type) is None:
            self[connection_type] = _hook(connection_type)
        return super().__getitem__(connection_type)

    def get(self, connection_type: str, default: Any = None) -> Any:
        # Not `super().get`, which would not import the hook.
        return self[connection_type] if connection_type in self else default  # noqa: SIM401


class ProvidersManager:
    """The installed providers, and their hooks, decorators and SQL dialects."""

    @property
    def providers(self) -> dict[str, ProviderInfo]:
        """The version and the description of each provider, by package."""
        return {one.distribution: ProviderInfo(one.version, one.info) for one in providers()}

    @property
    def hooks(self) -> Mapping[str, HookInfo | None]:
        """The hooks, by type of connection."""
        return _Hooks(dict.fromkeys(hook_paths()))

    @property
    def taskflow_decorators(self) -> dict[str, Any]:
        """The functions behind `@task.name`, by name."""
        return {name: imported(path) for one in providers() for name, path in one.task_decorators.items()}

    @property
    def dialects(self) -> dict[str, DialectInfo]:
        """The SQL dialects, by type."""
        return {
            given["dialect-type"]: DialectInfo(given["dialect-type"], given["dialect-class-name"], one.distribution)
            for one in providers()
            for given in one.info.get("dialects", ())
        }

    @property
    def queue_class_names(self) -> list[str]:
        """The class paths of the message queues that triggers can listen to, sorted."""
        return sorted({path for one in providers() for path in one.info.get("queues", ())})

    def initialize_providers_queues(self) -> None:
        """Do nothing: queues are looked up when they are asked for."""
