"""`/login`, `/logout` and `/auth/token`: how somebody gets a session or a token."""

from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from asynsched.loggers import get_logger
from asynsched.queries.context import QueryContext
from asynsched.queries.users import (
    SCOPES,
    WrongCredentials,
    create_access_token,
    digest_of,
    new_secret,
    sign_in,
    sign_out,
    use_link,
)
from asynsched.store.schema import ID_LENGTH, UserRow
from asynsched.store.users import LINK, SESSION, find_holder, find_user
from asynsched.web.access import NotSignedIn, TooManyAttempts
from asynsched.web.endpoint import as_response, read_body, read_form
from asynsched.web.pages.page import templates
from asynsched.web.passwords import Attempts, Passwords
from asynsched.web.stored_access import StoredAccess, cookie_name, forget_session, root_of, set_session

log = get_logger(__name__)

MOST_FORM_BYTES, MOST_FIELDS = 16 * 1024, 20
LONGEST_NAME = 250
"""Of a user, in the form."""
OF_ADDRESS = (10, timedelta(minutes=5))
"""Failed attempts from an address, within a time."""
OF_NAME = (30, timedelta(minutes=5))
"""Failed attempts at a name. More than from one address, which could otherwise lock the name's user out."""
LONGEST_LOGGED = 100
"""Characters of a name in the log."""
WRONG = "The name or the password is wrong."
OLD_LINK = "This link was used before, or is too old. `asynsched users link` makes another one."


class Credentials(Struct, frozen=True):
    """The body of a request for a token."""

    username: str
    password: str


class AccessToken(Struct, frozen=True):
    """A token, in Airflow's form."""

    access_token: str


class SignIn:
    """Signs users in and out."""

    def __init__(self, context: QueryContext, access: StoredAccess) -> None:
        self._context = context
        self._access = access
        self._settings = context.settings.web
        self._passwords = Passwords()
        self._of_address = Attempts(context.clock, *OF_ADDRESS)
        self._of_name = Attempts(context.clock, *OF_NAME)

    @property
    def routes(self) -> list[BaseRoute]:
        """Where all that is found."""
        return [
            Route("/login", self._show, methods=["GET"]),
            Route("/login", self._by_password, methods=["POST"]),
            Route("/logout", self._end, methods=["POST"]),
            Route("/auth/token", self._token, methods=["POST"]),
            Route("/auth/token/cli", self._token, methods=["POST"]),
            Route("/auth/token", self._own_token, methods=["GET"]),
        ]

    # Pages

    async def _show(self, request: Request) -> Response:
        """Show the form; or sign in by the link that `asynsched up` has printed."""
        path = request.query_params.get("next", "")
        if (link := request.query_params.get("key")) is None:
            return self.form(request, path)
        address = address_of(request)
        try:
            self._of_address.begin(address)
            owner, secret = await self._owner(link, LINK), new_secret()
            await self._context.act(owner, use_link, link, secret, now=self._now(), lasts=self.session_lasts)
        except (WrongCredentials, TooManyAttempts) as exc:
            log.warning("web.sign_in_failed", by="link", address=address)
            return self.form(request, path, exc)
        self._of_address.succeeded(address)
        log.info("web.signed_in", user=owner, by="link", address=address)
        return await self.signed_in(request, secret, path)

    async def _by_password(self, request: Request) -> Response:
        sent = await read_form(request, most_bytes=MOST_FORM_BYTES, most_fields=MOST_FIELDS)
        form = {name: values[-1] for name, values in sent.items()}
        path, given = form.get("next", ""), form.get("username", "")
        try:
            user = await self._verified(request, given, form.get("password", ""))
            secret, name = new_secret(), user.name
            await self._context.act(
                name, sign_in, secret, name, user_id=user.id, now=self._now(), lasts=self.session_lasts, verified=user
            )
        except (WrongCredentials, TooManyAttempts) as exc:
            return self.form(request, path, exc, name=given)
        return await self.signed_in(request, secret, path)

    async def _end(self, request: Request) -> Response:
        if (secret := request.cookies.get(cookie_name(request))) is not None:
            await self._end_session(secret)
        response = RedirectResponse(f"{root_of(request)}/login", HTTPStatus.SEE_OTHER)
        forget_session(response, request)
        return response

    # Tokens

    async def _token(self, request: Request) -> Response:
        """Make a token for a name and a password, as Airflow's clients ask for it."""
        given: Credentials = await read_body(request, Credentials, MOST_FORM_BYTES)
        user = await self._verified(request, given.username, given.password)
        return await self._new_token(user.name, user.id, SCOPES[-1], None, user)

    async def _own_token(self, request: Request) -> Response:
        """Make a token for the user who is signed in by a session. Raises NotSignedIn."""
        holder = await self._access.holder(request)
        if holder is None or holder.token.kind != SESSION:
            raise NotSignedIn  # a token that could make others would never end
        one = holder.token
        return await self._new_token(one.owner, one.user_id, one.permission, one.dag_ids)

    async def _new_token(
        self, name: str, user_id: int | None, scope: str, dag_ids: list[str] | None, verified: UserRow | None = None
    ) -> Response:
        secret, lasts = new_secret(), timedelta(hours=self._settings.access_token_hours)
        await self._context.act(
            name, create_access_token, secret, name, user_id=user_id, scope=scope, dag_ids=dag_ids, now=self._now(),
            lasts=lasts, verified=verified,
        )  # fmt: skip
        return as_response(AccessToken(secret), HTTPStatus.CREATED)

    # Parts

    async def _verified(self, request: Request, name: str, password: str) -> UserRow:
        """Return the user of a name and a password. Raises WrongCredentials, and TooManyAttempts.

        An attempt counts as failed from its beginning, so that many at once are not too many either.
        """
        address = address_of(request)
        self._of_address.begin(address)
        try:
            user = await self._user_of(name, password)
        except WrongCredentials:
            log.warning("web.sign_in_failed", user=name[:LONGEST_LOGGED], address=address)
            raise
        self._of_address.succeeded(address)
        self._of_name.succeeded(name)
        return user

    async def _user_of(self, name: str, password: str) -> UserRow:
        if len(name) > ID_LENGTH:
            raise WrongCredentials(WRONG)  # nobody has such a name, and a long one is not kept
        self._of_name.begin(name)
        user = await self._context.ask(find_user, name) if "\x00" not in name else None
        if not await self._passwords.are_right(password, None if user is None else user.password) or user is None:
            raise WrongCredentials(WRONG)
        return user

    async def signed_in(self, request: Request, secret: str, path: str) -> Response:
        """Give a session to the browser, in place of an earlier one, and go to a path of ours."""
        if (earlier := request.cookies.get(cookie_name(request))) is not None:
            await self._end_session(earlier)
        root = root_of(request)
        response = RedirectResponse(own_path(path, root) or f"{root}/", HTTPStatus.SEE_OTHER)
        set_session(response, request, secret, self.session_lasts)
        return response

    async def _end_session(self, secret: str) -> None:
        with suppress(WrongCredentials):  # it has ended already
            await self._context.act(await self._owner(secret, SESSION), sign_out, secret, now=self._now())

    async def _owner(self, secret: str, kind: str) -> str:
        """Return whose secret this is. Raises WrongCredentials."""
        holder = await self._context.ask(find_holder, digest_of(secret), (kind,), self._now())
        if holder is None:
            raise WrongCredentials(OLD_LINK)
        return holder.token.owner

    def form(self, request: Request, path: str, problem: Exception | None = None, *, name: str = "") -> Response:
        """Return the page with the form, and with the problem and the user's name of the last attempt."""
        root = root_of(request)
        text = templates().get_template("login.html").render(
            root=root, next=own_path(path, root), problem="" if problem is None else str(problem),
            name=name[:LONGEST_NAME], has_provider=self._settings.oidc_issuer is not None,
            provider=urlsplit(self._settings.oidc_issuer or "").hostname,
        )  # fmt: skip
        if isinstance(problem, TooManyAttempts):
            headers = {"Retry-After": str(problem.retry_after)}
            return HTMLResponse(text, HTTPStatus.TOO_MANY_REQUESTS, headers)
        return HTMLResponse(text, HTTPStatus.OK if problem is None else HTTPStatus.UNAUTHORIZED)

    @property
    def session_lasts(self) -> timedelta:
        """How long somebody stays signed in."""
        return timedelta(hours=self._settings.session_hours)

    def _now(self) -> datetime:
        return self._context.clock.now()


def address_of(request: Request) -> str:
    """Return the address of a client; of an IPv6 client its network, in which it may take any address."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return host
    return str(ip_network((int(address), 64), strict=False))


def own_path(path: str, root: str) -> str:
    """Return a path of this application, to which a browser may be sent after it has signed in; empty: it is none."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return ""
    if parts.scheme or parts.netloc or not path.startswith(f"{root}/") or path.startswith("//"):
        return ""
    return path if path.isprintable() and "\\" not in path else ""
