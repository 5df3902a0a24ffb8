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
STANDARD = "airflow.providers.standard."


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


def installed_providers() -> list[Provider]:
    """Return the installed providers, by name, without the standard one: asynsched has its classes itself.

    The process needs Airflow's names: call `serve_airflow` first.
    """
    from importlib.metadata import entry_points

    entries = [entry for entry in entry_points(group=ENTRY_POINTS) if not entry.value.startswith(STANDARD)]
    found = {provider.distribution: provider for provider in map(_described, entries)}
    return [found[name] for name in sorted(found)]


def _described(entry_point: EntryPoint) -> Provider:
    dist = entry_point.dist
    assert dist is not None
    try:
        info, error = entry_point.load()(), ""
    except Exception as exc:  # noqa: BLE001 - a package's code may raise anything
        info, error = {}, f"{type(exc).__name__}: {exc}"
    return Provider(dist.name, dist.version, info, error)
