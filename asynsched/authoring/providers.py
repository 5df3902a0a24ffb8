"""Installed provider packages, as their entry points describe them.

Source of the entry points and their fields: Apache Airflow's `provider_info.schema.json`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any

ENTRY_POINTS = "apache_airflow_provider"
PREFIX = "apache-airflow-providers-"
STANDARD = "airflow.providers.standard"
BUILT_IN = {
    "fs": f"{STANDARD}.hooks.filesystem.FSHook",
    "package_index": f"{STANDARD}.hooks.package_index.PackageIndexHook",
}
"""The hooks of the standard provider, by type of connection."""
_found: list[Provider] | None = None


class Provider:
    """One installed provider.

    Attributes:
        distribution: Its package on the index.
        version: The installed version.
        info: What it says of itself: `connection-types`, `task-decorators`, `extra-links`, `notifications`,
            `secrets-backends`, … Empty if it cannot say it.
        error: Why it cannot; empty if it can.
    """

    def __init__(self, distribution: str, version: str, info: dict[str, Any], error: str = "") -> None:
        self.distribution = distribution
        self.version = version
        self.info = info
        self.error = error

    @property
    def connection_types(self) -> dict[str, str]:
        """The class path of the hook for each type of connection."""
        return {one["connection-type"]: one["hook-class-name"] for one in self.info.get("connection-types", ())}

    @property
    def task_decorators(self) -> dict[str, str]:
        """The class path of the function behind each `@task.name`."""
        return {one["name"]: one["class-name"] for one in self.info.get("task-decorators", ())}

    @property
    def asset_factories(self) -> dict[str, str]:
        """The path of the function that makes an asset, for each scheme of URIs."""
        described = self.info.get("asset-uris", ())
        return {scheme: one["factory"] for one in described if one.get("factory") for scheme in one["schemes"]}

    @property
    def asset_handlers(self) -> dict[str, str | None]:
        """The path of the function that normalizes URIs, for each scheme; None: they stay as they are."""
        described = self.info.get("asset-uris", ())
        return {scheme: one["handler"] for one in described if "handler" in one for scheme in one.get("schemes", ())}


def installed_providers() -> list[Provider]:
    """Return the installed providers, by name, without the standard one: asynsched has its classes itself.

    The process needs Airflow's names: call `serve_airflow` first.
    """
    from importlib.metadata import entry_points

    entries = [entry for entry in entry_points(group=ENTRY_POINTS) if not entry.value.startswith(f"{STANDARD}.")]
    found = {provider.distribution: provider for provider in map(_described, entries)}
    return [found[name] for name in sorted(found)]


def providers() -> list[Provider]:
    """Return the installed providers; they are looked for once in a process."""
    global _found
    if _found is None:
        _found = installed_providers()
    return _found


def hook_paths() -> dict[str, tuple[str, str]]:
    """Return the class path of the hook of each connection type, and its package."""
    paths = {name: (path, f"{PREFIX}standard") for name, path in BUILT_IN.items()}
    for one in providers():
        for name, path in one.connection_types.items():
            paths.setdefault(name, (path, one.distribution))
    return paths


def normalized_uri(uri: str) -> str | None:
    """Return a URI as the provider of its scheme writes it; None if there is none, or it refuses the URI."""
    from urllib.parse import urlsplit

    from asynsched.authoring.class_paths import imported

    parts = urlsplit(uri)
    handlers = {"file": None} | {name: path for one in providers() for name, path in one.asset_handlers.items()}
    if parts.scheme not in handlers:
        return None
    path = handlers[parts.scheme]
    try:
        return (parts if path is None else imported(path)(parts)).geturl()
    except ValueError:
        return None


def _described(entry_point: EntryPoint) -> Provider:
    dist = entry_point.dist
    assert dist is not None
    try:
        info, error = entry_point.load()(), ""
    except Exception as exc:  # noqa: BLE001 - a package's code may raise anything
        info, error = {}, f"{type(exc).__name__}: {exc}"
    return Provider(dist.name, dist.version, info, error)
