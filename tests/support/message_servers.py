"""Servers for notifiers, each in a thread: HTTP, and SMTP with and without encryption. They keep what they receive."""

import base64
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.authority import Authority


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpServer:
    """A server that answers with `status` and `answer`, or not before `release` is set if it `stalls`."""

    port: int = 0
    status: int = 200
    answer: bytes = b"ok"
    location: str = ""
    stalls: bool = False
    release: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving_http() -> Iterator[HttpServer]:
    known = HttpServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            known.requests.append(Request(self.command, self.path, dict(self.headers.items()), body))
            if known.stalls:
                known.release.wait(60)
            self.send_response(known.status)
            if known.location:
                self.send_header("Location", known.location)
            self.end_headers()
            self.wfile.write(known.answer)

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, in_thread(server):
        known.port = server.server_port
        try:
            yield known
        finally:
            known.release.set()


@contextmanager
def in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@dataclass
class SmtpServer:
    """A server that refuses the receivers `refused`, and another login than `me` with `password`."""

    port: int = 0
    password: str = ""
    refused: set[str] = field(default_factory=set)
    receivers: list[str] = field(default_factory=list)
    messages: list[EmailMessage] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    """For each message, whether it came encrypted."""


@contextmanager
def serving_smtp(password: str, *, tls: ssl.SSLContext | None = None, from_start: bool = False) -> Iterator[SmtpServer]:
    """Serve SMTP with this password; with `tls` encrypted from the start, or from STARTTLS on."""
    known = SmtpServer(password=password)
    with _SmtpServer(known, tls, from_start=from_start) as server, in_thread(server):
        known.port = server.server_address[1]
        yield known


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, known: SmtpServer, tls: ssl.SSLContext | None, *, from_start: bool) -> None:
        self.known, self.tls, self.from_start = known, tls, from_start
        super().__init__(("127.0.0.1", 0), _SmtpSession)


class _SmtpSession(socketserver.StreamRequestHandler):
    """Obeys each command by the method of its name."""

    server: _SmtpServer
    is_encrypted = False
    is_over = False

    def handle(self) -> None:
        try:
            if self.server.from_start:
                self.encrypt()
            self.say("220 here")
            while not self.is_over and (line := self.rfile.readline().decode().strip()):
                verb, _, rest = line.partition(" ")
                getattr(self, f"on_{verb.lower()}", self.accept)(rest)
        except OSError:
            return  # the client does not trust the certificate, or is gone
        finally:
            self.connection.close()

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def encrypt(self) -> None:
        assert self.server.tls is not None
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.is_encrypted = True

    def accept(self, rest: str) -> None:
        self.say("250 ok")

    def on_ehlo(self, rest: str) -> None:
        features = ["250-STARTTLS"] if self.server.tls is not None and not self.is_encrypted else []
        self.say("\r\n".join(["250-here", *features, "250 AUTH PLAIN"]))

    def on_starttls(self, rest: str) -> None:
        self.say("220 go on")
        self.encrypt()

    def on_auth(self, rest: str) -> None:
        given = base64.b64decode(rest.split()[1]).decode().split("\0")[1:]
        is_right = given == ["me", self.server.known.password]
        self.say("235 welcome" if is_right else f"535 wrong password {given[1]}")

    def on_rcpt(self, rest: str) -> None:
        address = rest.partition("<")[2].partition(">")[0]
        if address in self.server.known.refused:
            self.say("550 unknown")
        else:
            self.server.known.receivers.append(address)
            self.say("250 ok")

    def on_data(self, rest: str) -> None:
        self.say("354 send")
        lines = iter(self.rfile.readline, b".\r\n")
        self.server.known.messages.append(message_from_bytes(b"".join(lines), policy=default))
        self.server.known.encrypted.append(self.is_encrypted)
        self.say("250 ok")

    def on_quit(self, rest: str) -> None:
        self.say("221 bye")
        self.is_over = True


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the context of a server on 127.0.0.1, and the file of the certificate that a client must trust."""
    authority = Authority(folder, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("127.0.0.1"))
    return context, authority.file
