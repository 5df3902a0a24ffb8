"""`/errors`, `/schedulers`, `/audit`, `/plugins`, `/providers`, `/config`: for a person who operates asynsched."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from anyio.to_thread import run_sync
from msgspec.structs import replace
from starlette.responses import Response

from asynsched.errors import AsynschedError, NotServing
from asynsched.explaining.owners import Standing, standing
from asynsched.foreground.plugins import PluginRow
from asynsched.health import Health
from asynsched.queries.audit import AuditFilter, list_audit
from asynsched.queries.configuration import SECTION, changed_options, list_options
from asynsched.queries.context import QueryContext
from asynsched.queries.import_errors import ImportErrorFilter, count_import_errors, list_import_errors
from asynsched.queries.paging import Paging
from asynsched.queries.plugins import list_plugins, list_providers
from asynsched.queries.schedulers import SchedulerFilter, list_schedulers
from asynsched.queries.serving import health_of_home
from asynsched.store.schedulers import loads
from asynsched.store.schema import SchedulerRow
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, show

PAGE_ROWS = 100
MOST_ERRORS = 500
HEALTH_LASTS = timedelta(seconds=5)
"""How long an answer of the scheduler counts."""


@PAGE.endpoint("GET", "/errors")
async def errors(call: Call, warnings: str = "") -> Response:
    """Show the errors of DAG files, and on request their warnings."""
    wanted = ImportErrorFilter(dag_ids=call.who.dag_ids, warnings=None if warnings else False)
    page = await call.context.ask(list_import_errors, wanted, Paging(limit=MOST_ERRORS, order_by=("file",)))
    n_warnings = await call.context.ask(count_import_errors, replace(wanted, warnings=True))
    return await show(call, "errors.html", rows=page.items, warnings=warnings, n_warnings=n_warnings)


@PAGE.endpoint("GET", "/schedulers")
async def schedulers(call: Call) -> Response:
    """Show the schedulers, their load, and the health of the loops of the one that serves here."""
    now = call.context.clock.now()
    rows = (await call.context.ask(list_schedulers, SchedulerFilter(now=now), Paging(limit=PAGE_ROWS))).items
    health = (await known_health(call.context)).health
    return await show(
        call, "schedulers.html", rows=rows, standings=await run_sync(_standings, rows, now),
        loads=await call.context.ask(loads), health=health,
    )  # fmt: skip


class Heard(NamedTuple):
    """What the scheduler that serves here has answered; None: none has answered, or one of another version."""

    health: Health | None


async def known_health(context: QueryContext) -> Heard:
    """Return a recent answer of the scheduler that serves here."""
    # To wait for an answer is no work.
    return await context.recent.get(ask_health, context, lasts=HEALTH_LASTS, share=1) or Heard(None)


async def ask_health(context: QueryContext) -> Heard:
    """Ask that scheduler: it may take as long as a hanging one is waited for."""
    with suppress(NotServing, msgspec.ValidationError):
        return Heard(await run_sync(health_of_home, context.home))
    return Heard(None)


def _standings(rows: tuple[SchedulerRow, ...], now: datetime) -> dict[str, Standing]:
    return {row.id: standing(row, now) for row in rows if row.ended_at is None}


@PAGE.endpoint("GET", "/audit")
async def audit_log(
    call: Call, dag: str = "", run: str = "", actor: str = "", action: str = "", after: str = ""
) -> Response:
    """Show who did what, the newest first."""
    if call.who.dag_ids is not None and not call.who.may(Permission.ADMINISTER):
        raise NotAllowed("The audit of all DAGs needs rights to all of them.")
    parts = {"dag_id": dag.strip(), "run_id": run.strip(), "actor": actor.strip(), "action": action.strip()}
    wanted = AuditFilter(containing={name: part for name, part in parts.items() if part})
    page = await call.context.ask(list_audit, wanted, Paging(limit=PAGE_ROWS, after=after or None, order_by=("-id",)))
    query = {"dag": dag, "run": run, "actor": actor, "action": action}
    return await show(call, "audit.html", page=page, query=query)


@PAGE.endpoint("GET", "/plugins", permission=Permission.OPERATE)
async def plugins(call: Call) -> Response:
    """Show the plugins and policies, and the errors of others. A process loads them for the view."""
    rows, problem = list[PluginRow](), ""
    try:
        rows = await list_plugins(call.context.settings)
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
    settings = call.context.settings
    if not settings.web.expose_config:
        return await show(call, "config.html", rows=None, q=q, changed=changed)
    different = changed_options(settings)
    rows = [
        (name, value, name in different)
        for name, value in list_options(settings)[SECTION].items()
        if q.strip().lower() in name and (not changed or name in different)
    ]
    return await show(call, "config.html", rows=rows, q=q, changed=changed)
