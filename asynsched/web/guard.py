"""The rules that hold for every request and every response, whichever endpoint answers.

proxy headers  only a trusted proxy says from where, by which scheme, and for which user a request comes
Host           a page of an attacker whose name points to this machine (DNS rebinding) is refused
same origin    a browser's unsafe request that brings a cookie must come from our own page (CSRF)
root path      a proxy may keep the prefix of `web.base_url`, or strip it
headers        the content security policy and its like
"""

import socket
from collections.abc import Iterable
from email.utils import format_datetime
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from asynsched.clock import Clock
from asynsched.settings import WebSettings
from asynsched.web.errors import detail

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS = (80, 443)
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "font-src 'self'",
        "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
"""No script or style but those of our own files: markup that an attacker smuggles into a page runs nothing."""
RESPONSE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SECRET_ANSWERS = "no-store"  # noqa: S105 - the Cache-Control of responses without one


class Guard:
    """The outermost layer of the application.

    Args:
        checks_host: Whether the names by which it is addressed are checked; a host application does that itself.
        addresses: URLs by which workers address it, whose names are known.
    """

    def __init__(
        self, app: ASGIApp, settings: WebSettings, clock: Clock, *, checks_host: bool, addresses: Iterable[str] = ()
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._hosts = _hosts(settings, addresses) if checks_host else None
        self._proxies = [ip_network(one) for one in settings.trusted_proxies]
        self._user_header = (settings.user_header or "").lower()
        self._app: Any = app
        inner: Any = self._admit
        self._entry: Any = (
            ProxyHeadersMiddleware(inner, list(settings.trusted_proxies)) if settings.trusted_proxies else inner
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP; there are no others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "state": dict(scope.get("state") or {})}
        scope["state"] |= {"user_of_proxy": self._user_of_proxy(scope), "base_url": self._settings.base_url}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("date", format_datetime(self._clock.now(), usegmt=True))
                headers.setdefault("cache-control", SECRET_ANSWERS)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._entry(scope, receive, send_with_headers)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        headers = Headers(scope=scope)
        if self._hosts is not None and not _is_known(headers.get("host", ""), self._hosts):
            shown = headers.get("host", "")[:100]
            problem = f"This is not {shown!r}. The setting web.allowed_hosts lists the names by which it is addressed."
            await detail(HTTPStatus.MISDIRECTED_REQUEST, problem)(scope, receive, send)
        elif not self._is_own(scope, headers):
            problem = (
                "A browser sent this from another site. A program sends its token as Authorization: Bearer TOKEN, and"
                " no cookie."
            )
            await detail(HTTPStatus.FORBIDDEN, problem)(scope, receive, send)
        else:
            scope = self._below_root(scope)
            scope["state"]["root"] = scope.get("root_path", "")
            await self._app(scope, receive, send)

    def _user_of_proxy(self, scope: Scope) -> str | None:
        """Return the user whom a trusted proxy names. Called while `client` is still the one that has connected."""
        if not self._user_header:
            return None
        peer = (scope.get("client") or ("",))[0]
        try:
            address = ip_address(peer)
        except ValueError:
            return None
        if not any(address in network for network in self._proxies):
            return None
        named = Headers(scope=scope).getlist(self._user_header)
        if len(named) != 1 or not named[0]:
            return None
        try:
            return named[0].encode("latin-1").decode()  # proxies send UTF-8
        except UnicodeDecodeError:
            return named[0]

    def _is_own(self, scope: Scope, headers: Headers) -> bool:
        """Whether a request may be obeyed: it changes nothing, brings its own proof, or comes from our own page."""
        if scope["method"] in SAFE_METHODS or headers.get("authorization", "")[:7].lower() == "bearer ":
            return True  # browsers send no token by themselves, as they do a password
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        if (origin := headers.get("origin")) is not None:
            base = self._settings.base_url
            own = {_name(f"//{headers.get('host', '')}"), *([_name(base)] if base else ())}
            return _name(origin) in own
        # No browser: it would send one of them. A cookie, or the proxy's word, proves a browser's user only.
        return "cookie" not in headers and scope["state"]["user_of_proxy"] is None

    def _below_root(self, scope: Scope) -> Scope:
        """Return the scope with the prefix of `web.base_url`, whether or not the proxy has left it in the path."""
        root = self._settings.root_path
        if not root:
            return scope
        path = scope["path"]
        if path != root and not path.startswith(f"{root}/"):
            path = root + path
        return {**scope, "path": path, "root_path": root}


def _hosts(settings: WebSettings, addresses: Iterable[str]) -> frozenset[str]:
    own = ("localhost", socket.gethostname().lower(), _host(settings.listen or ""))
    named = (urlsplit(url).hostname or "" for url in (settings.base_url, *addresses))
    return frozenset(filter(None, (*own, *named, *(name.lower() for name in settings.allowed_hosts))))


def _host(listen: str) -> str:
    return listen.rpartition(":")[0].strip("[]").lower()


def _is_known(given: str, hosts: Iterable[str]) -> bool:
    """Whether a Host header names this server. An IP address does: no attacker can own it, as one can own a name."""
    try:
        name = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return False
    if name in hosts or "*" in hosts:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(url: str) -> tuple[str, int | None] | None:
    """Return the host and port of an origin; None for a usual port, or altogether if it is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if parts.hostname is None else (parts.hostname, None if port in DEFAULT_PORTS else port)
