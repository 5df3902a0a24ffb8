"""The ASGI application: its parts below their paths, and who may use them."""

from collections.abc import Sequence
from functools import cache

import msgspec
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from asynsched.client.operation import PREFIX
from asynsched.protocol.worker_messages import PREFIX as WORKERS_PREFIX
from asynsched.queries.context import QueryContext
from asynsched.web.access import NOBODY, Access, NotSignedIn, Permission
from asynsched.web.airflow_api import AIRFLOW_API
from asynsched.web.airflow_api.refusals import REFUSALS, Refusal, routes_of
from asynsched.web.endpoint import JSON, Api, Call, Find
from asynsched.web.errors import HANDLERS
from asynsched.web.guard import Guard
from asynsched.web.oidc import OpenIdConnect
from asynsched.web.openapi import document
from asynsched.web.own_api import OWN_API
from asynsched.web.pages import routes as page_routes
from asynsched.web.sign_in import SignIn
from asynsched.web.stored_access import StoredAccess
from asynsched.web.streams import Streams
from asynsched.web.workers import WorkerApi, WorkerDesk

AIRFLOW_PREFIX = "/api/v2"
"""Where Airflow's clients look for its API."""


def make_guarded(
    context: QueryContext, access: Access | None, *, checks_host: bool, desk: WorkerDesk | None = None
) -> Guard:
    """Return the application behind its guard.

    Args:
        access: Tells who asks; None: the users, sessions and tokens of the database.
        checks_host: Whether the names by which it is addressed are checked.
        desk: Answers workers on other machines; None: there is no scheduler here.
    """
    app = make_app(context, access or StoredAccess(context), desk)
    settings = context.settings
    return Guard(app, settings.web, context.clock, checks_host=checks_host, addresses=settings.workers.addresses)


def make_app(context: QueryContext, access: Access, desk: WorkerDesk | None = None) -> Starlette:
    """Return the application that answers from one context."""
    streams = Streams(context.settings.web.max_streams)

    async def find(request: Request, permission: Permission = Permission.VIEW) -> Call:
        try:
            who = await access.identify(request)
        except NotSignedIn:
            if permission > Permission.NOTHING:
                raise
            who = NOBODY
        return Call(request, who, context, access, streams)

    routes: list[BaseRoute] = [_mounted(AIRFLOW_API, AIRFLOW_PREFIX, find, REFUSALS), _mounted(OWN_API, PREFIX, find)]
    if desk is not None:
        routes.append(Mount(WORKERS_PREFIX, routes=WorkerApi(context.settings, desk).routes))
    if isinstance(access, StoredAccess):
        sign_in = SignIn(context, access)
        routes += sign_in.routes
        if context.settings.web.oidc_issuer is not None:
            routes += OpenIdConnect(context, sign_in).routes
    routes += page_routes(find)
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def _mounted(api: Api, prefix: str, find: Find, refusals: Sequence[Refusal] = ()) -> Mount:
    """Return an API below its prefix, with its document, and with the paths that it refuses."""

    @cache
    def encoded() -> bytes:
        return msgspec.json.encode(document(api, prefix))

    async def openapi(_: Request) -> Response:
        return Response(await run_sync(encoded), media_type=JSON)

    routes = [*routes_of(refusals, find), *api.routes(find), Route("/openapi.json", openapi)]
    return Mount(prefix, routes=routes)
