"""The answers to requests that fail: a status, and a sentence under `detail`, as Airflow's API has them."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from asynsched.errors import (
    ERROR_HEADER,
    AlreadyExists,
    AsynschedError,
    DagError,
    LogStoreUnavailable,
    NotFound,
    SecretsUnreadable,
    StoreError,
    StoreUnavailable,
)
from asynsched.queries.paging import BadRequest
from asynsched.queries.users import WrongCredentials
from asynsched.web.access import NotAllowed, NotSignedIn, TooManyAttempts
from asynsched.web.endpoint import JSON, Invalid, TooLarge
from asynsched.web.stored_access import root_of
from asynsched.web.streams import TooManyStreams

STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (NotSignedIn, HTTPStatus.UNAUTHORIZED),
    (WrongCredentials, HTTPStatus.UNAUTHORIZED),
    (TooManyAttempts, HTTPStatus.TOO_MANY_REQUESTS),
    (TooManyStreams, HTTPStatus.SERVICE_UNAVAILABLE),
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (AlreadyExists, HTTPStatus.CONFLICT),
    (BadRequest, HTTPStatus.BAD_REQUEST),
    (DagError, HTTPStatus.BAD_REQUEST),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (SecretsUnreadable, HTTPStatus.SERVICE_UNAVAILABLE),
    (LogStoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.BAD_REQUEST),  # a name or a value that no database can store
    (AsynschedError, HTTPStatus.CONFLICT),
)
"""The status of each error; the first that fits counts."""


def status_of(exc: AsynschedError) -> HTTPStatus:
    """Return the status of an error."""
    return next(status for kind, status in STATUSES if isinstance(exc, kind))


async def _failed(request: Request, exc: Exception) -> Response:
    if isinstance(exc, NotSignedIn) and (form := _form_first(request)) is not None:
        return form
    assert isinstance(exc, AsynschedError)
    status = status_of(exc)
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    headers[ERROR_HEADER] = type(exc).__name__
    if isinstance(exc, TooManyAttempts):
        headers["Retry-After"] = str(exc.retry_after)
    return detail(status, str(exc), headers)


async def _invalid(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, Invalid)
    problem = {"loc": list(exc.location), "msg": exc.problem, "type": "value_error"}
    return detail(HTTPStatus.UNPROCESSABLE_ENTITY, [problem])


async def _too_large(_: Request, exc: Exception) -> Response:
    return detail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(exc))


async def _of_http(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    return detail(exc.status_code, exc.detail, dict(exc.headers or {}))


async def _gone(_: Request, exc: Exception) -> Response:  # noqa: ARG001 - nobody reads why
    return detail(HTTPStatus.BAD_REQUEST, "The client has gone before its request was complete.")


def _form_first(request: Request) -> Response | None:
    """Return the way to the form, for a browser; None for a program. A form that was sent leads back to its view."""
    if "text/html" not in request.headers.get("accept", ""):
        return None
    view = request.url if request.method == "GET" else urlsplit(request.headers.get("referer", ""))
    path = f"{view.path}?{view.query}" if view.query else view.path
    return RedirectResponse(f"{root_of(request)}/login?next={quote(path)}", HTTPStatus.SEE_OTHER)


def detail(status: int, problem: Any, headers: dict[str, str] | None = None) -> Response:
    """Return the response of a failed request."""
    return Response(msgspec.json.encode({"detail": problem}), status, headers, media_type=JSON)


HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    AsynschedError: _failed,
    Invalid: _invalid,
    TooLarge: _too_large,
    HTTPException: _of_http,
    ClientDisconnect: _gone,
}
"""For Starlette: the function that answers for each kind of error of an endpoint."""
