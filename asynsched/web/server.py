"""Serves the application: where it listens, and how it begins without a cost for a scheduler that nobody looks at.

The address is bound before the scheduler starts, so a wrong one is told at once; the kernel takes connections from then
on. Until the first one comes, nothing of a web server is loaded.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote

from anyio.to_thread import run_sync

from asynsched.errors import SettingsError
from asynsched.settings import WebSettings
from asynsched.web.hosting import WebApp

if TYPE_CHECKING:
    from asynsched.web.loop_server import LoopServer

USUAL_HOST, USUAL_PORT = "127.0.0.1", 8080
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound address.

    Attributes:
        url: What a browser on this machine opens, without a slash at its end.
        is_local: Whether only this machine can reach it.
        taken: The usual address, if another program has it; empty: this is the one of the settings.
    """

    socket: socket.socket
    url: str
    is_local: bool
    taken: str = ""

    def link(self, secret: str) -> str:
        """Return the URL that signs in, once."""
        return f"{self.url}/login?key={quote(secret)}"


def open_listener(settings: WebSettings) -> Listener | None:
    """Bind the address of the settings; None: nothing is to be served.

    Raises:
        SettingsError: The address is none, or it is taken; or the certificate cannot be used.
    """
    if not settings.is_served:
        return None
    if settings.tls_certificate is not None:
        from asynsched.web.certificate import read_certificate  # most servers have none

        read_certificate(settings)
    if settings.listen is not None:
        host, port = _address(settings.listen)
        try:
            return _listener(settings, host, port)
        except OSError as exc:
            raise SettingsError(f"web.listen: cannot listen on {settings.listen!r}: {exc.strerror or exc}") from exc
    try:
        return _listener(settings, USUAL_HOST, USUAL_PORT)
    except OSError:
        return _listener(settings, USUAL_HOST, 0, taken=f"{USUAL_HOST}:{USUAL_PORT}")


async def serve(app: WebApp, listener: socket.socket, settings: WebSettings, *, at_once: bool = False) -> None:
    """Serve an application on a bound socket until this is cancelled; then close that.

    Args:
        at_once: Load everything now, and not when somebody connects.
    """
    try:
        if not at_once:
            await first_connection(listener)
        server = await run_sync(_make_server, app, settings)
        await server.serve_until_cancelled(listener)
    finally:
        listener.close()


def _make_server(app: WebApp, settings: WebSettings) -> "LoopServer":
    from asynsched.web.loop_server import LoopServer  # loads uvicorn

    return LoopServer(app, settings, app.clock)


async def first_connection(listener: socket.socket) -> None:
    """Wait until somebody has connected."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener.fileno())


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"web.listen: {listen!r} is neither HOST:PORT nor off")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - as the user has written it


def _listener(settings: WebSettings, host: str, port: int, taken: str = "") -> Listener:
    """Bind an address. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # With the protocol named, asyncio sends at once (TCP_NODELAY); else an answer waits up to 40 ms for its end.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    bound = ip_address(address[0])
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.tls_certificate is None else "https"
    url = settings.base_url.rstrip("/") or f"{scheme}://{shown}:{listener.getsockname()[1]}"
    return Listener(listener, url, bound.is_loopback, taken)
