"""`/plugins`, `/providers`, `/config`: what is installed, and how it is set. Secrets are never shown."""

from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.foreground.plugins import PluginRow
from asynsched.queries.configuration import SECTION, changed_options, list_options
from asynsched.queries.plugins import list_plugins, list_providers
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, show


@PAGE.endpoint("GET", "/plugins", permission=Permission.OPERATE)
async def plugins(call: Call) -> Response:
    """Show the plugins and policies, and the errors of others. A process loads them for the view."""
    rows, problem = list[PluginRow](), ""
    try:
        rows = await list_plugins(call.place.settings)
    except AsynschedError as exc:
        problem = str(exc)
    return await show(call, "plugins.html", rows=rows, problem=problem)


@PAGE.endpoint("GET", "/providers")
async def providers(call: Call) -> Response:
    """Show the installed provider packages."""
    return await show(call, "providers.html", rows=await run_sync(list_providers))


@PAGE.endpoint("GET", "/config", permission=Permission.ADMINISTER)
async def config(call: Call, q: str = "", changed: str = "") -> Response:
    """Show the settings, if `web.expose_config` allows it: those whose names contain `q`, or that are not as usual."""
    settings = call.place.settings
    if not settings.web.expose_config:
        return await show(call, "config.html", rows=None, q=q, changed=changed)
    different = changed_options(settings)
    rows = [
        (name, value, name in different)
        for name, value in list_options(settings)[SECTION].items()
        if q.strip().lower() in name and (not changed or name in different)
    ]
    return await show(call, "config.html", rows=rows, q=q, changed=changed)
