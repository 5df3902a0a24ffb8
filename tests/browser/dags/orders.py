"""DAGs with groups, mapped tasks, retries, params of every kind, and a question."""

import time
from datetime import datetime, timedelta

from asynsched import DAG, ApprovalOperator, Asset, Param, TaskGroup, task

with DAG(
    "orders",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=False,
    tags=["sales"],
    params={
        "region": Param("eu", enum=["eu", "us"], description="Where from."),
        "day": Param("2026-01-31", type="string", format="date", title="Day"),
        "rows": Param(10, type="integer", minimum=1, maximum=50),
        "dry": Param(False, type="boolean"),
        "names": Param(["a"], type="array", items={"type": "string"}),
        "extra": Param({"a": 1}, type="object"),
        "note": Param(None, type=["null", "string"]),
    },
):
    with TaskGroup("stage"):

        @task(outlets=[Asset("orders", uri="s3://shop/orders")])
        def extract(n):
            return {"n": n}

        staged = extract.expand(n=[1, 2, 3])

    @task(retries=1, retry_delay=timedelta(0))
    def check():
        print("looking")
        raise ValueError("the table is locked")

    @task
    def publish():
        pass

    [staged, check()] >> publish()


with DAG("release", schedule=None, tags=["kept"]):
    ApprovalOperator(
        task_id="approve",
        subject="Release the figures?",
        body="They are **final**.",
        params={"why": Param("", type="string")},
    )


with DAG("talks", schedule=None, tags=["kept"]):

    @task
    def long():
        for number in range(20_000):
            print(f"line {number} of many")

    @task
    def follow(*, params):
        import pathlib

        print("the first line", flush=True)
        while not pathlib.Path(params["until"]).exists():
            time.sleep(0.05)
        print("the last line", flush=True)

    long()
    follow()
