"""Notifiers ready to use: mail, Slack and HTTP, with the standard library's clients.

They run in the process of a callback. Names, arguments and the fields of connections are those of Airflow's providers.
What they raise names the server and its answer; passwords, tokens and the addresses of webhooks are masked in the log,
and stand in no message.

Source: the notifiers and hooks of Apache Airflow's providers smtp, slack and http.
"""

from __future__ import annotations

from asynsched.authoring.connection import Connection
from asynsched.authoring.deadline import BaseNotifier
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.masking import mask_secret, shortened
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import smtplib
    from collections.abc import Collection, Mapping, Sequence
    from email.message import EmailMessage
    from typing import Any

    from asynsched.authoring.running.context import Context

OF_TASK = "{% if exception is defined and exception %}, task {{ ti.task_id }}{% endif %}"
"""Callbacks of a DAG are about the run: several tasks may have failed, and the reason names them."""
SUBJECT = "DAG {{ dag.dag_id }}" + OF_TASK + ", run {{ run_id }}"
LINK = (
    "{% if ti is defined and ti and ti.log_url.startswith('http') %}\n"
    "{% if exception is defined and exception %}{{ ti.log_url }}"
    "{% else %}{{ ti.log_url.rpartition('/tasks/')[0] }}{% endif %}{% endif %}"
)
"""Where `web.base_url` is set: the try that has failed in the page, or else the run."""
TEXT = SUBJECT + "{% if reason is defined and reason %}: {{ reason }}{% endif %}" + LINK
TIMEOUT_SECONDS = 30.0
LONGEST_LINE = 900
"""Characters of a line of a mail, of at most 998: a header that is broken before a run_id begins with a blank."""
MOST_OF_ANSWER = 300
"""Characters of a server's answer that an error shows."""
MOST_READ = 16 * 1024
"""Bytes of an answer that are read: secrets in it are masked before it is cut."""


class Sender(BaseNotifier):
    """A notifier that sends something to a server, which has to answer in time.

    Args:
        timeout: Seconds that the server may take for each step, such as to accept the connection or to answer.
    """

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, context: Mapping[str, Any] | None = None) -> None:
        super().__init__(context=context)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0:
            raise DagError(f"{type(self).__name__}: timeout must be a positive number of seconds, not {timeout!r}")
        self.timeout = timeout

    async def async_notify(self, context: Context) -> None:
        """Send the notification for an AsyncCallback, in a thread."""
        import asyncio

        await asyncio.to_thread(self.notify, context)

    def _problem(self, text: str) -> AsynschedException:
        return AsynschedException(f"{type(self).__name__}: {text}")


class SmtpNotifier(Sender):
    """Sends a mail by SMTP.

    The server is the `host` and `port` of a connection, with its login and password, or of the arguments. The
    connection's extra may have `from_email`, `timeout`, `disable_ssl` and `disable_tls`: by default everything is
    encrypted from the start; with `disable_ssl`, from STARTTLS on; with both, nothing is.

    Args:
        to: Addresses: a list, or a text with commas between them.
        from_email: The sender; by default the connection's `from_email`, or else its login.
        subject: By default the DAG and the run, and the task that has failed.
        html_content: The text in HTML; without it, the mail has `text` alone.
        text: The plain text; by default the subject, the reason and, where `web.base_url` is set, the log's address.
        cc: More addresses, which all receivers see.
        bcc: More addresses, which no receiver sees.
        smtp_conn_id: The connection; not asked for if `host` is given.
        host: The server, instead of the connection's.
        port: By default 465, 587 for STARTTLS, or 25 without encryption.
        login: The user, if the server wants one.
        password: Better in a connection, or a template such as `{{ var.value.smtp_password }}`.
        disable_ssl: As in a connection's extra.
        disable_tls: As in a connection's extra.
    """

    template_fields: Collection[str] = (
        "to", "from_email", "subject", "html_content", "text", "cc", "bcc", "smtp_conn_id", "host", "login", "password",
    )  # fmt: skip

    def __init__(
        self,
        to: str | Sequence[str],
        from_email: str | None = None,
        subject: str = SUBJECT,
        html_content: str | None = None,
        *,
        text: str = TEXT,
        cc: str | Sequence[str] = (),
        bcc: str | Sequence[str] = (),
        smtp_conn_id: str = "smtp_default",
        host: str | None = None,
        port: int | None = None,
        login: str | None = None,
        password: str | None = None,
        disable_ssl: bool = False,
        disable_tls: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(timeout=timeout, context=context)
        self.to = to
        self.from_email = from_email
        self.subject = subject
        self.html_content = html_content
        self.text = text
        self.cc = cc
        self.bcc = bcc
        self.smtp_conn_id = smtp_conn_id
        self.host = host
        self.port = port
        self.login = login
        self.password = password
        self.disable_ssl = disable_ssl
        self.disable_tls = disable_tls

    def notify(self, context: Context) -> None:
        """Send the mail.

        Raises:
            AsynschedException: The server cannot be reached, or refuses the login, the mail or all receivers.
        """
        import smtplib

        connection = self._connection()
        mask_secret(connection.password)
        if not connection.host:
            raise self._problem(f"the connection {self.smtp_conn_id!r} has no host")
        message, receivers = self._message(connection)
        try:
            with self._server(connection) as server:
                if connection.login and connection.password:
                    server.login(connection.login, connection.password)
                refused = server.send_message(message, to_addrs=receivers)
        except smtplib.SMTPResponseException as exc:
            answer = exc.smtp_error.decode(errors="replace") if isinstance(exc.smtp_error, bytes) else exc.smtp_error
            raise self._problem(f"{connection.host} answers {exc.smtp_code} {_short(answer)}") from None
        except (smtplib.SMTPException, OSError) as exc:
            raise self._problem(f"{connection.host}: {_short(str(exc) or type(exc).__name__)}") from None
        if refused:
            self.log.warning("%s refuses these receivers: %s", connection.host, ", ".join(refused))

    def _connection(self) -> Connection:
        if not self.host:
            return Connection.get(self.smtp_conn_id)
        extra = {"disable_ssl": self.disable_ssl, "disable_tls": self.disable_tls}
        return Connection(
            host=self.host, port=self.port, login=self.login, password=self.password, extra=extra
        )  # fmt: skip

    def _message(self, connection: Connection) -> tuple[EmailMessage, list[str]]:
        """Return the mail, and the addresses of all receivers."""
        from email.message import EmailMessage
        from email.policy import SMTP
        from email.utils import formatdate, make_msgid

        sender = self.from_email or connection.extra_dejson.get("from_email") or connection.login
        if not sender:
            raise self._problem("a mail needs a sender: give from_email, or set it in the extra of the connection")
        groups = {"To": _addresses(self.to), "Cc": _addresses(self.cc)}
        receivers = [*groups["To"], *groups["Cc"], *_addresses(self.bcc)]
        if not receivers:
            raise self._problem("a mail needs a receiver: `to` is empty")
        message = EmailMessage(SMTP.clone(max_line_length=LONGEST_LINE))
        message["From"] = sender
        # A rendered subject may have several lines, a header may not.
        message["Subject"] = " ".join(self.subject.split())
        for name, addresses in groups.items():
            if addresses:
                message[name] = ", ".join(addresses)
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = make_msgid(domain="asynsched.invalid")
        message.set_content(self.text)
        if self.html_content is not None:
            message.add_alternative(self.html_content, subtype="html")
        return message, receivers

    def _server(self, connection: Connection) -> smtplib.SMTP:
        import smtplib
        import ssl

        extra = connection.extra_dejson
        is_encrypted, may_start_tls = not _is_true(extra, "disable_ssl"), not _is_true(extra, "disable_tls")
        limit = float(extra.get("timeout", self.timeout))
        host = connection.host or ""
        if is_encrypted:
            port = connection.port or smtplib.SMTP_SSL_PORT
            return smtplib.SMTP_SSL(host, port, timeout=limit, context=ssl.create_default_context())
        server = smtplib.SMTP(host, connection.port or (587 if may_start_tls else smtplib.SMTP_PORT), timeout=limit)
        if may_start_tls:
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


def _addresses(given: str | Sequence[str]) -> list[str]:
    """Return the addresses in a list, or in a text with commas or semicolons between them."""
    texts = [given] if isinstance(given, str) else list(given)
    found = (address.strip() for text in texts for address in text.replace(";", ",").split(","))
    return [address for address in found if address]


def _is_true(extra: Mapping[str, Any], name: str) -> bool:
    return str(extra.get(name, "")).lower() in ("true", "1", "yes")


def _short(text: str) -> str:
    """Return a text of a server's in one line, cut."""
    return shortened(" ".join(text.split()), MOST_OF_ANSWER)


# HTTP


class HttpNotifier(Sender):
    """Sends a request to a server that speaks HTTP, and expects an answer with a status of 2xx.

    Redirects are not followed: a server must not pass a secret on.

    Args:
        http_conn_id: The connection: `host` and `port`, `schema` (http or https), login and password for the header
            Authorization, and an extra with more headers. Not asked for if `url` is given.
        endpoint: The path below the host.
        method: Such as POST.
        data: The body as a text; without `data` and `json`, an object with dag_id, run_id, and the text of a mail.
        json: The body as a value, which is sent as JSON.
        headers: More headers.
        url: The whole address, instead of the connection's. It is masked in the log, because such addresses may hold a
            secret.
    """

    template_fields: Collection[str] = ("http_conn_id", "endpoint", "data", "json", "headers", "url")

    def __init__(
        self,
        *,
        http_conn_id: str = "http_default",
        endpoint: str = "",
        method: str = "POST",
        data: str | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(timeout=timeout, context=context)
        self.http_conn_id = http_conn_id
        self.endpoint = endpoint
        self.method = method.upper()
        self.data = data
        self.json = {"dag_id": "{{ dag.dag_id }}", "run_id": "{{ run_id }}", "text": TEXT} if json is None else json
        self.headers = dict(headers or {})
        self.url = url

    def notify(self, context: Context) -> None:
        """Send the request.

        Raises:
            AsynschedException: The server cannot be reached in time, or answers with another status.
        """
        if self.url:
            address, headers = self.url, {}
            mask_secret(self.url)
        else:
            connection = Connection.get(self.http_conn_id)
            address, headers = _base_of(connection, "http"), _headers_of(connection)
        if self.endpoint:
            address = f"{address.rstrip('/')}/{self.endpoint.lstrip('/')}"
        for name, value in {**headers, **self.headers}.items():
            mask_secret(value, name.replace("-", "_"))
        self._send(address, self.method, {**headers, **self.headers})

    def _send(self, address: str, method: str, headers: Mapping[str, str]) -> None:
        import json

        is_json = self.data is None
        body = json.dumps(self.json) if self.data is None else self.data
        kind = "application/json" if is_json else "text/plain; charset=utf-8"
        send_request(self, address, method, body.encode(), {"Content-Type": kind, **headers})


def _headers_of(connection: Connection) -> dict[str, str]:
    """Return the headers that a connection's extra has, and the one with its login and password."""
    import base64

    headers = {name: value for name, value in connection.extra_dejson.items() if isinstance(value, str)}
    if connection.login:
        login = f"{connection.login}:{connection.password or ''}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
    return headers


def _base_of(connection: Connection, default_schema: str, default_host: str = "") -> str:
    host = connection.host or default_host
    if not host:
        raise AsynschedException(f"the connection {connection.conn_id!r} has no host")
    if "://" not in host:
        host = f"{connection.schema or default_schema}://{host}"
    return f"{host.rstrip('/')}:{connection.port}" if connection.port else host.rstrip("/")


class SlackWebhookNotifier(Sender):
    """Posts a message to Slack through an incoming webhook.

    Args:
        text: By default that of a mail: the DAG, the run and the reason, the task that has failed, and its log's
            address.
        blocks: The message in Slack's Block Kit; `text` then stands in notifications.
        slack_webhook_conn_id: The connection: its password is the webhook's address, or what follows
            `https://hooks.slack.com/services/` in it; a host replaces that. Not asked for if `url` is given.
        url: The webhook's address, which is a secret: better in a connection, or a template such as
            `{{ var.value.slack_token }}`.
    """

    template_fields: Collection[str] = ("text", "blocks", "slack_webhook_conn_id", "url")

    def __init__(
        self,
        *,
        text: str = TEXT,
        blocks: Sequence[Any] = (),
        slack_webhook_conn_id: str = "slackwebhook_default",
        url: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(timeout=timeout, context=context)
        self.text = text
        self.blocks = blocks
        self.slack_webhook_conn_id = slack_webhook_conn_id
        self.url = url

    def notify(self, context: Context) -> None:
        """Post the message.

        Raises:
            AsynschedException: Slack cannot be reached in time, or refuses the message.
        """
        import json

        message = {"text": self.text, **({"blocks": list(self.blocks)} if self.blocks else {})}
        headers = {"Content-Type": "application/json"}
        address = self.url or self._address()
        mask_secret([address, address.partition("://")[2].partition("/")[2]])
        send_request(self, address, "POST", json.dumps(message).encode(), headers)

    def _address(self) -> str:
        connection = Connection.get(self.slack_webhook_conn_id)
        token = (connection.password or "").strip()
        if not token:
            raise self._problem(f"the connection {self.slack_webhook_conn_id!r} has no password: set the webhook there")
        if "://" in token:
            return token
        return f"{_base_of(connection, 'https', 'hooks.slack.com/services')}/{token.lstrip('/')}"


def send_request(sender: Sender, address: str, method: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a request, and wait for an answer with a status of 2xx.

    Raises:
        AsynschedException: The server cannot be reached in time, or answers otherwise. Of the address, the message has
            only the server: the rest may be a secret.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.parse import urlsplit
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow none: the answer itself is an error then."""

    who = type(sender).__name__
    try:
        parts = urlsplit(address)
        server = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or ""
    except ValueError:
        parts, server = None, ""
    if parts is None or parts.scheme not in ("http", "https") or not server:
        raise AsynschedException(f"{who}: its address must begin with http:// or https://, and name a host")
    try:
        request = Request(address, data=body, headers=dict(headers), method=method)  # noqa: S310 - checked above
        with build_opener(NoRedirects).open(request, timeout=sender.timeout) as answer:
            answer.read(MOST_OF_ANSWER)
    except HTTPError as exc:
        with exc:
            said = _short(exc.read(MOST_READ).decode(errors="replace"))
        raise AsynschedException(
            f"{who}: {server} answers {exc.code} {exc.reason}{f': {said}' if said else ''}"
        ) from None
    except URLError as exc:
        raise AsynschedException(f"{who}: {server} cannot be reached: {_short(str(exc.reason))}") from None
    except TimeoutError:
        raise AsynschedException(f"{who}: {server} has not answered within {sender.timeout:g} s") from None
    except (OSError, HTTPException, ValueError) as exc:
        # The texts of these may repeat the address or a header.
        raise AsynschedException(f"{who}: the request to {server} failed: {type(exc).__name__}") from None
