"""The ssh and sftp providers: operators, sensors, hooks, and their triggers."""

import pytest

from tests.compatibility.servers import serving_ssh

pytestmark = pytest.mark.timeout(600)
PASSWORD = "hunter22"
DAGS = """
    import base64
    from datetime import datetime

    from airflow.exceptions import AirflowSkipException
    from airflow.providers.sftp.hooks.sftp import SFTPHook
    from airflow.providers.sftp.operators.sftp import SFTPOperator
    from airflow.providers.sftp.sensors.sftp import SFTPSensor
    from airflow.providers.ssh.hooks.ssh import SSHHook
    from airflow.providers.ssh.operators.ssh import SSHOperator
    from airflow.sdk import DAG, chain, task

    with DAG("ssh", schedule="@once", start_date=datetime(2026, 1, 1), default_args={"ssh_conn_id": "there"}):
        command = SSHOperator(task_id="command", command="echo {{ dag.dag_id }} $((6 * 7))")
        skips = SSHOperator(task_id="skips", command="exit 99", skip_on_exit_code=99)
        sends = SFTPOperator(
            task_id="sends", local_filepath="ROOT/sent", remote_filepath="/in/{{ ds_nodash }}/sent",
            create_intermediate_dirs=True,
        )
        deferred = SFTPOperator(
            task_id="deferred", local_filepath="ROOT/sent", remote_filepath="/deferred", deferrable=True,
        )
        gets = SFTPOperator(task_id="gets", local_filepath="ROOT/got", remote_filepath="/deferred", operation="get")
        sensor = SFTPSensor(
            task_id="sensor", path="/", file_pattern="def*", sftp_conn_id="files", poke_interval=0.1
        )
        waits = SFTPSensor(
            task_id="waits", path="/", file_pattern="def*", sftp_conn_id="files", poke_interval=1, deferrable=True
        )

        @task.sftp_sensor(sftp_conn_id="files", path="/", file_pattern="def*", poke_interval=0.1)
        def decorated(files_found=None):
            return files_found

        @task
        def hooks(output):
            assert base64.b64decode(output) == b"ssh 42\\n", output
            with SSHHook("there").get_conn() as client:
                _, out, _ = client.exec_command("cat in/*/sent")
                assert out.read() == b"content"
            assert "deferred" in SFTPHook("files").list_directory("/")

        hooked = hooks(command.output)
        sends >> deferred >> [gets, hooked]
        sends >> [sensor, waits, decorated()]
"""


def test_ssh_and_sftp_tasks_hooks_and_their_triggers_run(site):
    remote = site.root / "remote"
    remote.mkdir()
    (site.root / "sent").write_text("content")
    site.write("uses_ssh.py", DAGS.replace("ROOT", str(site.root)))
    with serving_ssh("me", PASSWORD, remote) as port:
        for conn_id, conn_type in (("there", "ssh"), ("files", "sftp")):
            site.connect(
                conn_id, conn_type=conn_type, host="127.0.0.1", port=port, login="me", password=PASSWORD,
                extra='{"no_host_key_check": true}',
            )  # fmt: skip
        site.succeed("ssh")
    states = site.task_states("ssh", "latest")
    assert states.pop("skips") == "skipped"
    assert set(states.values()) == {"success"}, states
    assert (site.root / "got").read_text() == "content"
    assert PASSWORD not in "".join(file.read_text(errors="replace") for file in (site.home / "logs").rglob("*.log"))
