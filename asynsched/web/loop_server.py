"""uvicorn as a guest in a loop that is not its own: it takes no signals, and it does not tick while nothing happens."""

import asyncio
import socket
from functools import partial
from typing import Any

import anyio
import uvicorn

from asynsched.clock import Clock
from asynsched.settings import WebSettings
from asynsched.web.certificate import Certificate
from asynsched.web.connection_limits import HEAD_SECONDS, MOST_HEAD_BYTES, LimitedConnection

GRACE_SECONDS = 0.5
"""How long requests may go on when the server stops; then they are cancelled, such as streams that have no end."""


class LoopServer(uvicorn.Server):
    """A server of one application. Loading it takes a while: make it in a thread."""

    def __init__(self, app: Any, settings: WebSettings, clock: Clock) -> None:
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False, ws="none",
            http="h11",  # httptools has no limit of a request's head
            h11_max_incomplete_event_size=MOST_HEAD_BYTES, proxy_headers=False,
            ssl_certfile=settings.tls_certificate, ssl_keyfile=settings.tls_key,
        )  # fmt: skip
        config.load()
        super().__init__(config)
        self._connection = partial(
            LimitedConnection, max_connections=settings.max_connections, config=config,
            server_state=self.server_state, app_state={},
        )  # fmt: skip
        self._certificate: Certificate | None = None
        if config.ssl is not None:
            self._certificate = Certificate(settings, clock)
            self._certificate.show_in(config.ssl)

    async def serve_until_cancelled(self, listener: socket.socket) -> None:
        """Serve on a bound socket, which is closed at the end."""
        await self.startup([listener])
        try:
            if self._certificate is not None:
                await self._certificate.follow()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.shutdown([listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections. uvicorn's own way leaves a handshake of TLS the time that asyncio gives it: a minute."""
        tls = self.config.ssl
        accept = partial(
            asyncio.get_running_loop().create_server, self._connection, backlog=self.config.backlog, ssl=tls,
            ssl_handshake_timeout=None if tls is None else HEAD_SECONDS,
        )  # fmt: skip
        self.servers = [await accept(sock=listener) for listener in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything: idle connections at once, requests after a moment."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            _, left = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=GRACE_SECONDS)
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()
