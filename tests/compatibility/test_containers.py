"""The docker and cncf-kubernetes providers, without a server: their modules work, templates render, tasks fail."""

import pytest

pytestmark = pytest.mark.timeout(600)
DAGS = """
    from datetime import datetime

    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.providers.docker.operators.docker import DockerOperator
    from airflow.sdk import DAG, task
    from kubernetes.client import models as k8s

    with DAG("pods", schedule="@once", start_date=datetime(2026, 1, 1)):
        pod = KubernetesPodOperator(
            task_id="pod", name="mine", image="busybox:{{ ds }}", cmds=["echo", "{{ dag.dag_id }}"],
            env_vars=[k8s.V1EnvVar("DAY", "{{ ds_nodash }}")], config_file="/nowhere", in_cluster=False,
        )
        container = DockerOperator(
            task_id="container", image="busybox:{{ ds }}", command="echo {{ dag.dag_id }}", docker_url="unix://nowhere",
        )

        @task.docker(image="python:3", docker_url="unix://nowhere")
        def in_docker():
            return 1

        @task.kubernetes(image="python:3", config_file="/nowhere", in_cluster=False)
        def in_pod():
            return 1

        @task.kubernetes_cmd(image="busybox", config_file="/nowhere", in_cluster=False)
        def command():
            return ["echo", "{{ ds }}"]

        @task
        def renders(**context):
            pod.render_template_fields(context)
            pod.dry_run()
            container.render_template_fields(context)
            print("docker runs", container.image, container.command)

        renders(), in_docker(), in_pod(), command()
"""


def test_docker_and_kubernetes_tasks_parse_render_and_say_what_is_missing(site):
    site.write("pods.py", DAGS)
    site.up_until_idle(timeout=120)
    assert site.json("dags", "errors") == []
    states = site.task_states("pods", "latest")
    assert states.pop("renders") == "success", site.log("pods", "renders")
    assert set(states.values()) == {"failed"}, states
    rendered = site.log("pods", "renders")
    assert "docker runs busybox:2026-01-01 echo pods" in rendered
    assert "image: busybox:2026-01-01" in rendered
    assert "20260101" in rendered
    for task_id in ("pod", "in_pod", "command"):
        assert "Invalid kube-config file" in site.log("pods", task_id)
    for task_id in ("container", "in_docker"):
        assert "Error while fetching server API version" in site.log("pods", task_id)


def test_the_list_of_providers_shows_what_their_entry_points_say(site):
    listed = {row["provider"]: row for row in site.json("providers", "list")}
    assert {row["error"] for row in listed.values()} == {""}
    assert listed["http"]["connection_types"] == ["http"]
    assert listed["http"]["hooks"] == ["airflow.providers.http.hooks.http.HttpHook"]
    assert listed["cncf-kubernetes"]["task_decorators"] == ["kubernetes", "kubernetes_cmd"]
    assert listed["slack"]["notifiers"] == [
        "airflow.providers.slack.notifications.slack.SlackNotifier",
        "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier",
    ]
    amazon = listed["amazon"]
    assert any(path.endswith(".SecretsManagerBackend") for path in amazon["secrets_backends"])
    assert any(path.endswith(".BatchJobDetailsLink") for path in amazon["extra_links"])
