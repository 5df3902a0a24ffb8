"""The amazon provider against moto's server: S3, SQS, Lambda, their triggers, and a secrets backend."""

import io
import json
import zipfile

import boto3
import pytest
from moto.server import ThreadedMotoServer

# They warn of what their own next versions change.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
KEY = "hunter22hunter22"
ACCOUNT = {"aws_access_key_id": "me", "aws_secret_access_key": KEY, "region_name": "us-east-1"}
DAGS = """
    from datetime import datetime

    from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    from airflow.providers.amazon.aws.operators.lambda_function import LambdaCreateFunctionOperator
    from airflow.providers.amazon.aws.operators.s3 import (
        S3CopyObjectOperator, S3CreateBucketOperator, S3CreateObjectOperator, S3DeleteObjectsOperator, S3ListOperator,
    )
    from airflow.providers.amazon.aws.operators.sqs import SqsPublishOperator
    from airflow.providers.amazon.aws.sensors.lambda_function import LambdaFunctionStateSensor
    from airflow.providers.amazon.aws.sensors.s3 import S3KeySensor
    from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
    from airflow.sdk import DAG, chain, task

    with DAG("s3", schedule="@once", start_date=datetime(2026, 1, 1), default_args={"aws_conn_id": "cloud"}):
        bucket = S3CreateBucketOperator(task_id="bucket", bucket_name="shop")
        put = S3CreateObjectOperator(
            task_id="put", s3_bucket="shop", s3_key="{{ dag.dag_id }}/one.txt", data="one", encrypt=False
        )
        copy = S3CopyObjectOperator(
            task_id="copy", source_bucket_key="s3://shop/s3/one.txt", dest_bucket_key="s3://shop/s3/two.txt"
        )
        keys = S3ListOperator(task_id="keys", bucket="shop", prefix="s3/")
        sensor = S3KeySensor(task_id="sensor", bucket_key="s3://shop/s3/*.txt", wildcard_match=True, poke_interval=0.1)
        waits = S3KeySensor(
            task_id="waits", bucket_name="shop", bucket_key=["s3/one.txt", "s3/two.txt"], deferrable=True,
            poke_interval=1,
        )

        @task
        def hooks(found):
            assert found == ["s3/one.txt", "s3/two.txt"], found
            hook = S3Hook(aws_conn_id="cloud")
            hook.load_string("three", "three", "shop")
            print("the key is", hook.conn_config.aws_secret_access_key)
            return hook.read_key("s3/two.txt", "shop")

        delete = S3DeleteObjectsOperator(task_id="delete", bucket="shop", prefix="s3/")
        chain(bucket, put, copy, keys, [sensor, waits], hooks(keys.output), delete)

    with DAG("sqs", schedule="@once", start_date=datetime(2026, 1, 1), default_args={"aws_conn_id": "cloud"}):
        publish = SqsPublishOperator(task_id="publish", sqs_queue="QUEUE", message_content="{{ dag.dag_id }} sent")
        receive = SqsSensor(task_id="receive", sqs_queue="QUEUE", poke_interval=0.1)
        again = SqsPublishOperator(task_id="again", sqs_queue="QUEUE", message_content="again")
        waits = SqsSensor(task_id="waits", sqs_queue="QUEUE", deferrable=True, poke_interval=1)

        @task
        def pulls(ti=None):
            return [ti.xcom_pull(task_ids=name, key="messages") for name in ("receive", "waits")]

        @task
        def check(found):
            texts = [message["Body"] for messages in found for message in messages]
            assert texts[1:] == ["again"] and texts[0].startswith("sqs "), texts

        pulled = pulls()
        chain(publish, receive, again, waits, pulled)
        check(pulled)

    with DAG("lambda", schedule="@once", start_date=datetime(2026, 1, 1), default_args={"aws_conn_id": "cloud"}):
        make = LambdaCreateFunctionOperator(
            task_id="make", function_name="counts", runtime="python3.12", role="ROLE", handler="main.handler",
            code={"S3Bucket": "code", "S3Key": "code.zip"}, deferrable=True, waiter_delay=1,
        )
        make >> LambdaFunctionStateSensor(task_id="active", function_name="counts", poke_interval=0.1)
"""
SECRETS = """
    from datetime import datetime

    from airflow.sdk import DAG, BaseHook, Variable, task

    with DAG("secrets", schedule="@once", start_date=datetime(2026, 1, 1)):

        @task
        def reads():
            found = [Variable.get(name) for name in ("colour", "shape", "size")]
            assert found == ["of the backend", "of the environment", "stored"], found
            shop = BaseHook.get_connection("shop")
            print("shop has", shop.host, shop.password)

        reads()
"""


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def client(service: str, endpoint: str):
    return boto3.client(service, endpoint_url=endpoint, **ACCOUNT)


def test_s3_sqs_and_lambda_tasks_hooks_and_their_triggers_run(site, endpoint):
    queue = client("sqs", endpoint).create_queue(QueueName="shop")["QueueUrl"]
    role = client("iam", endpoint).create_role(RoleName="counts", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", "def handler(event, context): return 1")
    s3 = client("s3", endpoint)
    s3.create_bucket(Bucket="code")
    s3.put_object(Bucket="code", Key="code.zip", Body=packed.getvalue())
    extra = json.dumps({"region_name": ACCOUNT["region_name"], "endpoint_url": endpoint})
    site.connect("cloud", conn_type="aws", login="me", password=KEY, extra=extra)
    site.write("uses_aws.py", DAGS.replace("QUEUE", queue).replace("ROLE", role))
    site.succeed("s3", "sqs", "lambda")
    assert [found["Key"] for found in s3.list_objects(Bucket="shop")["Contents"]] == ["three"]
    assert client("lambda", endpoint).get_function(FunctionName="counts")["Configuration"]["State"] == "Active"
    assert "the key is ***" in site.log("s3", "hooks")
    assert KEY not in "".join(file.read_text(errors="replace") for file in (site.home / "logs").rglob("*.log"))


def put_parameters(endpoint, secrets):
    ssm = client("ssm", endpoint)
    for name, value in secrets.items():
        ssm.put_parameter(Name=f"/airflow/{name}", Value=value, Type="SecureString")


def put_secrets(endpoint, secrets):
    manager = client("secretsmanager", endpoint)
    for name, value in secrets.items():
        manager.create_secret(Name=f"airflow/{name}", SecretString=value)


@pytest.mark.parametrize(
    ("backend", "put"),
    [
        ("systems_manager.SystemsManagerParameterStoreBackend", put_parameters),
        ("secrets_manager.SecretsManagerBackend", put_secrets),
    ],
    ids=["parameter store", "secrets manager"],
)
def test_a_store_of_secrets_is_asked_before_environment_and_database(site, endpoint, backend, put):
    put(endpoint, {"variables/colour": "of the backend", "connections/shop": "mysql://me:correct-horse@far"})
    site.env["AIRFLOW__SECRETS__BACKEND"] = f"airflow.providers.amazon.aws.secrets.{backend}"
    site.env["AIRFLOW__SECRETS__BACKEND_KWARGS"] = json.dumps({**ACCOUNT, "endpoint_url": endpoint})
    site.env |= {"AIRFLOW_VAR_COLOUR": "of the environment", "AIRFLOW_VAR_SHAPE": "of the environment"}
    for name in ("colour", "shape", "size"):
        site.run("variables", "set", name, "stored")
    site.write("secrets.py", SECRETS)
    site.succeed("secrets")
    assert "shop has far ***" in site.log("secrets", "reads")
