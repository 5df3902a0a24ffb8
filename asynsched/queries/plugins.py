"""Questions about what is installed: plugins and policies, which a process of their own loads, and providers."""

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageMetadata, entry_points

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from asynsched.airflow.installation import entry_points_of_packages, options_of_processes
from asynsched.authoring.providers import ENTRY_POINTS, STANDARD
from asynsched.errors import AsynschedError
from asynsched.executors.base import user_environment
from asynsched.foreground.plugins import PluginRow, PluginsRequest
from asynsched.settings import Settings
from asynsched.store.engines.urls import is_postgresql


class ProviderInfo(Struct, frozen=True):
    """An installed provider package."""

    package_name: str
    description: str
    version: str
    documentation_url: str | None


async def list_plugins(settings: Settings) -> list[PluginRow]:
    """Return the plugins and policies beside the DAG folder and in packages, and the errors of others.

    Raises AsynschedError if their code ends its process, or takes too long.
    """
    if not await anyio.to_thread.run_sync(has_any, settings):
        return []
    arguments, environment = await anyio.to_thread.run_sync(process_of_plugins, settings)
    with anyio.move_on_after(settings.parse.import_timeout):
        done = await anyio.run_process(arguments, env=environment, check=False)
        rows = read_plugins(done.stdout)
        if rows is None:
            raise AsynschedError("The plugins have ended the process that loads them: see `asynsched plugins list`.")
        return rows
    raise AsynschedError(f"The plugins take longer than parse.import_timeout = {settings.parse.import_timeout:g} s.")


def has_any(settings: Settings) -> bool:
    """Return whether the installation may have code of its own. Blocks: reads the metadata of packages."""
    return settings.airflow == "ours" and bool(settings.installation_folders or entry_points_of_packages())


def process_of_plugins(settings: Settings) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of the process that loads plugins."""
    options = options_of_processes(settings.airflow_options, settings.airflow_cfg_path)
    request = PluginsRequest(str(settings.dags_path), settings.default_timezone, settings.airflow, options)
    arguments = [sys.executable, "-P", "-m", "asynsched.foreground.plugins", msgspec.json.encode(request).decode()]
    return arguments, user_environment(os.environ, is_postgresql=is_postgresql(settings.database_url))


def read_plugins(answer: bytes) -> list[PluginRow] | None:
    """Return the answer of that process; None if it is none."""
    try:
        return msgspec.json.decode(answer, type=list[PluginRow])
    except msgspec.DecodeError:
        return None


def list_providers() -> list[ProviderInfo]:
    """Return the installed providers, by name, as their packages describe themselves. Blocks, and runs none of them."""
    found: Mapping[str, PackageMetadata] = {
        entry.dist.name: entry.dist.metadata
        for entry in entry_points(group=ENTRY_POINTS)
        if entry.dist is not None and not entry.value.startswith(f"{STANDARD}.")
    }
    return [
        ProviderInfo(name, str(about["Summary"] or ""), str(about["Version"]), _documentation(about))
        for name, about in sorted(found.items())
    ]


def _documentation(about: PackageMetadata) -> str | None:
    urls = dict(url.split(", ", 1) for url in about.get_all("Project-URL") or () if ", " in url)
    return urls.get("Documentation")
