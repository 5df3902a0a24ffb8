"""Tasks keep values between their tries, and on assets from run to run, as Airflow's DAG files do it."""

import pytest

DATABASES = ("sqlite",)

FILE = """
    from datetime import timedelta

    from airflow.sdk import DAG, NEVER_EXPIRE, Asset, AssetAlias, BaseOperator, ResumableJobMixin, task

    ORDERS, STOCK = Asset("orders", "s3://lake/orders"), Asset("stock")

    class Job(ResumableJobMixin, BaseOperator):
        def execute(self, context):
            return self.execute_resumable(context)

        def submit_job(self, context):
            return f"job of try {context['ti'].try_number}"

        def get_job_status(self, external_id, context):
            return "RUNNING"

        def is_job_active(self, status):
            return status == "RUNNING"

        def is_job_succeeded(self, status):
            return status == "DONE"

        def poll_until_complete(self, external_id, context):
            if context["ti"].try_number == 1:
                raise RuntimeError("the connection broke")

        def get_job_result(self, external_id, context):
            return external_id

    with DAG("stores", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}):

        @task
        def keeps(task_state_store=None, ti=None):
            found = [task_state_store.get(key, "nothing") for key in ("kept", "short", "deleted")]
            if ti.try_number == 1:
                task_state_store.set("kept", {"rows": [1, 2.5, None, True]}, retention=NEVER_EXPIRE)
                task_state_store.set("short", 1, retention=timedelta(0))
                task_state_store.set("deleted", 1)
                task_state_store.delete("deleted")
                raise RuntimeError(f"found {found}")
            task_state_store.clear()
            return [*found, task_state_store.get("kept")]

        @task
        async def mapped(number, task_state_store=None):
            await task_state_store.aset("number", number)
            return await task_state_store.aget("number"), await task_state_store.aget("kept")

        @task(inlets=[ORDERS, AssetAlias("unused")], outlets=[STOCK])
        def counts(asset_state_store=None):
            stores = [asset_state_store[ORDERS], asset_state_store[Asset.ref(name="stock")]]
            for store in stores:
                store.set("runs", store.get("runs", default=0) + 1)
            return [store.get("runs") for store in stores]

        @task(inlets=[ORDERS])
        def reads(asset_state_store=None):
            return asset_state_store.get("runs")

        keeps() >> mapped.expand(number=[1, 2])
        counts() >> reads()
        Job(task_id="job", durable=True)
"""
RETURNED = {"keeps": [{"rows": [1, 2.5, None, True]}, "nothing", "nothing", None], "job": "job of try 1"}


def returned(site, run_id, task_id, map_index=-1):
    found = site.json("tasks", "xcom", "stores", run_id, task_id, "--map-index", str(map_index))
    return next(entry["value"] for entry in found if entry["key"] == "return_value")


def test_values_outlive_tries_and_those_of_assets_outlive_runs(new_site):
    site = new_site()
    site.write("stores.py", FILE)
    with site.up():
        site.wait_for_dag("stores")
        for number, run_id in enumerate(("first", "second"), start=1):
            site.run("dags", "trigger", "stores", "--run-id", run_id, "--wait")
            assert {task_id: returned(site, run_id, task_id) for task_id in RETURNED} == RETURNED
            assert [returned(site, run_id, "mapped", index) for index in (0, 1)] == [[1, None], [2, None]]
            assert returned(site, run_id, "counts") == [number, number]
            assert returned(site, run_id, "reads") == number
    [shown] = site.json("assets", "show", "orders")["state"]
    assert (shown["key"], shown["value"], shown["run_id"], shown["task_id"]) == ("runs", 2, "second", "counts")
    assert "runs" in site.run("assets", "show", "orders").stdout
    log = site.run("tasks", "logs", "stores", "second", "keeps", "--try", "1").stdout
    assert "found ['nothing', 'nothing', 'nothing']" in log, "a run does not see the values of another one"


@pytest.mark.parametrize("backend", ["sqlite"], scope="module")
def test_a_run_in_the_foreground_has_state_stores_of_its_own(new_site):
    site = new_site()
    site.write("stores.py", FILE)
    for _ in range(2):
        ended = site.run("dags", "test", "stores")
        assert "'rows': [1, 2.5, None, True]}, 'nothing', 'nothing', None]" in ended.stderr
        assert "Done. Returned value was: [1, 1]" in ended.stderr


BACKEND = """
    import json, os
    from pathlib import Path
    from airflow.sdk.state import AssetScope, BaseStoreBackend, TaskScope

    class InFiles(BaseStoreBackend):
        def _folder(self, scope):
            of_asset = isinstance(scope, AssetScope)
            return Path(os.environ["VALUES"], scope.name if of_asset else f"{scope.task_id}{scope.map_index}")

        def serialize_task_state_store_to_ref(self, *, value, key, scope):
            path = self._folder(scope) / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
            return str(path)

        def deserialize_task_state_store_from_ref(self, stored):
            return json.loads(Path(stored).read_text())

        def delete(self, scope, key, *, session=None):
            (self._folder(scope) / key).unlink(missing_ok=True)

        def clear(self, scope, *, all_map_indices=False, session=None):
            for path in self._folder(scope).iterdir():
                path.unlink()
"""


def test_a_backend_keeps_the_values_and_the_database_references_to_them(new_site):
    site = new_site()
    site.write("stores.py", FILE)
    site.write("../plugins/own_stores.py", BACKEND)
    values = site.root / "values"
    site.env |= {"VALUES": str(values), "ASYNSCHED_STATE_STORE_BACKEND": "own_stores.InFiles"}
    with site.up():
        site.wait_for_dag("stores")
        site.run("dags", "trigger", "stores", "--run-id", "first", "--wait")
        assert {task_id: returned(site, "first", task_id) for task_id in RETURNED} == RETURNED
        assert returned(site, "first", "reads") == 1
        kept = {str(path.relative_to(values)): path.read_text() for path in values.rglob("*") if path.is_file()}
        assert kept["orders/runs"] == "1"
        assert kept["mapped1/number"] == "2"
        assert not any(path.startswith("keeps") for path in kept), "it was cleared"
        assert str(values / "orders" / "runs") in site.run("assets", "show", "orders").stdout
