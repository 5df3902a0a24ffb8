"""Sign-in at an OpenID Connect provider, against a small provider of this test's own."""

import asyncio
import base64
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote_plus, urlencode, urlsplit

import httpx
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from asynsched.clock import Clock
from asynsched.queries import users
from asynsched.queries.context import QueryContext
from asynsched.queries.paging import Pattern
from asynsched.settings import Settings, WebSettings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.web.app import make_guarded
from asynsched.web.loop_server import LoopServer
from asynsched.web.oidc import user_of

OWN, CLIENT, SECRET = "https://dags.example", "asynsched", "the client's secret"


class Provider:
    """A provider. `claims` are those of the user who signs in; tests break it by the attributes below."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key = RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"})
        self.signs_with = self.key
        self.claims: dict[str, Any] = {"sub": "u-1", "preferred_username": "ada", "roles": ["operator"]}
        self.codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", lambda _: JSONResponse({"keys": [self.key.as_dict(private=False)]})),
            ]
        )

    def _metadata(self, _: Request) -> JSONResponse:
        return JSONResponse({
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys", "id_token_signing_alg_values_supported": ["RS256"],
        })  # fmt: skip

    def _authorize(self, request: Request) -> RedirectResponse:
        asked = dict(request.query_params)
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def _token(self, request: Request) -> JSONResponse:
        sent = dict(parse_qsl((await request.body()).decode()))
        credentials = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        assert request.headers["authorization"] in (f"Basic {credentials}", f"Basic {_quoted()}")
        asked = self.codes.pop(sent["code"])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).rstrip(b"=")
        assert challenge.decode() == asked["code_challenge"]
        now = round(Clock().now().timestamp())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
            **self.claims,
        }
        signed = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.signs_with)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": signed})


def _quoted() -> str:
    return base64.b64encode(f"{CLIENT}:{quote_plus(SECRET)}".encode()).decode()


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[Provider]:
    """The provider, on a port of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = Provider(f"http://127.0.0.1:{listener.getsockname()[1]}")
    serving = asyncio.create_task(LoopServer(made.app, WebSettings(), Clock()).serve_until_cancelled(listener))
    yield made
    serving.cancel()
    await asyncio.wait([serving])


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def context(request: pytest.FixtureRequest, tmp_path: Path, provider: Provider) -> AsyncIterator[QueryContext]:
    url = f"sqlite:///{tmp_path / 'a.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    web = WebSettings(
        base_url=OWN, oidc_issuer=provider.issuer, oidc_client_id=CLIENT, oidc_client_secret_file=str(secret),
        trusted_proxies=("192.0.2.1",),
    )  # fmt: skip
    database: Database = await open_database(url, synchronous="normal")
    yield QueryContext(database, tmp_path, Settings(home=str(tmp_path), web=web), Clock())
    await database.close()


@asynccontextmanager
async def browser(context: QueryContext) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_guarded(context, None, checks_host=True), client=("192.0.2.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        yield client


async def go(provider: Provider, client: httpx.AsyncClient, **changes: str) -> httpx.Response:
    """Sign in: begin here, go to the provider and come back; `changes` are of what comes back."""
    begun = await client.get("/login/oidc", params={"next": "/dags"})
    assert begun.headers["location"].startswith(f"{provider.issuer}/authorize?"), begun.text
    async with httpx.AsyncClient() as elsewhere:
        back = (await elsewhere.get(begun.headers["location"])).headers["location"]
    answered = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    return await client.get(urlsplit(back).path, params=answered | changes)


async def test_a_user_signs_in_at_the_provider_with_the_roles_that_it_gives(context, provider):
    async with browser(context) as client:
        answer = await go(provider, client)
        assert (answer.status_code, answer.headers["location"]) == (303, "/dags"), answer.text
        assert (await client.get("/api/v2/dags/none")).status_code == 404
    [known] = (await context.ask(users.list_users, Pattern())).items
    assert (known.name, known.roles, known.sign_in) == ("ada", ("operator",), "provider")
    provider.claims["roles"] = ["admin", "team"]
    async with browser(context) as client:
        await go(provider, client)
    [known] = (await context.ask(users.list_users, Pattern())).items
    assert known.roles == ("admin", "team")


BROKEN = {
    "a state of another browser": lambda provider: {"state": "stolen"},
    "a code that was made up": lambda provider: {"code": "made-up"},
    "an error of the provider": lambda provider: {"error": "access_denied"},
    "a token for another program": lambda provider: provider.claims.update(aud="other"),
    "a token of another issuer": lambda provider: provider.claims.update(iss="https://attacker.example"),
    "a token of another sign-in": lambda provider: provider.claims.update(nonce="old"),
    "a token that has expired": lambda provider: provider.claims.update(exp=1_000_000_000),
    "another key": lambda provider: setattr(
        provider, "signs_with", RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256"})
    ),
    "no name": lambda provider: provider.claims.pop("preferred_username"),
    "no role": lambda provider: provider.claims.pop("roles"),
    "the name of a user with a password": lambda provider: provider.claims.update(preferred_username="otto"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_what_the_provider_has_not_said_for_this_browser_signs_nobody_in(context, provider, broken):
    await context.act("test", users.create_user, "otto", ["admin"], password="a hash", now=Clock().now())
    changes = BROKEN[broken](provider)
    async with browser(context) as client:
        with capture_logs() as logs:
            given = changes if isinstance(changes, dict) and "sub" not in changes else {}
            answer = await go(provider, client, **given)
        assert [line["by"] for line in logs if line["event"] == "web.sign_in_failed"] == ["oidc"]
        assert answer.status_code == 401
        assert "location" not in answer.headers
        assert (await client.get("/api/v2/dags")).status_code == 401
    assert [user.name for user in (await context.ask(users.list_users, Pattern())).items] == ["otto"]


async def test_a_user_is_known_by_the_subject_and_not_by_the_name(context, provider):
    async with browser(context) as client:
        await go(provider, client)
    provider.claims |= {"sub": "u-2"}
    async with browser(context) as client:
        assert (await go(provider, client)).status_code == 401
    provider.claims |= {"sub": "u-1", "preferred_username": "ada lovelace"}
    async with browser(context) as client:
        assert (await go(provider, client)).status_code == 303
    assert [user.name for user in (await context.ask(users.list_users, Pattern())).items] == ["ada"]


async def test_the_provider_gives_other_roles_but_none_to_a_user_who_is_disabled(context, provider):
    for disabled, given, status in ((False, "viewer", 303), (True, "admin", 401)):
        provider.claims |= {"roles": [given]}
        async with browser(context) as client:
            assert (await go(provider, client)).status_code == status
        roles = (await context.ask(users.get_user, "ada")).roles
        assert roles == (() if disabled else (given,))
        await context.act("test", users.disable_user, "ada")
    await context.act("test", users.set_roles, "ada", ["viewer"])
    async with browser(context) as client:
        assert (await go(provider, client)).status_code == 303


def test_roles_may_be_inside_an_object():
    settings = WebSettings(oidc_roles_claim="realm_access.roles", oidc_name_claim="email", default_role="viewer")
    claims = {"sub": "1", "email": "ada@example.org", "realm_access": {"roles": ["admin", 7, ""]}}
    assert user_of(claims, settings).roles == ("admin",)
    assert user_of({"sub": "1", "email": "ada@example.org"}, settings).roles == ("viewer",)
