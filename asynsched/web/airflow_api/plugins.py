"""`/plugins` and `/providers`: what is installed."""

from typing import Any

import anyio.to_thread
from msgspec import Struct

from asynsched.foreground.plugins import PluginRow
from asynsched.queries.plugins import ProviderInfo, list_plugins, list_providers
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, PageQuery, part_of
from asynsched.web.endpoint import Call


class PluginResponse(Struct, frozen=True, kw_only=True):
    """A plugin, and the names of its parts that have an effect; parts of Airflow's web server have none here."""

    name: str
    source: str
    macros: tuple[str, ...]
    global_operator_extra_links: tuple[str, ...]
    operator_extra_links: tuple[str, ...]
    listeners: tuple[str, ...]
    timetables: tuple[str, ...]
    flask_blueprints: tuple[str, ...] = ()
    fastapi_apps: tuple[dict[str, Any], ...] = ()
    fastapi_root_middlewares: tuple[dict[str, Any], ...] = ()
    external_views: tuple[dict[str, Any], ...] = ()
    react_apps: tuple[dict[str, Any], ...] = ()
    appbuilder_views: tuple[dict[str, Any], ...] = ()
    appbuilder_menu_items: tuple[dict[str, Any], ...] = ()


class PluginCollectionResponse(Struct, frozen=True):
    """A page of plugins."""

    plugins: tuple[PluginResponse, ...]
    total_entries: int


class PluginImportErrorResponse(Struct, frozen=True):
    """Why a file or a package gives no plugin."""

    source: str
    error: str


class PluginImportErrorCollectionResponse(Struct, frozen=True):
    """The errors of plugins."""

    import_errors: tuple[PluginImportErrorResponse, ...]
    total_entries: int


class ProviderResponse(Struct, frozen=True):
    """An installed provider package."""

    package_name: str
    description: str
    version: str
    documentation_url: str | None


class ProviderCollectionResponse(Struct, frozen=True):
    """A page of providers."""

    providers: tuple[ProviderResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/plugins", permission=Permission.OPERATE)
async def get_plugins(call: Call, page: PageQuery) -> PluginCollectionResponse:
    """List the plugins. A process loads them for the answer."""
    found = [row for row in await list_plugins(call.context.settings) if not row.error and row.parts]
    return PluginCollectionResponse(tuple(map(_plugin, part_of(found, page))), len(found))


@AIRFLOW_API.endpoint("GET", "/plugins/importErrors", permission=Permission.OPERATE)
async def get_plugin_errors(call: Call) -> PluginImportErrorCollectionResponse:
    """List the errors of plugins. A process loads them for the answer."""
    errors = [
        PluginImportErrorResponse(row.source, row.error)
        for row in await list_plugins(call.context.settings)
        if row.error
    ]
    return PluginImportErrorCollectionResponse(tuple(errors), len(errors))


@AIRFLOW_API.endpoint("GET", "/providers")
async def get_providers(page: PageQuery) -> ProviderCollectionResponse:
    """List the installed providers."""
    found = await anyio.to_thread.run_sync(list_providers)
    return ProviderCollectionResponse(tuple(map(_provider, part_of(found, page))), len(found))


def _plugin(row: PluginRow) -> PluginResponse:
    def names(part: str) -> tuple[str, ...]:
        return tuple(row.parts.get(part, ()))

    return PluginResponse(
        name=row.plugin, source=row.source, macros=names("macros"), listeners=names("listeners"),
        timetables=names("timetables"), operator_extra_links=names("operator_extra_links"),
        global_operator_extra_links=names("global_operator_extra_links"),
    )  # fmt: skip


def _provider(info: ProviderInfo) -> ProviderResponse:
    return ProviderResponse(info.package_name, info.description, info.version, info.documentation_url)
