"""Sends email as Airflow does: by the options of the sections `email` and `smtp`, and the login of a connection."""

from __future__ import annotations

from asynsched.airflow.configuration import conf
from asynsched.authoring.connection import Connection
from asynsched.authoring.exceptions import AsynschedNotFoundException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import smtplib
    import ssl
    from collections.abc import Iterable
    from email.mime.multipart import MIMEMultipart
    from typing import Any


def send_email(
    to: str | Iterable[str],
    subject: str,
    html_content: str,
    files: list[str] | None = None,
    dryrun: bool = False,
    cc: str | Iterable[str] | None = None,
    bcc: str | Iterable[str] | None = None,
    mime_subtype: str = "mixed",
    mime_charset: str = "utf-8",
    conn_id: str | None = None,
    custom_headers: dict[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Send an email through the function that `[email] email_backend` names, by default `send_email_smtp`.

    Args:
        to: Addresses; a text may have several, separated by commas or semicolons.
        subject: The subject.
        html_content: The text, in HTML.
        files: Paths of files to attach.
        dryrun: Whether to send nothing.
        cc: More addresses, which all receivers see.
        bcc: More addresses, which no receiver sees.
        mime_subtype: Of the message.
        mime_charset: Of the text.
        conn_id: The connection with the login; by default `[email] email_conn_id`.
        custom_headers: More headers.
        kwargs: Further arguments of the backend.
    """
    conf.getimport("email", "email_backend")(
        ", ".join(get_email_address_list(to)),
        subject,
        html_content,
        files=files,
        dryrun=dryrun,
        cc=cc,
        bcc=bcc,
        mime_subtype=mime_subtype,
        mime_charset=mime_charset,
        conn_id=conn_id or conf.get("email", "email_conn_id"),
        from_email=conf.get("email", "from_email", fallback=None),
        custom_headers=custom_headers,
        **kwargs,
    )


def send_email_smtp(
    to: str | Iterable[str],
    subject: str,
    html_content: str,
    files: list[str] | None = None,
    dryrun: bool = False,
    cc: str | Iterable[str] | None = None,
    bcc: str | Iterable[str] | None = None,
    mime_subtype: str = "mixed",
    mime_charset: str = "utf-8",
    conn_id: str | None = "smtp_default",
    from_email: str | None = None,
    custom_headers: dict[str, Any] | None = None,
    **_options: Any,
) -> None:
    """Send an email by SMTP; the arguments are those of `send_email`, and `from_email` for the sender.

    Raises:
        ValueError: Neither `[smtp] smtp_mail_from` nor `from_email` names the sender.
        OSError: The server cannot be reached; or smtplib.SMTPException: it refuses the email.
    """
    sender = conf.get("smtp", "smtp_mail_from", fallback=None) or from_email
    if not sender:
        raise ValueError("an email needs a sender: set [smtp] smtp_mail_from, or give from_email")
    message, receivers = build_mime_message(
        sender, to, subject, html_content, files, cc, bcc, mime_subtype, mime_charset, custom_headers
    )
    send_mime_email(sender, receivers, message, conn_id, dryrun)


def build_mime_message(
    mail_from: str | None,
    to: str | Iterable[str],
    subject: str,
    html_content: str,
    files: list[str] | None = None,
    cc: str | Iterable[str] | None = None,
    bcc: str | Iterable[str] | None = None,
    mime_subtype: str = "mixed",
    mime_charset: str = "utf-8",
    custom_headers: dict[str, Any] | None = None,
) -> tuple[MIMEMultipart, list[str]]:
    """Return an email, and the addresses of all its receivers; the arguments are those of `send_email`."""
    import os
    from email.mime.application import MIMEApplication
    from email.mime.multipart import MIMEMultipart
    from email.mime.text import MIMEText
    from email.utils import formatdate

    receivers, copied, hidden = (get_email_address_list(addresses or ()) for addresses in (to, cc, bcc))
    message = MIMEMultipart(mime_subtype)
    message["Subject"] = subject
    message["To"] = ", ".join(receivers)
    if mail_from:
        message["From"] = mail_from
    if copied:
        message["CC"] = ", ".join(copied)
    message["Date"] = formatdate(localtime=True)
    message.attach(MIMEText(html_content, "html", mime_charset))
    for path in files or ():
        name = os.path.basename(path)  # noqa: PTH119 - pathlib would be loaded for this
        with open(path, "rb") as file:  # noqa: PTH123
            part = MIMEApplication(file.read(), Name=name)
        part["Content-Disposition"] = f'attachment; filename="{name}"'
        part["Content-ID"] = f"<{name}>"
        message.attach(part)
    for name, value in (custom_headers or {}).items():
        message[name] = value
    return message, [*receivers, *copied, *hidden]


def send_mime_email(
    e_from: str,
    e_to: str | list[str],
    mime_msg: MIMEMultipart,
    conn_id: str | None = "smtp_default",
    dryrun: bool = False,
) -> None:
    """Send an email to the server of the section `smtp`, with the login of a connection if there is one.

    Raises:
        OSError: The server cannot be reached; or smtplib.SMTPException: it refuses the email.
    """
    import smtplib

    if dryrun:
        return
    retries = conf.getint("smtp", "smtp_retry_limit")
    for attempt in range(retries + 1):
        try:
            server = _server()
            break
        except smtplib.SMTPServerDisconnected:
            if attempt == retries:
                raise
    with server:
        if conf.getboolean("smtp", "smtp_starttls") and not conf.getboolean("smtp", "smtp_ssl"):
            server.starttls(context=_ssl_context())
        user, password = _login(conn_id)
        if user and password:
            server.login(user, password)
        server.sendmail(e_from, e_to, mime_msg.as_string())


def get_email_address_list(addresses: str | Iterable[str]) -> list[str]:
    """Return the addresses in a list, or in a text that separates them by commas or semicolons.

    Raises:
        TypeError: It is neither a text nor a list of texts.
    """
    import re

    if isinstance(addresses, str):
        return [address for address in re.split(r"\s*[,;]\s*", addresses.strip()) if address]
    found = list(addresses)
    if not all(isinstance(address, str) for address in found):
        raise TypeError(f"addresses of email must be strings: {found!r}")
    return found


def _server() -> smtplib.SMTP:
    import smtplib

    host, port = conf.get_mandatory_value("smtp", "smtp_host"), conf.getint("smtp", "smtp_port")
    limit = conf.getint("smtp", "smtp_timeout")
    if conf.getboolean("smtp", "smtp_ssl"):
        return smtplib.SMTP_SSL(host, port, timeout=limit, context=_ssl_context())
    return smtplib.SMTP(host, port, timeout=limit)


def _ssl_context() -> ssl.SSLContext | None:
    """Return the context of the server's certificate; None: it is not checked, as `[email] ssl_context` wants."""
    import ssl

    kind = conf.get("email", "ssl_context")
    if kind not in ("default", "none"):
        raise ValueError(f"[email] ssl_context must be default or none, not {kind!r}")
    return ssl.create_default_context() if kind == "default" else None


def _login(conn_id: str | None) -> tuple[str | None, str | None]:
    if conn_id is None:
        return None, None
    try:
        connection = Connection.get(conn_id)
    except AsynschedNotFoundException:
        return None, None
    return connection.login, connection.password
