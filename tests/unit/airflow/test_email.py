"""Email: messages, and how they are sent."""

import smtplib

import pytest

from asynsched.airflow.email import build_mime_message, get_email_address_list, send_email, send_email_smtp


class Server:
    """Notes what it is told, as an SMTP server's client."""

    def __init__(self, host, port, timeout, **_):
        self.told = [(host, port, timeout)]
        Server.last = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.told.append("quit")

    def starttls(self, context):
        self.told.append(("starttls", context is not None))

    def login(self, user, password):
        self.told.append(("login", user, password))

    def sendmail(self, sender, receivers, _text):
        self.told.append((sender, receivers))


def test_a_message_has_the_headers_and_all_receivers(tmp_path):
    report = tmp_path / "report.txt"
    report.write_text("contents")
    message, receivers = build_mime_message(
        "me@here", "a@b; c@d", "Hello", "<p>text</p>", [str(report)], cc=["e@f"], bcc="g@h", custom_headers={"X": "1"}
    )
    assert receivers == ["a@b", "c@d", "e@f", "g@h"]
    headers = {name: message[name] for name in ("Subject", "From", "To", "CC", "X")}
    assert headers == {"Subject": "Hello", "From": "me@here", "To": "a@b, c@d", "CC": "e@f", "X": "1"}
    text, attached = message.get_payload()
    assert (text.get_payload(decode=True), text.get_content_subtype()) == (b"<p>text</p>", "html")
    assert (attached.get_filename(), attached.get_payload(decode=True)) == ("report.txt", b"contents")


def test_an_email_goes_to_the_configured_server_with_the_connections_login(monkeypatch):
    monkeypatch.setattr(smtplib, "SMTP", Server)
    monkeypatch.setenv("AIRFLOW__SMTP__SMTP_HOST", "mail")
    monkeypatch.setenv("AIRFLOW__EMAIL__EMAIL_BACKEND", "asynsched.airflow.email.send_email_smtp")
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", "smtp://user:pass@ignored")
    send_email(["a@b"], "Hello", "text")
    login, sent = ("login", "user", "pass"), ("airflow@example.com", ["a@b"])
    assert Server.last.told == [("mail", 25, 30), ("starttls", True), login, sent, "quit"]


def test_a_server_that_hangs_up_is_tried_again_up_to_the_limit(monkeypatch):
    calls = []

    def hangs_up(*_args, **_options):
        calls.append(1)
        raise smtplib.SMTPServerDisconnected("gone")

    monkeypatch.setattr(smtplib, "SMTP", hangs_up)
    monkeypatch.setenv("AIRFLOW__SMTP__SMTP_RETRY_LIMIT", "2")
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send_email_smtp("a@b", "Hello", "text", conn_id=None)
    assert len(calls) == 3
    send_email_smtp("a@b", "Hello", "text", dryrun=True)
    assert len(calls) == 3


def test_addresses_must_be_texts():
    with pytest.raises(TypeError, match="must be strings"):
        get_email_address_list([1])
