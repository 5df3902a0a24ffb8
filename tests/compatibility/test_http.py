"""The http provider: operator, sensor, hook, trigger."""

import pytest

from tests.compatibility.servers import serving_http

pytestmark = pytest.mark.timeout(600)
PASSWORD = "hunter22"
DAGS = """
    import base64
    from datetime import datetime

    from airflow.providers.http.hooks.http import HttpHook
    from airflow.providers.http.operators.http import HttpOperator
    from airflow.providers.http.sensors.http import HttpSensor
    from airflow.sdk import DAG, BaseHook, task

    with DAG("http", schedule="@once", start_date=datetime(2026, 1, 1), default_args={"http_conn_id": "here"}):
        plain = HttpOperator(
            task_id="plain", method="POST", endpoint="plain/{{ dag.dag_id }}", data="{{ run_id }}", log_response=True,
            response_check=lambda response: response.text == "hello",
            response_filter=lambda response: response.text + "!",
        )
        deferred = HttpOperator(task_id="deferred", method="GET", endpoint="deferred", deferrable=True)
        sensor = HttpSensor(
            task_id="sensor", endpoint="busy/sensor", poke_interval=0.1, response_error_codes_allowlist=["503"]
        )
        waits = HttpSensor(
            task_id="waits", endpoint="busy/waits", poke_interval=0.1, deferrable=True,
            response_error_codes_allowlist=["503"], extra_options={},
        )

        @task
        def hooks(answers):
            hook = BaseHook.get_hook("here")
            assert isinstance(hook, HttpHook), hook
            text = HttpHook("GET", "here").run("hooked", {"q": "1"}, headers={"X-Mine": "yes"}).text
            print("the password is", BaseHook.get_connection("here").password)
            return [*answers, text]

        @task
        def has(found):
            assert found == ["hello!", "hello", "hello"], found

        has(hooks([plain.output, deferred.output])) << [sensor, waits]
"""


def test_http_operators_sensors_hooks_and_their_triggers_run(site):
    site.write("uses_http.py", DAGS)
    with serving_http() as server:
        extra = '{"X-Secret-Token": "correct-horse"}'
        site.connect(
            "here", conn_type="http", host="127.0.0.1", port=server.port, login="me", password=PASSWORD, extra=extra
        )
        site.succeed("http")
    (plain,) = server.received("/plain/http")
    assert (plain.method, plain.body) == ("POST", site.runs("http")[0]["run_id"])
    (hooked,) = server.received("/hooked")
    assert (hooked.headers["X-Mine"], hooked.headers["X-Secret-Token"]) == ("yes", "correct-horse")
    assert hooked.headers["Authorization"] == "Basic bWU6aHVudGVyMjI="
    assert len(server.received("/busy/sensor")) == len(server.received("/busy/waits")) == 2
    assert "the password is ***" in site.log("http", "hooks")
    logs = "".join(file.read_text(errors="replace") for file in (site.home / "logs").rglob("*.log"))
    assert PASSWORD not in logs
    assert "correct-horse" not in logs
