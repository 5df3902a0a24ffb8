"""Servers for the tests, each in a thread: HTTP, SMTP and SSH. They keep the requests."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

T = TypeVar("T")


@dataclass
class HttpRequest:
    """A request: the method, the path with its query, the headers, and the body."""

    method: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpServer:
    """A server at `port`, which answers `hello` to everything, after one 503 to a path that begins with /busy."""

    port: int
    requests: list[HttpRequest] = field(default_factory=list)

    def received(self, path: str) -> list[HttpRequest]:
        """Return the requests for a path, whatever their queries."""
        return [request for request in self.requests if request.path.partition("?")[0] == path]


@contextmanager
def serving_http() -> Iterator[HttpServer]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            is_new = not known.received(self.path)
            known.requests.append(HttpRequest(self.command, self.path, dict(self.headers.items()), body))
            self.send_response(503 if self.path.startswith("/busy") and is_new else 200)
            # What Slack answers: to a webhook a text, to a method of its API an object.
            is_api = "chat.postMessage" in self.path
            self.send_header("Content-Type", "application/json" if is_api else "text/plain")
            self.end_headers()
            self.wfile.write(b'{"ok": true}' if is_api else b"ok" if "services" in self.path else b"hello")

        do_GET = do_POST = do_HEAD = handle_any  # noqa: N815 - named by http.server

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known = HttpServer(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield known
        finally:
            server.shutdown()
            thread.join()


@dataclass
class SmtpServer:
    """A server at `port`, without TLS."""

    port: int
    messages: list[EmailMessage] = field(default_factory=list)


@contextmanager
def serving_smtp(login: str, password: str) -> Iterator[SmtpServer]:
    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            known.messages.append(message_from_bytes(envelope.content, policy=default))
            return "250 OK"

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
        return AuthResult(success=given == LoginPassword(login.encode(), password.encode()))

    def session() -> SMTP:
        loop = asyncio.get_running_loop()
        return SMTP(Handler(), authenticator=authenticate, auth_require_tls=False, auth_required=True, loop=loop)

    async def listen() -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0)

    with running_loop() as call:
        server = call(listen())
        known = SmtpServer(server.sockets[0].getsockname()[1])
        yield known
        call(closed(server))


@contextmanager
def serving_ssh(login: str, password: str, folder: Path) -> Iterator[int]:
    """Serve commands of a shell, and the files of a folder by SFTP; yield the port."""

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, given: str) -> bool:
            return (username, given) == (login, password)

    async def run(process: "asyncssh.SSHServerProcess[bytes]") -> None:
        program = await asyncio.create_subprocess_shell(
            process.command or "true", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder
        )
        out, err = await program.communicate()
        process.stdout.write(out)
        process.stderr.write(err)
        process.exit(program.returncode or 0)

    async def listen() -> "asyncssh.SSHAcceptor":
        return await asyncssh.create_server(
            Server,
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            process_factory=run,
            encoding=None,
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(folder)),
        )

    with running_loop() as call:
        acceptor = call(listen())
        yield acceptor.get_port()
        call(closed(acceptor))


async def closed(server: "asyncio.Server | asyncssh.SSHAcceptor") -> None:
    """Close a server, in its loop."""
    server.close()
    await server.wait_closed()


@contextmanager
def running_loop() -> Iterator[Callable[[Coroutine[Any, Any, T]], T]]:
    """Run an event loop in a thread; yield a function that returns the result of a coroutine in it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
