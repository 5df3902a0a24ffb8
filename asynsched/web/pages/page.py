"""What all views share: their table, rendering, a browser's preferences, addresses, forms and redirects."""

import gzip
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode
from zoneinfo import ZoneInfo, available_timezones

from anyio.to_thread import run_sync
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from asynsched._version import __version__
from asynsched.errors import AsynschedError
from asynsched.queries.paging import BadRequest
from asynsched.web.access import NotSignedIn, Permission
from asynsched.web.endpoint import Api, Call, Find, Invalid, TooLarge, read_form
from asynsched.web.errors import status_of
from asynsched.web.pages import showing
from asynsched.web.stored_access import cookie_name

PAGE = Api("The page", "1", has_forms=True)
"""The views and actions of the page, added by the modules beside this one."""
MOST_FORM_BYTES, MOST_FIELDS = 1024**2, 10_000
LEAST_COMPRESSED_BYTES = 1024
COMPRESSION = 5
"""Of gzip: higher levels cost more time than they save."""
RowId = Annotated[int, Meta(ge=1, le=2**63 - 1)]
MapIndex = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "asynsched_theme"
ZONE_COOKIE = "asynsched_zone"
SAID_COOKIE = "asynsched_said"
MOST_COOKIE_BYTES = 3500
"""Of its value: browsers ignore a cookie of more than 4,096 bytes in all."""
VIEWS: tuple[tuple[str, str, Permission], ...] = (
    ("", "Home", Permission.VIEW), ("dags", "DAGs", Permission.VIEW), ("runs", "Runs", Permission.VIEW),
    ("tasks", "Tasks", Permission.VIEW), ("assets", "Assets", Permission.VIEW),
    ("backfills", "Backfills", Permission.VIEW), ("answers", "Answers", Permission.VIEW),
)  # fmt: skip
"""The paths of the views in the bar, their names, and what they need: others get no links to them."""
ADMIN_VIEWS: tuple[tuple[str, str, Permission], ...] = (
    ("pools", "Pools", Permission.VIEW), ("variables", "Variables", Permission.OPERATE),
    ("connections", "Connections", Permission.OPERATE), ("errors", "Import errors", Permission.VIEW),
    ("schedulers", "Schedulers", Permission.VIEW), ("preview", "Preview a change", Permission.OPERATE),
    ("audit", "Audit", Permission.VIEW), ("users", "Users", Permission.ADMINISTER),
    ("plugins", "Plugins", Permission.OPERATE), ("providers", "Providers", Permission.VIEW),
    ("config", "Configuration", Permission.ADMINISTER),
)  # fmt: skip
"""Those in the menu."""
OTHER_VIEWS: tuple[tuple[str, str, Permission], ...] = (
    ("late", "Late or stuck", Permission.VIEW), ("preferences", "Preferences", Permission.VIEW),
    ("tokens", "Tokens", Permission.VIEW),
)  # fmt: skip
"""Those that only the palette finds."""


class Typed(NamedTuple):
    """What somebody has typed into a form, which is shown again with that; without fields, the form is a new one.

    Attributes:
        problem: Why the form was refused.
    """

    fields: Mapping[str, list[str]] = {}
    problem: str = ""
    status: int = HTTPStatus.OK

    def get(self, name: str, default: str = "") -> str:
        """Return the text of a field, or what the field begins with."""
        return self.fields.get(name, [""])[-1] if self.fields else default


NOTHING_TYPED = Typed()


class Preferences(NamedTuple):
    """What a browser has chosen.

    Attributes:
        theme: `auto` follows the system.
        said: What the last action did, to be shown once.
    """

    theme: str
    zone: ZoneInfo
    said: str


@cache
def zones() -> frozenset[str]:
    """Return the names of the zones that may be chosen. The first call reads folders for a few milliseconds."""
    return frozenset(available_timezones())


def preferences_of(request: Request) -> Preferences:
    """Return the choices of a request's browser; unknown values count as none."""
    theme = request.cookies.get(THEME_COOKIE, "")
    zone = unquote(request.cookies.get(ZONE_COOKIE, ""))
    return Preferences(
        theme if theme in THEMES else THEMES[0],
        ZoneInfo(zone) if zone in zones() else ZoneInfo("UTC"),
        unquote(request.cookies.get(SAID_COOKIE, "")),
    )


@cache
def templates() -> Environment:
    """Return the templates, which escape every value that is not marked as HTML."""
    made = Environment(
        loader=PackageLoader("asynsched.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.globals |= {"version": __version__, "Permission": Permission, "VIEWS": VIEWS, "ADMIN_VIEWS": ADMIN_VIEWS}
    made.globals["ALL_VIEWS"] = (*VIEWS, *ADMIN_VIEWS, *OTHER_VIEWS)
    made.filters |= showing.FILTERS
    made.tests["may_operate"] = lambda dag_id, who: who.may(Permission.OPERATE, dag_id)
    return made


def routes(find: Find) -> list[Route]:
    """Return the routes of all views. Their errors are pages, too."""
    made = PAGE.routes(partial(_found, find))
    return [Route(route.path, _with_error_pages(route.endpoint, find), methods=route.methods) for route in made]


async def _found(find: Find, request: Request, permission: Permission = Permission.VIEW) -> Call:
    """Find a request's call, and note the present before its view reads: scripts follow the changes since then."""
    call = await find(request, permission)
    if "text/html" in request.headers.get("accept", "") and call.context.feed is not None:
        request.state.present = await call.context.feed.present()
    return call


async def show(call: Call, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a view. It is rendered and compressed in a thread: the event loop goes on meanwhile."""
    return await run_sync(_rendered, call, template, status, values)


def _rendered(call: Call, template: str, status: int, values: dict[str, Any]) -> Response:
    request = call.request
    preferences = preferences_of(request)
    shown = templates().get_template(template).render(
        url=partial(address, request), who=call.who, request=request, preferences=preferences,
        has_session=cookie_name(request) in request.cookies,
        present=getattr(request.state, "present", ""),
        show=showing.Showing(preferences.zone, call.context.clock.now()), **values,
    )  # fmt: skip
    body = shown.encode("utf-8", "replace")
    # Preferences are cookies, and pages change at any moment.
    headers = {"Cache-Control": "private, no-store", "Vary": "Cookie, Accept-Encoding"}
    if len(body) >= LEAST_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = gzip.compress(body, COMPRESSION)
        headers["Content-Encoding"] = "gzip"
    answer = Response(body, status, headers, media_type="text/html")
    if preferences.said:
        answer.delete_cookie(SAID_COOKIE)
    return answer


def address(request: Request, *path: str, **query: Any) -> str:
    """Return the address of a view: the parts of its path, and its query without empty values.

    It includes the path below which a host application has mounted this one.
    """
    root = request.scope.get("root_path", "").rstrip("/")
    where = f"{root}/" + "/".join(quote(str(part), safe="~:+@") for part in path)
    given = {name: value for name, value in query.items() if value is not None and value is not False}
    given = {name: value for name, value in given.items() if value not in ("", (), [])}
    return f"{where}?{urlencode(given, doseq=True)}" if given else where


def redirect(call: Call, *path: str, said: str = "", **query: Any) -> Response:
    """Return the answer to a form: go to a view, which says in a sentence what was done."""
    answer = RedirectResponse(address(call.request, *path, **query), HTTPStatus.SEE_OTHER)
    if said:
        while len(quote(said)) > MOST_COOKIE_BYTES:
            said = said[: len(said) * 3 // 4] + "…"
        answer.set_cookie(SAID_COOKIE, quote(said), max_age=30, httponly=True, samesite="strict")
    return answer


async def form_of(call: Call) -> dict[str, list[str]]:
    """Return the fields of a form, each with its values. Raises TooLarge, and Invalid."""
    return await read_form(call.request, most_bytes=MOST_FORM_BYTES, most_fields=MOST_FIELDS)


def refused(fields: Mapping[str, list[str]], exc: AsynschedError) -> Typed:
    """Return the fields of a form with the reason why it is refused, so that the page shows both."""
    return Typed(fields, str(exc), status_of(exc))


def one(fields: Mapping[str, list[str]], name: str, default: str = "") -> str:
    """Return the value of a form's field, without spaces around it."""
    return fields.get(name, [default])[-1].strip()


def whole_number(fields: dict[str, list[str]], name: str, *, least: int, most: int) -> int:
    """Return the number in a form's field. Raises BadRequest."""
    text = one(fields, name)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) <= most):
        raise BadRequest(f"The field {name} must be a number from {least} to {most}, not {text[:40]!r}.")
    return int(text)


def query_of(text: str) -> dict[str, list[str]]:
    """Return the values of a query string by their names, to make an address of them. Raises Invalid."""
    try:
        return parse_qs(text, max_num_fields=MOST_FIELDS)
    except ValueError as exc:
        raise Invalid(("body", "back"), f"An address has {MOST_FIELDS} values at most.") from exc


Answer = Callable[[Request], Awaitable[Response]]


def _with_error_pages(answer: Answer, find: Find) -> Answer:
    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except NotSignedIn:
            raise
        except (AsynschedError, Invalid, TooLarge, HTTPException) as exc:
            call = await find(request)
            return await show_error(call, exc)

    return guarded


async def show_error(call: Call, exc: AsynschedError | Invalid | TooLarge | HTTPException) -> Response:
    """Return the page of an error: its status, and a sentence."""
    match exc:
        case HTTPException():
            status, sentence = exc.status_code, str(exc.detail)
        case Invalid():
            status, sentence = HTTPStatus.UNPROCESSABLE_ENTITY, f"{' '.join(exc.location)}: {exc.problem}"
        case TooLarge():
            status, sentence = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A form has {MOST_FORM_BYTES} bytes at most."
        case AsynschedError():
            status, sentence = status_of(exc), str(exc)
    phrase = HTTPStatus(status).phrase
    return await show(call, "error.html", status=status, phrase=phrase, sentence=sentence)
