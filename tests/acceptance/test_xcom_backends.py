"""XComs that a class of the user's keeps in files, and paths of object storages in tasks and templates."""

import json
from textwrap import dedent

import pytest

DATABASES = ("postgresql",)

BACKEND = """
    import os, uuid
    from airflow.sdk import BaseXCom, ObjectStoragePath
    from airflow.utils.json import XComDecoder, XComEncoder
    import json

    class InFiles(BaseXCom):
        @staticmethod
        def serialize_value(value, *, key=None, task_id=None, dag_id=None, run_id=None, map_index=None):
            folder = ObjectStoragePath(os.environ["XCOMS"]) / dag_id / task_id
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{key}-{map_index}-{uuid.uuid4()}.json.gz"
            with path.open("wb", compression="gzip") as file:
                file.write(json.dumps(value, cls=XComEncoder).encode())
            return BaseXCom.serialize_value(str(path))

        @staticmethod
        def deserialize_value(result):
            with ObjectStoragePath(result.value).open("rb", compression="infer") as file:
                return json.loads(file.read(), cls=XComDecoder)

        @classmethod
        def purge(cls, xcom, *args):
            ObjectStoragePath(xcom.value).unlink()
"""
USES = """
    from datetime import date
    from airflow.sdk import DAG, XComArg, get_current_context, task
    from airflow.sdk.execution_time.xcom import XCom

    with DAG("uses", schedule=None):

        @task
        def makes():
            get_current_context()["ti"].xcom_push("more", {1, 2})
            return [date(2026, 1, day) for day in (1, 2, 3)]

        @task
        def doubles(day):
            return (day, day)

        @task
        def gathers(pairs, templated):
            ti = get_current_context()["ti"]
            assert list(pairs) == [(date(2026, 1, day),) * 2 for day in (1, 2, 3)], pairs
            assert pairs[1] == (date(2026, 1, 2),) * 2
            assert templated == "[datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)]"
            assert ti.xcom_pull(task_ids="makes", key="more") == {1, 2}
            ids = {"dag_id": ti.dag_id, "run_id": ti.run_id}
            assert XCom.get_one(key="more", task_id="makes", **ids) == {1, 2}
            assert XCom.get_all(key="return_value", task_id="doubles", **ids) == list(pairs)
            assert XCom.get_one(key="none", task_id="makes", **ids) is None
            XCom.set("own", "value", task_id="gathers", **ids)
            XCom.delete("own", task_id="gathers", **ids)
            assert XCom.get_one(key="own", task_id="gathers", **ids) is None

        days = makes()
        gathers(doubles.expand(day=days), "{{ ti.xcom_pull(task_ids='makes') }}")
"""
PATHS = """
    import os
    from airflow.sdk import DAG, BaseOperator, ObjectStoragePath, task
    from airflow.sdk.io import attach

    base = ObjectStoragePath(os.environ.get("FOLDER", "file:///nowhere"))
    remote = ObjectStoragePath("s3://warehouse@bucket/{{ ds }}/data.csv")

    class Shows(BaseOperator):
        template_fields = ("path",)

        def __init__(self, path, **kwargs):
            super().__init__(**kwargs)
            self.path = path

        def execute(self, context):
            return self.path

    with DAG("paths", schedule=None):

        @task
        def writes(name):
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("hello")
            return path

        @task
        def reads(path, shown):
            assert isinstance(path, ObjectStoragePath), path
            assert (str(shown), shown.conn_id) == (f"s3://warehouse@bucket/2026-01-01/data.csv", "warehouse")
            return path.read_text()

        reads(writes("{{ ds }}/a.txt"), Shows(task_id="shows", path=remote).output)
"""


SIMPLE = """
    from asynsched import DAG, task

    with DAG("simple", schedule=None):
        task(lambda: 1, task_id="makes")()
"""


@pytest.fixture
def site(new_site, tmp_path):
    site = new_site()
    (tmp_path / "library").mkdir()
    site.env |= {"PYTHONPATH": str(tmp_path / "library"), "XCOMS": (tmp_path / "xcoms").as_uri(),
                 "FOLDER": (tmp_path / "folder").as_uri()}  # fmt: skip
    (tmp_path / "library" / "own_xcoms.py").write_text(dedent(BACKEND))
    return site


def stored(site, task_id, *more):
    return site.run("tasks", "xcom", "uses", "latest", task_id, *more).stdout


def test_a_class_of_the_users_keeps_xcoms_and_commands_show_its_references(site, tmp_path):
    site.write("uses.py", USES)
    site.env["ASYNSCHED_XCOM_BACKEND"] = "own_xcoms.InFiles"
    site.up_until_idle()
    site.run("dags", "trigger", "uses")
    assert "1 success" in site.up_until_idle().stderr, site.run("tasks", "logs", "uses", "latest", "gathers").stdout
    kept = list((tmp_path / "xcoms" / "uses" / "makes").glob("return_value--1-*.json.gz"))
    assert len(kept) == 1
    assert kept[0].as_uri() in stored(site, "makes")
    assert list((tmp_path / "xcoms" / "uses" / "gathers").glob("own-*")) == []
    # In the foreground as well, by Airflow's own variable.
    del site.env["ASYNSCHED_XCOM_BACKEND"]
    site.env["AIRFLOW__CORE__XCOM_BACKEND"] = "own_xcoms.InFiles"
    assert "success" in site.run("dags", "test", "uses").stdout
    assert len(list((tmp_path / "xcoms" / "uses" / "makes").glob("return_value-*"))) == 2


def test_a_class_that_cannot_be_used_is_refused_at_the_start(site):
    site.write("simple.py", SIMPLE)
    site.env["ASYNSCHED_XCOM_BACKEND"] = "own_xcoms.Missing"
    refused = site.run("up", str(site.dags), code=1).stderr
    assert "xcom_backend: 'own_xcoms.Missing' cannot be imported" in refused
    plugin = site.root / "plugins" / "deadly.py"
    plugin.parent.mkdir()
    plugin.write_text("import os\nos._exit(3)\n")
    site.env["ASYNSCHED_XCOM_BACKEND"] = "own_xcoms.InFiles"
    said = site.up_until_idle().stderr
    assert "settings.not_checked" in said, "a plugin that ends the process keeps no scheduler from its start"


def test_paths_of_object_storages_are_templates_and_xcoms(site, tmp_path):
    site.write("paths.py", PATHS)
    site.up_until_idle()
    assert site.json("dags", "errors") == []
    site.run("dags", "trigger", "paths", "--logical-date", "2026-01-01T00:00:00Z")
    assert "1 success" in site.up_until_idle().stderr
    assert (tmp_path / "folder" / "2026-01-01" / "a.txt").read_text() == "hello"
    shown = json.dumps(site.json("tasks", "xcom", "paths", "latest", "shows"))
    assert "s3://warehouse@bucket/2026-01-01/data.csv" in shown
