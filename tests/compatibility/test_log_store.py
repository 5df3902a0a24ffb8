"""Logs in S3, by s3fs, against moto's server."""

import json
import shutil

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.up import Site

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
SECRET = "hunter22hunter22"
FAILS = """
    from asynsched import DAG, task

    with DAG("fails", schedule="@once", on_failure_callback=lambda context: print("called back")):

        @task
        def fails():
            print("x" * 3_000_000)
            print("the end")
            raise ValueError("no")

        fails()
"""


@pytest.fixture
def endpoint():
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(endpoint):
    account = {"aws_access_key_id": "me", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **account)


@pytest.fixture
def site(tmp_path, endpoint):
    made = Site(tmp_path)
    options = {"key": "me", "secret": SECRET, "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    made.env |= {
        "ASYNSCHED_LOG__STORE": "s3://logs/of/tests",
        "ASYNSCHED_LOG__STORE_OPTIONS": json.dumps(options),
    }
    made.write("fails.py", FAILS)
    yield made
    made.end_everything()


def test_logs_are_stored_read_by_ranges_and_removed_in_s3(site, cloud):
    refused = site.run("check", code=1)
    assert "log.store: s3://logs/of/tests: cannot write, read and remove an object" in refused.stdout
    cloud.create_bucket(Bucket="logs")
    assert "s3://logs/of/tests can be written and read" in site.run("check", code=None).stdout

    started = site.up_until_idle()
    found = {item["Key"]: item["Size"] for item in cloud.list_objects_v2(Bucket="logs")["Contents"]}
    [run_id] = [run["run_id"] for run in site.runs("fails")]
    folder = f"of/tests/dag_id=fails/run_id={run_id}"
    assert set(found) == {f"{folder}/task_id=fails/attempt=1.log", f"{folder}/on_failure.log"}
    shutil.rmtree(site.home / "logs" / f"dag_id=fails/run_id={run_id}")
    shown = site.run("tasks", "logs", "fails", "latest", "fails").stdout
    assert ("x" * 3_000_000 in shown, "the end" in shown) == (True, True)
    assert len(shown.encode()) == found[f"{folder}/task_id=fails/attempt=1.log"]

    site.run("runs", "delete", "fails", run_id, "--yes")
    assert "Contents" not in cloud.list_objects_v2(Bucket="logs")
    told = [refused.stdout, started.stdout, started.stderr, site.run("config", "show").stdout, site.story()]
    assert SECRET not in "".join(told)
