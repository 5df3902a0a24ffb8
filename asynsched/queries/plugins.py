"""Questions about what is installed: plugins and policies, which a process of their own loads, and providers."""

from collections.abc import Mapping
from importlib.metadata import PackageMetadata, entry_points

import anyio
import anyio.to_thread
from msgspec import Struct

from asynsched.authoring.providers import ENTRY_POINTS, STANDARD
from asynsched.errors import AsynschedError
from asynsched.foreground.plugin_process import answers_of, has_any, longest_loading, plugin_process, read_plugins
from asynsched.foreground.plugins import PluginRow
from asynsched.queries.turns import turns
from asynsched.settings import Settings


class ProviderInfo(Struct, frozen=True):
    """An installed provider package."""

    package_name: str
    description: str
    version: str
    documentation_url: str | None


async def list_plugins(settings: Settings) -> list[PluginRow]:
    """Return the plugins and policies beside the DAG folder and in packages, and the errors of others.

    Raises AsynschedError if their code ends its process, or takes too long, or if many callers wait for it.
    """
    if not await anyio.to_thread.run_sync(has_any, settings):
        return []
    async with turns("listings of plugins", 1):
        with anyio.move_on_after(longest_loading(settings)):
            async with plugin_process(settings) as process:
                rows = read_plugins(await anext(answers_of(process), b""))
            if rows is None:
                problem = "The plugins have ended the process that loads them: see `asynsched plugins list`."
                raise AsynschedError(problem)
            return rows
    raise AsynschedError(f"The process that loads plugins has not answered for {longest_loading(settings):g} s.")


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
