"""Notifiers tell real servers of ends: in the process of a callback, with stored connections, and without secrets."""

import json

from tests.support.message_servers import serving_http, serving_smtp
from tests.support.up import Site

PASSWORD = "correct-horse"
TOKEN = "T000/B000/battery-staple"
DAGS = """
    from asynsched import DAG, HttpNotifier, SlackWebhookNotifier, SmtpNotifier, task

    tells = [
        SmtpNotifier("team@example.com", "me@example.com", smtp_conn_id="post"),
        SlackWebhookNotifier(slack_webhook_conn_id="hook", text="{{ ti.task_id }} of {{ dag.dag_id }}"),
        HttpNotifier(url="{{ var.value.secret_address }}", json={"reason": "{{ reason }}"}),
        HttpNotifier(url="file://{{ var.value.secret_address }}"),
    ]
    with DAG("tells", schedule="@once", on_failure_callback=SlackWebhookNotifier(slack_webhook_conn_id="hook")):

        @task(on_failure_callback=tells)
        def fails():
            raise ValueError("no")

        fails()
"""


MAILS = """
    from datetime import timedelta

    from airflow.sdk import DAG, task
    from airflow.providers.standard.operators.empty import EmptyOperator

    with DAG("mails", schedule="@once", default_args={"email": ["team@example.com", "boss@example.com"]}):

        @task(retries=1, retry_delay=timedelta(0))
        def fails():
            raise ValueError("a {{ brace }}\\nand a < b")

        @task(email="team@example.com", email_on_failure=False)
        def is_silent():
            raise ValueError("no")

        @task
        def fails_mapped(n):
            raise ValueError(f"for {n}")

        EmptyOperator(task_id="does_nothing") >> [fails(), is_silent(), fails_mapped.expand(n=[7])]
"""


def test_tasks_with_an_email_mail_each_retry_and_failure(tmp_path):
    site = Site(tmp_path, env={"AIRFLOW__EMAIL__DEFAULT_EMAIL_ON_RETRY": "True"})
    site.write("mails.py", MAILS)
    with serving_smtp(PASSWORD) as smtp:
        plain = json.dumps({"disable_ssl": True, "disable_tls": True, "from_email": "etl@example.com"})
        post = ("--conn-host", "127.0.0.1", "--conn-port", str(smtp.port), "--conn-login", "me")
        site.run("connections", "add", "smtp_default", "--conn-type", "smtp", *post, "--conn-password", PASSWORD,
                 "--conn-extra", plain)  # fmt: skip
        site.up_until_idle()
        assert {(mail["From"], mail["To"]) for mail in smtp.messages} == {
            ("etl@example.com", "team@example.com, boss@example.com")
        }
        bodies = sorted(mail.get_body(("html",)).get_content() for mail in smtp.messages)
        assert [body.partition("<br>")[0] for body in bodies] == ["Try 1 of 1", "Try 1 of 2", "Try 2 of 2"]
        assert "for 7" in bodies[0]
        assert "a {{ brace }}<br>and a &lt; b" in bodies[1]
        assert all("Airflow alert: " in mail["Subject"] for mail in smtp.messages)
        smtp.messages.clear()
        site.env["AIRFLOW__EMAIL__DEFAULT_EMAIL_ON_RETRY"] = "False"
        site.run("dags", "test", "mails", code=1)
        assert len(smtp.messages) == 2, "neither retries nor tasks that say so mail"


def test_a_mail_that_cannot_be_sent_says_what_to_configure_and_changes_no_task(tmp_path):
    with serving_smtp(PASSWORD) as smtp:
        closed = smtp.port
    site = Site(tmp_path, env={"AIRFLOW__SMTP__SMTP_HOST": "127.0.0.1", "AIRFLOW__SMTP__SMTP_PORT": str(closed)})
    site.write("mails.py", MAILS)
    ended = site.up_until_idle()
    [failed, *_] = [line for line in ended.stderr.splitlines() if "callback.failed" in line]
    assert f"127.0.0.1:{closed}" in failed
    assert "store the connection smtp_default, or set [smtp] smtp_host" in failed
    assert site.task_states("mails", "latest")["fails"] == "failed"


def test_a_failed_task_and_run_are_told_by_mail_slack_and_http(tmp_path):
    site = Site(tmp_path, env={"ASYNSCHED_WEB__BASE_URL": "https://shop.example/page/"})
    site.write("tells.py", DAGS)
    with serving_http() as http, serving_smtp(PASSWORD) as smtp:
        plain = json.dumps({"disable_ssl": True, "disable_tls": True})
        post = ("--conn-host", "127.0.0.1", "--conn-port", str(smtp.port), "--conn-login", "me")
        site.run("connections", "add", "post", "--conn-type", "smtp", *post, "--conn-password", PASSWORD,
                 "--conn-extra", plain)  # fmt: skip
        hook = ("--conn-type", "slackwebhook", "--conn-host", f"{http.url}/services")
        site.run("connections", "add", "hook", *hook, "--conn-password", TOKEN)
        site.run("variables", "set", "secret_address", f"{http.url}/key-of-us")
        site.up_until_idle()
    [run] = site.json("runs", "list")
    [mail] = smtp.messages
    assert (mail["To"], mail["Subject"]) == ("team@example.com", f"DAG tells, task fails, run {run['run_id']}")
    of_run = f"https://shop.example/page/dags/tells/runs/{run['run_id']}"
    first, address = mail.get_content().strip().splitlines()
    assert first == f"DAG tells, task fails, run {run['run_id']}: ValueError: no"
    assert address == f"{of_run}/tasks/fails?map_index=-1&try_number=1"
    told = {request.path: request.json for request in http.requests}
    texts = {request.json["text"] for request in http.requests if request.path == f"/services/{TOKEN}"}
    assert {text for text in texts if text.startswith("fails of")} == {"fails of tells"}
    [of_dag] = texts - {"fails of tells"}
    assert of_dag.startswith("DAG tells, run")
    assert of_dag.endswith(f"\n{of_run}")
    assert told["/key-of-us"] == {"reason": "ValueError: no"}
    logs = "".join(path.read_text(errors="replace") for path in (site.home / "logs").rglob("*") if path.is_file())
    assert "HttpNotifier: its address must begin with http:// or https://" in logs, "one that fails stops no other"
    secrets = (PASSWORD, "battery-staple", "key-of-us")
    assert [secret for secret in secrets if secret in logs + site.story()] == []


CALLBACKS = """
    from pathlib import Path

    from airflow.sdk import DAG, BaseNotifier, task
    from airflow.providers.standard.operators.bash import BashOperator

    HERE = Path(__file__).parents[1]

    def say(text):
        with (HERE / "said").open("a") as file:
            file.write(f"{text}\\n")

    class Says(BaseNotifier):
        template_fields = ("text",)
        template_ext = (".txt",)

        def __init__(self, text):
            super().__init__()
            self.text = text

        def notify(self, context):
            say(self.text.strip())

    def tell(context):
        command, ti = context["task"].bash_command, context["ti"]
        say(f"{ti.task_id} {command} {ti.rendered_map_index} {type(context['exception']).__name__}")

    def of_run(context):
        ti = context["ti"]
        say(f"run {context['dag_run'].state}: {ti.task_id} {ti.map_index} {ti.state} try {ti.try_number}")

    with DAG(
        "called", schedule="@once", template_searchpath=[str(HERE)],
        user_defined_macros={"team": "sales"}, user_defined_filters={"loud": str.upper}, on_failure_callback=of_run,
    ):
        notifiers = [Says("{{ team }} {{ 'now' | loud }}"), Says("note.txt")]
        tells = [tell, *notifiers]
        good = BashOperator(task_id="good", bash_command="echo {{ dag.dag_id }}", on_success_callback=tells)
        bad = BashOperator.partial(
            task_id="bad", on_failure_callback=tell, map_index_template="{{ task.bash_command }}"
        ).expand(bash_command=["exit {{ 1 + 1 }}"])
        undefined = BashOperator(task_id="undefined", bash_command="{{ nothing.at.all }}", on_failure_callback=tell)
        [good, undefined] >> bad >> BashOperator(task_id="zz_last", bash_command="true")
        bad.trigger_rule = "all_done"
"""


def test_callbacks_get_the_rendered_task_and_notifiers_the_templates_of_the_dag(tmp_path):
    site = Site(tmp_path)
    site.write("called.py", CALLBACKS)
    (tmp_path / "note.txt").write_text("read from {{ dag.dag_id }}")
    site.up_until_idle()
    assert sorted((tmp_path / "said").read_text().splitlines()) == [
        "bad exit 2 exit 2 AsynschedException",
        "good echo called None NoneType",
        "read from called",
        "run failed: bad 0 failed try 1",
        "sales NOW",
        "undefined {{ nothing.at.all }} None AsynschedException",
    ]
    assert "cannot be rendered for the callbacks" in site.run("tasks", "logs", "called", "latest", "undefined").stdout
