"""The smtp, slack and http providers tell of tasks and runs: operators, and notifiers as callbacks."""

import pytest

from tests.compatibility.servers import serving_http, serving_smtp

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS"),  # a server on this machine alone
]
PASSWORD = "hunter22"
TOKEN = "xoxb-correct-horse"
DAGS = """
    from datetime import datetime

    from airflow.providers.http.notifications import HttpNotifier
    from airflow.providers.slack.notifications.slack import SlackNotifier
    from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier
    from airflow.providers.slack.operators.slack import SlackAPIPostOperator
    from airflow.providers.slack.operators.slack_webhook import SlackWebhookOperator
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier
    from airflow.providers.smtp.operators.smtp import EmailOperator
    from airflow.sdk import DAG, task

    told = "{{ dag.dag_id }}.{{ ti.task_id }}"
    mail = {"smtp_conn_id": "post", "from_email": "from@example.com", "to": "to@example.com"}
    all_of_them = [
        HttpNotifier(http_conn_id="here", endpoint="notified", json={"about": told}),
        SlackNotifier(slack_conn_id="slack", channel="#news", text=told),
        SlackWebhookNotifier(slack_webhook_conn_id="hook", text=told),
        SmtpNotifier(subject=f"about {told}", html_content="<b>told</b>", **mail),
    ]
    with DAG(
        "tells", schedule="@once", start_date=datetime(2026, 1, 1),
        on_failure_callback=HttpNotifier(http_conn_id="here", endpoint="run/failed", json={"run": "{{ run_id }}"}),
    ):

        @task(on_failure_callback=all_of_them)
        def fails():
            raise ValueError("no")

        @task(on_success_callback=all_of_them)
        def succeeds():
            pass

        fails(), succeeds()

    with DAG("sends", schedule="@once", start_date=datetime(2026, 1, 1)):
        EmailOperator(
            task_id="mail", subject="{{ run_id }}", html_content="<b>sent</b>", files=["FILE"], conn_id="post",
            from_email="from@example.com", to="to@example.com",
        )
        SlackAPIPostOperator(task_id="post", slack_conn_id="slack", channel="#news", text="{{ run_id }}")
        SlackWebhookOperator(task_id="hook", slack_webhook_conn_id="hook", message="{{ run_id }}")
"""


def test_operators_send_and_notifiers_tell_of_ends(site):
    (site.root / "attached.txt").write_text("attached")
    site.write("tells.py", DAGS.replace("FILE", str(site.root / "attached.txt")))
    with serving_http() as http, serving_smtp("me", PASSWORD) as smtp:
        url = f"http://127.0.0.1:{http.port}"
        site.connect("here", conn_type="http", host=url)
        site.connect("slack", conn_type="slack", password=TOKEN, extra=f'{{"base_url": "{url}/api/"}}')
        site.connect("hook", conn_type="slackwebhook", host=f"{url}/services", password="T0/B0/secret-part")
        site.connect(
            "post", conn_type="smtp", host="127.0.0.1", port=smtp.port, login="me", password=PASSWORD,
            extra='{"disable_ssl": true, "disable_tls": true}',
        )  # fmt: skip
        site.up_until_idle(timeout=120)
        assert [run["state"] for run in site.runs("sends")] == ["success"], site.told("sends")
        assert [run["state"] for run in site.runs("tells")] == ["failed"]
    both = {"tells.fails", "tells.succeeds"}
    run_id = site.runs("sends")[0]["run_id"]
    assert {request.json["about"] for request in http.received("/notified")} == both
    assert [request.json["run"] for request in http.received("/run/failed")] == [run_id]
    posted = http.received("/api/chat.postMessage")
    assert {request.json["text"] for request in posted} == both | {run_id}
    assert {request.headers["Authorization"] for request in posted} == {f"Bearer {TOKEN}"}
    assert {request.json["text"] for request in http.received("/services/T0/B0/secret-part")} == both | {run_id}
    assert {message["subject"] for message in smtp.messages} == {f"about {one}" for one in both} | {run_id}
    (sent,) = [message for message in smtp.messages if message["subject"] == run_id]
    assert [part.get_content() for part in sent.iter_attachments()] == [b"attached"]
    logs = "".join(file.read_text(errors="replace") for file in (site.home / "logs").rglob("*.log"))
    assert [secret for secret in (PASSWORD, TOKEN, "secret-part") if secret in logs] == []
