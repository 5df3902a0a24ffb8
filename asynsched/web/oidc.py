"""Sign-in at an OpenID Connect provider: the authorization code flow with PKCE, by Authlib.

The browser keeps the state of a sign-in under way in a cookie for a few minutes, so every process can go on with it.
A user is known by issuer and subject, never by the name alone: a provider's user cannot take over another user's name.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from asynsched.errors import AsynschedError, SettingsError
from asynsched.loggers import get_logger
from asynsched.queries.context import QueryContext
from asynsched.queries.users import WrongCredentials, new_secret, sign_in_from_provider
from asynsched.settings import WebSettings
from asynsched.web.sign_in import SignIn, own_path
from asynsched.web.stored_access import cookie_name, is_secure, root_of

log = get_logger(__name__)

CALLBACK = "/login/oidc/callback"
PROVIDER_SECONDS = 10
"""How long the provider may take for an answer."""
UNDER_WAY = timedelta(minutes=10)
"""How long a user may take at the provider."""
MOST_ROLES = 100


class ProviderUser(msgspec.Struct, frozen=True):
    """A user whom the provider has named."""

    subject: str
    name: str
    roles: tuple[str, ...]


class OpenIdConnect:
    """Signs users in at the provider of the settings."""

    def __init__(self, context: QueryContext, sign_in: SignIn) -> None:
        self._context = context
        self._settings = context.settings.web
        self._issuer = self._settings.oidc_issuer or ""
        self._sign_in = sign_in
        self._client: Any = None

    @property
    def routes(self) -> list[BaseRoute]:
        """Where a sign-in begins, and where the provider sends the browser back to."""
        return [Route("/login/oidc", self._begin, methods=["GET"]), Route(CALLBACK, self._finish, methods=["GET"])]

    async def _begin(self, request: Request) -> Response:
        """Send the browser to the provider."""
        path = own_path(request.query_params.get("next", ""), root_of(request))
        state: dict[str, Any] = {"next": path}
        request.scope["session"] = state
        try:
            client = await self._loaded()
            response: Response = await client.authorize_redirect(request, self._callback(request))
        except Exception as exc:  # noqa: BLE001 - whatever the provider or the network does
            return self._failed(request, exc)
        response.set_cookie(
            self._cookie(request), _encoded(state), max_age=round(UNDER_WAY.total_seconds()),
            path=root_of(request) or "/", secure=is_secure(request), httponly=True, samesite="lax",
        )  # fmt: skip
        return response

    async def _finish(self, request: Request) -> Response:
        """Take the provider's word, and begin a session."""
        state = _decoded(request.cookies.get(self._cookie(request), ""))
        request.scope["session"] = state
        try:
            claims = await self._claims(request)
            user = user_of(claims, self._settings)
            secret = new_secret()
            await self._context.act(
                user.name, sign_in_from_provider, secret, self._issuer, user.subject, user.name,
                user.roles, now=self._context.clock.now(), lasts=self._sign_in.session_lasts,
            )  # fmt: skip
        except Exception as exc:  # noqa: BLE001 - whatever the provider or the network does
            return self._failed(request, exc)
        response = await self._sign_in.signed_in(request, secret, str(state.get("next", "")))
        response.delete_cookie(self._cookie(request), path=root_of(request) or "/", secure=is_secure(request))
        return response

    async def _claims(self, request: Request) -> Mapping[str, Any]:
        """Return the provider's claims about the user: those of the ID token, and those that only `userinfo` has."""
        client = await self._loaded()
        expected = {
            "iss": {"essential": True, "values": [self._issuer]},
            "aud": {"essential": True, "values": [self._settings.oidc_client_id]},
        }
        token = await client.authorize_access_token(request, claims_options=expected)
        claims = dict(token.get("userinfo") or {})
        metadata = await client.load_server_metadata()
        if claims and self._settings.oidc_name_claim not in claims and "userinfo_endpoint" in metadata:
            more = dict(await client.userinfo(token=token))
            if more.get("sub") != claims["sub"]:
                raise WrongCredentials("The provider has named two users.")
            claims = more | claims
        return claims

    async def _loaded(self) -> Any:
        if self._client is None:
            self._client = await run_sync(_make_client, self._settings)
        return self._client

    def _failed(self, request: Request, exc: Exception) -> Response:
        log.warning("web.sign_in_failed", by="oidc", error=f"{type(exc).__name__}: {exc}")
        problem = (
            exc if isinstance(exc, AsynschedError) else WrongCredentials("The sign-in at the provider has failed.")
        )
        return self._sign_in.form(request, "", problem)

    def _callback(self, request: Request) -> str:
        base = self._settings.base_url.rstrip("/")
        return (
            f"{base}{CALLBACK}" if base else f"{request.url.scheme}://{request.url.netloc}{root_of(request)}{CALLBACK}"
        )

    def _cookie(self, request: Request) -> str:
        return f"{cookie_name(request)}_oidc"


def user_of(claims: Mapping[str, Any], settings: WebSettings) -> ProviderUser:
    """Return the user of a provider's claims. Raises WrongCredentials if they name none, or one without a role."""
    subject, name = claims.get("sub"), _claim(claims, settings.oidc_name_claim)
    if not isinstance(subject, str) or not subject or not isinstance(name, str) or not name:
        raise WrongCredentials(f"The provider has not named you: there is no claim {settings.oidc_name_claim}.")
    given = _claim(claims, settings.oidc_roles_claim)
    listed = given if isinstance(given, list) else [given]
    roles = tuple(role for role in listed if isinstance(role, str) and role)[:MOST_ROLES]
    roles = roles or ((settings.default_role,) if settings.default_role else ())
    if not roles:
        raise WrongCredentials(f"{name} has no role here: the claim {settings.oidc_roles_claim} has none.")
    return ProviderUser(subject, name, roles)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path in objects."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _make_client(settings: WebSettings) -> Any:
    """Return Authlib's client. Raises SettingsError if it is not installed, or the secret cannot be read."""
    try:
        from authlib.integrations.starlette_client import OAuth
    except ImportError as exc:
        raise SettingsError(
            f"web.oidc_issuer needs a library that is not installed ({exc.name}): pip install 'asynsched[oidc]'"
        ) from exc
    secret = None
    if settings.oidc_client_secret_file is not None:
        try:
            secret = Path(settings.oidc_client_secret_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"web.oidc_client_secret_file: {exc}") from exc
    how = {} if secret is not None else {"token_endpoint_auth_method": "none"}
    return OAuth().register(
        "provider", client_id=settings.oidc_client_id, client_secret=secret,
        server_metadata_url=f"{(settings.oidc_issuer or '').rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": settings.oidc_scopes, "code_challenge_method": "S256", "timeout": PROVIDER_SECONDS, **how,
        },
    )  # fmt: skip


def _encoded(state: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(state)).decode()


def _decoded(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=dict[str, Any])
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
        return {}
