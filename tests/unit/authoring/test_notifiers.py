"""Notifiers send mails, posts and requests to real servers, and tell what went wrong without a secret."""

import json
import logging
import traceback

import pytest

from asynsched import (
    DAG,
    AsyncCallback,
    BashOperator,
    Connection,
    Context,
    DagError,
    HttpNotifier,
    SlackWebhookNotifier,
    SmtpNotifier,
)
from asynsched.authoring import masking
from asynsched.authoring.exceptions import AsynschedException, AsynschedNotFoundException
from tests.support.message_servers import certified, serving_http, serving_smtp

PASSWORD = "correct-horse"
TOKEN = "T000/B000/battery-staple"
PLAIN = {"disable_ssl": True, "disable_tls": True}


class Instance:
    task_id = "load"
    log_url = "asynsched tasks logs etl r1 load"


@pytest.fixture
def context() -> Context:
    with DAG("etl") as dag:
        BashOperator(task_id="load", bash_command="")
    error = ValueError("no")
    return Context(dag=dag, run_id="r1", ti=Instance(), reason="ValueError: no", exception=error)


@pytest.fixture
def connect(monkeypatch):
    """Return a function that makes a connection."""

    def make(conn_id: str, **parts) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", Connection(**parts).as_json())

    return make


@pytest.fixture
def http():
    with serving_http() as server:
        yield server


@pytest.fixture
def smtp():
    with serving_smtp(PASSWORD) as server:
        yield server


def test_a_mail_has_the_rendered_texts_and_reaches_all_receivers(context, connect, smtp):
    connect("post", conn_type="smtp", host="127.0.0.1", port=smtp.port, login="me", password=PASSWORD, extra=PLAIN)
    SmtpNotifier(
        "a@example.com; b@example.com", "me@example.com", "{{ dag.dag_id }}\nhas failed", "<b>{{ ti.task_id }} ü</b>",
        cc=["c@example.com"], bcc="{{ 'd' }}@example.com", smtp_conn_id="post",
    )(context)  # fmt: skip
    [mail] = smtp.messages
    assert (mail["From"], mail["Subject"]) == ("me@example.com", "etl has failed")
    assert (mail["To"], mail["Cc"], mail["Bcc"]) == ("a@example.com, b@example.com", "c@example.com", None)
    assert smtp.receivers == [f"{name}@example.com" for name in "abcd"]
    assert mail.get_body(("html",)).get_content().strip() == "<b>load ü</b>"
    assert mail.get_body(("plain",)).get_content().strip() == "DAG etl, task load, run r1: ValueError: no"


def test_a_mail_says_what_has_failed_without_any_text_of_its_author(context, smtp):
    del context["exception"]
    arguments = {"host": "127.0.0.1", "port": smtp.port, **PLAIN}
    SmtpNotifier("a@example.com", "me@example.com", **arguments)(context)
    [mail] = smtp.messages
    assert (mail["Subject"], mail.get_content_type()) == ("DAG etl, run r1", "text/plain")


@pytest.mark.parametrize("from_start", [True, False])
def test_mails_are_encrypted_unless_told_otherwise_and_only_to_trusted_servers(
    context, from_start, tmp_path, monkeypatch
):
    tls, certificate = certified(tmp_path)
    with serving_smtp(PASSWORD, tls=tls, from_start=from_start) as smtp:
        arguments = {"host": "127.0.0.1", "port": smtp.port, "login": "me", "password": PASSWORD}
        notifier = SmtpNotifier("a@example.com", "me@example.com", disable_ssl=not from_start, **arguments)
        with pytest.raises(AsynschedException, match="certificate verify failed"):
            notifier(context)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        notifier(context)
        assert smtp.encrypted == [True]
    with serving_smtp(PASSWORD) as plain:
        arguments["port"] = plain.port
        with pytest.raises(AsynschedException):
            SmtpNotifier("a@example.com", "me@example.com", disable_ssl=True, **arguments)(context)
        assert plain.messages == []


def test_one_refused_receiver_is_logged_and_the_others_get_the_mail(context, smtp, caplog):
    smtp.refused = {"b@example.com"}
    arguments = {"host": "127.0.0.1", "port": smtp.port, **PLAIN}
    SmtpNotifier(["a@example.com", "b@example.com"], "me@example.com", **arguments)(context)
    assert smtp.receivers == ["a@example.com"]
    assert "refuses these receivers: b@example.com" in caplog.text


def test_slack_gets_the_text_and_the_blocks_at_the_webhook_of_the_connection(context, connect, http):
    connect("hook", conn_type="slackwebhook", host=f"{http.url}/services", password=TOKEN)
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "*{{ ti.task_id }}*"}}]
    SlackWebhookNotifier(slack_webhook_conn_id="hook", blocks=blocks)(context)
    SlackWebhookNotifier(url=f"{http.url}/services/{TOKEN}", text="{{ run_id }}")(context)
    first, second = http.requests
    assert {request.path for request in http.requests} == {f"/services/{TOKEN}"}
    assert first.json == {
        "text": "DAG etl, task load, run r1: ValueError: no",
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "*load*"}}],
    }
    assert second.json == {"text": "r1"}


def test_an_http_request_has_the_login_and_headers_of_the_connection(context, connect, http):
    connect(
        "here", conn_type="http", host="127.0.0.1", port=http.port, login="me", password=PASSWORD,
        extra={"X-Team": "data"},
    )  # fmt: skip
    HttpNotifier(http_conn_id="here", endpoint="/events/{{ dag.dag_id }}", headers={"X-Api-Key": "key-of-us"})(context)
    HttpNotifier(url=f"{http.url}/plain?a=1", method="put", data="{{ run_id }} ü")(context)
    AsyncCallback(HttpNotifier, {"url": http.url, "json": {"n": 1, "run": ["{{ run_id }}"]}})(context)
    first, second, third = http.requests
    assert (first.method, first.path) == ("POST", "/events/etl")
    assert first.json == {"dag_id": "etl", "run_id": "r1", "text": "DAG etl, task load, run r1: ValueError: no"}
    assert first.headers["Authorization"].startswith("Basic ")
    assert (first.headers["X-Team"], first.headers["X-Api-Key"]) == ("data", "key-of-us")
    assert (second.method, second.path, second.body) == ("PUT", "/plain?a=1", "r1 ü")
    assert third.json == {"n": 1, "run": ["r1"]}


def refused_by_slack(http, connect):
    http.status, http.answer = 404, b"no_service\n"
    return SlackWebhookNotifier(url=f"{http.url}/services/{TOKEN}"), "answers 404 Not Found: no_service"


def redirected(http, connect):
    http.status, http.location = 302, f"{http.url}/elsewhere"
    return HttpNotifier(url=http.url), "answers 302"


def stalled(http, connect):
    http.stalls = True
    return HttpNotifier(url=f"{http.url}/?key={TOKEN}", timeout=0.05), "has not answered within 0.05 s"


def nobody_there(http, connect):
    return SlackWebhookNotifier(url=f"http://127.0.0.1:1/{TOKEN}"), "127.0.0.1:1 cannot be reached: .*refused"


def a_file(http, connect):
    return HttpNotifier(url=f"file:///etc/{TOKEN}"), "its address must begin with http:// or https://"


def a_bad_address(http, connect):
    return SlackWebhookNotifier(url=f"{http.url}/a b/{TOKEN}"), "failed: InvalidURL"


def a_bad_header(http, connect):
    return HttpNotifier(url=http.url, headers={"Token": f"{TOKEN}\n\nx"}), "failed: ValueError"


def a_wrong_password(http, connect):
    return SmtpNotifier("a@example.com", login="me", password="wrong-horse"), "answers 535 wrong password"


def no_token(http, connect):
    connect("empty", conn_type="slackwebhook")
    return SlackWebhookNotifier(slack_webhook_conn_id="empty"), "the connection 'empty' has no password"


def no_host(http, connect):
    connect("empty", conn_type="smtp")
    return SmtpNotifier("a@example.com", "me@example.com", smtp_conn_id="empty"), "the connection 'empty' has no host"


def no_sender(http, connect):
    return SmtpNotifier("a@example.com", host="127.0.0.1", port=1, **PLAIN), "a mail needs a sender"


def no_receiver(http, connect):
    return SmtpNotifier([], "me@example.com", host="127.0.0.1", port=1, **PLAIN), "a mail needs a receiver"


@pytest.mark.parametrize(
    "make",
    [
        refused_by_slack, redirected, stalled, nobody_there, a_file, a_bad_address, a_bad_header, a_wrong_password,
        no_token, no_host, no_sender, no_receiver,
    ],
)  # fmt: skip
def test_a_failure_names_the_notifier_and_the_server_and_no_secret(make, context, connect, http, smtp, caplog):
    caplog.set_level(logging.DEBUG)
    notifier, words = make(http, connect)
    if make is a_wrong_password:
        notifier.host, notifier.port, notifier.disable_ssl, notifier.disable_tls = "127.0.0.1", smtp.port, True, True
    with pytest.raises(AsynschedException, match=words) as raised:
        notifier(context)
    told = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert str(raised.value).startswith(f"{type(notifier).__name__}: ")
    assert "battery-staple" not in masking.redact(told)
    assert "wrong-horse" not in masking.redact(told)
    if make is not a_wrong_password:
        assert "battery-staple" not in told
    assert not [request for request in http.requests if request.path == "/elsewhere"]


def test_secrets_are_masked_in_the_log_of_the_callback(context, connect, http):
    connect("hook", conn_type="slackwebhook", host=http.url, password=TOKEN)
    SlackWebhookNotifier(slack_webhook_conn_id="hook")(context)
    HttpNotifier(url=f"{http.url}/x?key=very-secret", headers={"X-Auth-Token": "quite-secret"})(context)
    shown = masking.redact(json.dumps([f"{http.url}/{TOKEN}", TOKEN, f"{http.url}/x?key=very-secret", "quite-secret"]))
    assert [word for word in ("battery-staple", "very-secret", "quite-secret") if word in shown] == []


def test_an_unknown_connection_and_a_senseless_timeout_are_told(context, monkeypatch):
    with pytest.raises(DagError, match="SmtpNotifier: timeout must be a positive number"):
        SmtpNotifier("a@example.com", timeout=0)
    monkeypatch.setattr("asynsched.authoring.connection.ask_or_none", lambda *_, **__: None)
    with pytest.raises(AsynschedNotFoundException, match="there is no connection 'nowhere'"):
        HttpNotifier(http_conn_id="nowhere")(context)
