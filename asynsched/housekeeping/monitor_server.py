"""Serves /health and /metrics over HTTP, from threads of its own.

Nothing of it runs on the event loop, so a stalled loop is reported, with its age. The server is that of Python's
standard library: it is for a scraper and a probe, on a port or socket that is not open to the world.
"""

import socket
import socketserver
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec

from asynsched.errors import SettingsError
from asynsched.health import Health
from asynsched.metrics.base import Metrics

UNIX = "unix:"
REQUEST_SECONDS = 10
"""How long a client may take to send its request."""
NO_METRICS = b"No metrics: the setting monitor.metrics is not prometheus.\n"


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    health: Callable[[], Health]
    metrics: Metrics

    def server_bind(self) -> None:
        # HTTPServer's own looks the host's name up.
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about clients that go away."""


class _UnixServer(_Server):
    address_family = socket.AF_UNIX
    allow_reuse_address = False


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer a probe or a scraper."""
        path = self.path.partition("?")[0]
        if path in ("/health", "/healthz"):
            health = self.server.health()
            status = 503 if health.stuck_loops else 200
            self._answer(status, "application/json", msgspec.json.encode(health_answer(health)))
        elif path == "/metrics":
            self._answer_metrics()
        else:
            self._answer(404, "text/plain", b"There are /health and /metrics.\n")

    do_HEAD = do_GET  # noqa: N815 - the name that the library calls

    def log_message(self, *_: Any) -> None:
        """Keep no log of requests."""

    def address_string(self) -> str:
        """Return the client; one on a Unix socket has no address."""
        return str(self.client_address)

    def _answer_metrics(self) -> None:
        exposition = getattr(self.server.metrics, "exposition", None)
        if exposition is None:
            self._answer(404, "text/plain", NO_METRICS)
        else:
            body, content_type = exposition(self.headers.get("Accept", ""))
            self._answer(200, content_type, body)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def health_answer(health: Health) -> dict[str, Any]:
    """Return the body of /health: Airflow's fields, then all of ours."""

    def status(is_well: bool) -> str:
        return "healthy" if is_well else "unhealthy"

    ages = {loop.name: loop.age_seconds for loop in health.loops}
    beat_at = datetime.fromtimestamp(health.at.timestamp() - ages.get("loop beat", 0.0), health.at.tzinfo)
    return {
        "metadatabase": {"status": status(health.status != "waiting")},
        "scheduler": {"status": status(not health.stuck_loops), "latest_scheduler_heartbeat": beat_at},
        **msgspec.to_builtins(health),
    }


class MonitorServer:
    """Serves from `start` until it is closed. `listen` is `HOST:PORT`, or `unix:PATH`."""

    def __init__(self, listen: str, health: Callable[[], Health], metrics: Metrics) -> None:
        self._listen, self._health, self._metrics = listen, health, metrics
        self._path = Path(listen.removeprefix(UNIX)) if listen.startswith(UNIX) else None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._is_closed = False

    def start(self) -> None:
        """Listen, and serve in a thread, unless it is closed. Raises SettingsError if the address is not usable."""
        with self._changing:
            if self._is_closed:  # while this call waited for a thread
                return
            try:
                self._server = self._bind(self._listen)
            except (OSError, ValueError, OverflowError) as exc:
                raise SettingsError(f"monitor.listen: cannot listen on {self._listen!r}: {exc}") from exc
            self._server.health, self._server.metrics = self._health, self._metrics
            thread = threading.Thread(target=self._server.serve_forever, name="asynsched monitor", daemon=True)
            thread.start()
            self._thread = thread  # `close` would wait for ever for one that has not started

    @property
    def address(self) -> str:
        """The address it listens on, with the chosen port if the setting's is 0."""
        if self._path is not None:
            return f"{UNIX}{self._path}"
        assert self._server is not None
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop, if it has started. Blocks for a moment: not for the event loop."""
        with self._changing:
            self._is_closed = True
        if self._server is None:
            return
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _bind(self, listen: str) -> _Server:
        if self._path is not None:
            if self._path.is_socket():
                self._path.unlink()  # left by a killed scheduler: this one holds the home alone
            return _UnixServer(str(self._path), _Handler)  # type: ignore[arg-type] # a path is the address of this family
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError("it is neither HOST:PORT nor unix:PATH")
        kind = _Ipv6Server if ":" in host else _Server
        return kind((host.strip("[]"), int(port)), _Handler)
