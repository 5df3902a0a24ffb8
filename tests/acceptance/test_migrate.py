"""`asynsched migrate` tells what a folder of Airflow's needs, and takes over the contents of Airflow's database."""

import json
import os

import pytest

from tests.support.airflow_metadata import Metadata

THREE = """
    from airflow.sdk import DAG, task

    with DAG("three", schedule=None):

        @task
        def work():
            print("done")

        work()
"""
TWO = """
    from airflow import DAG
    from airflow.models import Variable
    from airflow.operators.dummy import DummyOperator

    with DAG("two", schedule_interval=None, tags=Variable.get("tags", deserialize_json=True)):
        DummyOperator(task_id="start")
"""
NEEDS_PROVIDERS = """
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    dag = DAG("pods")

    def later():
        from airflow.providers.acme.hooks.acme import AcmeHook
"""
YEARLY = """
    from datetime import datetime

    from airflow.sdk import DAG, CronDataIntervalTimetable, task

    with DAG("yearly", schedule={schedule}, start_date=datetime(2015, 1, 1), catchup=True, max_active_runs=1):

        @task(depends_on_past=True)
        def work(params):
            print("works with", params)

        work()
"""
SCHEDULES = {2: 'CronDataIntervalTimetable("0 0 1 1 *", timezone="UTC")', 3: '"0 0 1 1 *"'}


on_one_database = pytest.mark.parametrize("backend", ["sqlite"], scope="module")


def day(year: int) -> str:
    return f"{year}-01-01T00:00:00"


@pytest.fixture
def site(new_site):
    return new_site()


@pytest.fixture
def metadata(backend, tmp_path, request) -> Metadata:
    """An Airflow 2 on SQLite, or an Airflow 3 on PostgreSQL; `tests/store/test_imports.py` reads the other two."""
    if backend == "sqlite":
        return Metadata(f"sqlite:///{tmp_path / 'air%flow.db'}", 2)
    return Metadata(request.getfixturevalue("postgres_server").new_database(migrated=False), 3)


def migrate(site, *options, metadata=None, code=0):
    """Return the report, which is checked for secrets."""
    if metadata is not None and not (site.root / "airflow.cfg").exists():
        site.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = metadata.url.replace("postgresql:", "postgresql+psycopg2:")
        site.env.setdefault("AIRFLOW__CORE__FERNET_KEY", metadata.key)
    done = site.run("migrate", str(site.dags), *options, "--output", "json", code=code)
    for secret in ("correct horse", "battery staple"):
        assert secret not in done.stdout + done.stderr
    return done.json


def imported(report):
    return {row.pop("kind"): {name: n for name, n in row.items() if n} for row in report["imports"]}


@on_one_database
def test_the_report_tells_what_each_file_needs_and_stores_nothing(site):
    site.write("three.py", THREE)
    site.write("two.py", TWO.replace('"tags",', '"tags", [],'))
    site.write("two_again.py", TWO.replace('"tags",', '"tags", [],'))
    site.write("sub/pods.py", NEEDS_PROVIDERS)
    site.write("celery.py", "import airflow.providers.celery.executors.celery_executor  # a dag\n")
    site.write("frames.py", "from airflow.sdk import DAG\nimport no_such_library.part\n")
    site.write("broken.py", "from airflow.sdk import DAG\nDAG('broken', schedule='no cron')\n")
    site.write("reads.py", "from airflow.sdk import DAG, Variable\nVariable.get('bucket')\n")
    report = migrate(site, code=1)
    shown = {finding["file"]: (finding["needs"], finding["line"], finding["names"]) for finding in report["findings"]}
    assert shown == {
        "sub/pods.py": ("provider", 2, ["acme", "cncf-kubernetes"]),
        "celery.py": ("change", 1, []),
        "frames.py": ("package", 2, ["no_such_library"]),
        "broken.py": ("change", 2, []),
        "two_again.py": ("change", None, []),
        "reads.py": ("value", 2, ["bucket"]),
    }
    assert report["install"] == [
        "asynsched providers install acme cncf-kubernetes",
        "pip install PACKAGE… (those that have the modules no_such_library)",
    ]
    [pods] = [finding for finding in report["findings"] if finding["needs"] == "provider"]
    assert "asynsched providers install cncf-kubernetes" in pods["what"]
    [again] = [finding for finding in report["findings"] if finding["file"] == "two_again.py"]
    assert "the DAG 'two' is defined in two.py already" in again["what"]
    needs = ("need_a_provider", "need_a_package", "need_a_value", "need_a_change")
    assert [report[name] for name in ("files", "dags", "run_as_they_are", *needs)] == [8, 2, 2, 1, 1, 1, 3]
    assert [warning["file"] for warning in report["warnings"]] == ["two.py", "two_again.py"]
    told = site.run("migrate", str(site.dags), code=1)
    assert "a value" in told.stdout
    assert "reads.py:2:" not in told.stdout  # the columns have it
    assert "--from URL" in told.stderr
    assert "2 warnings: --output json shows them" in told.stderr
    assert not site.home.exists()
    for name in ("sub/pods.py", "celery.py", "frames.py", "broken.py", "two_again.py", "reads.py"):
        (site.dags / name).unlink()
    assert migrate(site)["findings"] == []


NEEDS_MORE = """
    from airflow import DAG
    from airflow.hooks.postgres_hook import PostgresHook
    from airflow.providers.ssh.operators.ssh import SSHOperator
"""
ASKS_THE_DATABASE = """
    from airflow import DAG
    from airflow.models import DagRun
    from airflow.utils.session import provide_session

    @provide_session
    def n_runs(session=None):
        return session.query(DagRun).count()

    def shows(**context):
        print(context["next_ds"])

    DAG("asks", schedule=None)
"""


@on_one_database
def test_plugins_are_judged_once_and_what_fails_only_in_a_task_is_warned_of(site):
    site.write("../plugins/house.py", "from airflow.plugins_manager import AirflowPlugin\nimport no_such_library\n")
    site.write("../plugins/town.py", "from airflow.plugins_manager import AirflowPlugin\n1 / 0\n")
    site.write("more.py", NEEDS_MORE)
    site.write("asks.py", ASKS_THE_DATABASE)
    report = migrate(site, code=1)
    shown = {finding["file"]: (finding["needs"], finding["names"]) for finding in report["findings"]}
    assert shown == {
        "more.py": ("provider", ["postgres", "ssh"]),
        "plugins/house.py": ("package", ["no_such_library"]),
        "plugins/town.py": ("change", []),
    }
    assert (report["files"], report["run_as_they_are"], len(report["findings"])) == (2, 1, 3)
    asks = {warning["line"]: warning["what"] for warning in report["warnings"] if warning["file"] == "asks.py"}
    assert asks.keys() == {6, None}
    assert "n_runs asks Airflow's database, which tasks cannot reach" in asks[6]
    assert (
        "this file is written for Airflow 2, and works; next_ds is now data_interval_end | ds (line 11)" in asks[None]
    )


@on_one_database
def test_a_module_beside_the_folder_is_named_and_no_key_is_needed(site):
    (site.root / "airflow.cfg").write_text("[core]\nfernet_key = $NO_SUCH_FERNET_KEY\n")
    (site.root / "operators").mkdir()
    (site.root / "operators" / "gcp.py").write_text("WORD = 'gcp'\n")
    site.write("uses.py", "from operators.gcp import WORD\nfrom airflow.sdk import DAG\nDAG(WORD)\n")
    [finding] = (report := migrate(site, code=1))["findings"]
    assert (finding["needs"], report["install"]) == ("change", [])
    advice = f"PYTHONPATH={site.root}"
    assert finding["what"].endswith(f"operators is beside the DAG folder: start asynsched with {advice}")
    site.env["PYTHONPATH"] = str(site.root)
    assert migrate(site)["run_as_they_are"] == 1


def test_an_import_takes_over_everything_and_can_be_repeated(site, metadata):
    site.write("three.py", THREE)
    site.write("two.py", TWO)
    metadata.add("variable", key="tags", val='["x"]', description="a list", is_encrypted=False)
    metadata.add("variable", key="hidden", val=metadata.encrypted("correct horse"), is_encrypted=True)
    metadata.add(
        "connection", conn_id="db", conn_type="postgres", host="h", port=5432, login="me", is_encrypted=True,
        password=metadata.encrypted("battery staple"), extra=metadata.encrypted('{"a": 1}'), is_extra_encrypted=True,
    )  # fmt: skip
    metadata.add("slot_pool", pool="default_pool", slots=128, description="Default pool", include_deferred=False)
    metadata.add("slot_pool", pool="small", slots=3, description=5001 * "d", include_deferred=True)
    metadata.add_dag("three", "three.py", is_paused=True)
    metadata.add_dag("two", "two.py")
    metadata.add_dag("gone", "old/gone.py")
    metadata.add_run("three", "manual__1", day(2020), run_type="manual", state="failed")
    if metadata.generation == 2:
        url = metadata.url.replace("%", "%%")
        text = f"[core]\nfernet_key = {metadata.key}\n[database]\nsql_alchemy_conn = {url}\n"
        (site.root / "airflow.cfg").write_text(text)
    before = metadata.contents()
    new = {"variable": 2, "connection": 1, "pool": 1, "run": 1, "paused state": 2}

    planned = migrate(site, "--runs", "5", metadata=metadata)
    assert not site.home.exists()
    applied = migrate(site, "--runs", "5", "--apply", metadata=metadata)
    again = migrate(site, "--runs", "5", "--apply", metadata=metadata)

    assert applied["airflow"].startswith(f"Airflow {metadata.generation}, ")
    assert {kind: numbers["new"] for kind, numbers in imported(planned).items()} == new
    assert {kind: numbers["new"] for kind, numbers in imported(applied).items()} == new
    assert imported(again) == {kind: {"same": n + (kind == "pool")} for kind, n in new.items()}
    assert applied["missing_dags"] == [{"dag_id": "gone", "file": "old/gone.py" if metadata.generation == 3 else
                                        "/airflow/dags/old/gone.py"}]  # fmt: skip
    assert applied["connection_types"] == [
        {"conn_type": "postgres", "connections": 1, "install": "asynsched providers install postgres"}
    ]
    assert metadata.contents() == before
    assert site.json("variables", "get", "hidden")["value"] == "correct horse"
    exported = site.run("connections", "export", "-").json["db"]
    assert (exported["password"], exported["extra"], exported["port"]) == ("battery staple", '{"a": 1}', 5432)
    assert {pool["name"]: pool["slots"] for pool in site.json("pools", "list")} == {"default_pool": 128, "small": 3}
    assert {pool["description"] for pool in site.json("pools", "list")} == {"Default pool", 5000 * "d"}
    site.up_until_idle()
    assert {dag["dag_id"]: dag["paused"] for dag in site.json("dags", "list")} == {"three": True, "two": False}
    [run] = site.runs("three")
    assert (run["run_id"], run["state"], run["logical_date"]) == ("manual__1", "failed", "2020-01-01T00:00:00Z")
    [task] = site.json("tasks", "list", "three", "manual__1")
    assert (task["task_id"], task["state"], task["try_number"]) == ("work", "failed", 2)


def test_the_next_run_is_the_one_that_airflow_would_make(site, metadata):
    site.write("yearly.py", YEARLY.format(schedule=SCHEDULES[metadata.generation]))
    metadata.add_dag("yearly", "yearly.py")
    for year in range(2019, 2023):
        run_type = "scheduled" if year < 2022 else "backfill"
        end = day(year + 1) if metadata.generation == 2 else None
        metadata.add_run("yearly", f"{run_type}__{day(year)}+00:00", day(year), run_type=run_type, end=end)
    # Airflow has not begun this one.
    metadata.add_run("yearly", "manual__x", "2022-06-01T00:00:00", run_type="manual", state="queued", conf={"a": "b"})
    migrate(site, "--runs", "2", "--apply", metadata=metadata)

    # The newest two runs, and the last scheduled one, after which the schedule goes on.
    kept = ["manual__x", *(f"{kind}__{day(year)}+00:00" for kind, year in (("backfill", 2022), ("scheduled", 2021)))]
    assert [run["run_id"] for run in site.runs("yearly")] == kept
    # After its newest scheduled or backfilled run, of 2022, Airflow makes the one of the logical date 2023.
    site.up_until_idle()
    first = [run for run in site.runs("yearly") if run["run_id"] not in kept][-1]
    end = day(2024) if metadata.generation == 2 else day(2023)
    dates = {"logical_date": day(2023), "data_interval_start": day(2023), "data_interval_end": end, "run_after": end}
    assert first["run_id"] == f"scheduled__{end}+00:00"
    assert {name: first[name] for name in dates} == {name: f"{date}Z" for name, date in dates.items()}
    assert {run["state"] for run in site.runs("yearly")} == {"success"}
    assert "works with {'a': 'b'}" in site.run("tasks", "logs", "yearly", "manual__x", "work").stdout
    again = migrate(site, "--runs", "2", "--apply", "--replace", metadata=metadata)
    assert imported(again)["run"] == {"same": 3}


def test_what_cannot_be_imported_is_told_and_the_rest_is(site, metadata):
    site.write("three.py", THREE)
    metadata.add("variable", key="plain", val="1", is_encrypted=False)
    metadata.add("variable", key="hidden", val=metadata.encrypted("correct horse"), is_encrypted=True)
    metadata.add_dag("three", "three.py")
    metadata.add_run("three", "manual__1", day(2020), run_type="manual", state="running")
    metadata.add_run("three", "manual__0", day(2019), run_type="manual", conf={"ok": 1, "odd": {1: "x"}})
    metadata.add("slot_pool", pool="unset", slots=None, description="", include_deferred=False)
    metadata.add("slot_pool", pool="negative", slots=-5, description="", include_deferred=False)
    site.env["AIRFLOW__CORE__FERNET_KEY"] = ""
    left = migrate(site, "--runs", "2", "--apply", metadata=metadata, code=1)["left"]
    assert [(item["kind"], item["name"], item["verdict"]) for item in left] == [
        ("variable", "hidden", "left out"), ("pool", "negative", "left out"), ("run", "three manual__1", "left out")
    ]  # fmt: skip
    assert "set AIRFLOW__CORE__FERNET_KEY" in left[0]["why"]
    assert "cannot have -5 slots" in left[1]["why"]
    assert "let it end there" in left[2]["why"]
    assert site.json("runs", "show", "three", "manual__0")["conf"] == {"ok": 1, "odd": {"1": "x"}}
    assert {row["name"]: row["slots"] for row in site.json("pools", "list")}["unset"] == 0
    assert [row["key"] for row in site.json("variables", "list")] == ["plain"]
    other = site.root / "other.key"
    other.write_text(Metadata.encrypted.__module__)
    other.chmod(0o600)
    refused = site.run("migrate", str(site.dags), "--fernet-key-file", str(other), code=1)
    assert "is not a Fernet key" in refused.stderr
    other.write_text(metadata.key)
    migrate(site, "--apply", "--fernet-key-file", str(other), metadata=metadata, code=1)
    assert {row["key"] for row in site.json("variables", "list")} == {"hidden", "plain"}


@on_one_database
def test_exports_are_imported_and_replace_only_what_they_may(site):
    site.write("three.py", THREE)
    (site.root / "v.json").write_text('{"a": "new", "b": {"value": {"x": 1}, "description": "an object"}}')
    (site.root / "c.json").write_text('{"web": "http://me:battery%20staple@host", "bad": {"host": "h"}}')
    (site.root / "p.json").write_text('{"small": {"slots": 2, "description": "few", "include_deferred": false}}')
    site.run("variables", "set", "a", "old")
    given = [word for name in ("variables", "connections", "pools") for word in (f"--{name}", f"{name[0]}.json")]
    report = migrate(site, *given, "--apply", code=1)
    assert imported(report) == {
        "variable": {"new": 1, "differs": 1}, "connection": {"new": 1, "left_out": 1}, "pool": {"new": 1}
    }  # fmt: skip
    assert site.json("variables", "get", "a")["value"] == "old"
    assert imported(migrate(site, *given, "--apply", "--replace", code=1))["variable"] == {"same": 1, "replaced": 1}
    assert site.json("variables", "get", "a")["value"] == "new"


YAML = """
db:
  conn_type: postgres
  description: null
  host: host
  login: me
  password: battery staple
  port: 5432
  extra: '{"sslmode": "require"}'
"""


@on_one_database
def test_exports_in_yaml_and_env_are_imported_as_well(site):
    site.write("three.py", THREE)
    (site.root / "c.yaml").write_text(YAML)
    (site.root / "v.yml").write_text("a: text\nb: {value: {x: 1}, description: an object}\n")
    report = migrate(site, "--connections", "c.yaml", "--variables", "v.yml", "--apply")
    assert imported(report) == {"variable": {"new": 2}, "connection": {"new": 1}}
    kept = json.loads(site.run("connections", "export", "-").stdout)["db"]
    assert (kept["conn_type"], kept["password"], kept["port"]) == ("postgres", "battery staple", 5432)
    assert json.loads(site.json("variables", "get", "b")["value"]) == {"x": 1}
    lines = [
        "# of Airflow",
        "web=http://me:battery%20staple@host",
        'plain={"conn_type": "http", "host": "h"}',
        'bad={"x',
    ]
    (site.root / ".env").write_text("\n".join(lines))
    (site.root / "v.env").write_text("c=1\nno value\n")
    report = migrate(site, "--connections", ".env", "--apply", code=1)
    assert imported(report)["connection"] == {"new": 2, "left_out": 1}
    refused = site.run("migrate", str(site.dags), "--variables", "v.env", code=1)
    assert "v.env:2: the line must be name=value" in refused.stderr
    site.run("connections", "import", "c.yaml")


@on_one_database
def test_a_database_that_cannot_be_read_is_one_clear_error(site, tmp_path):
    site.write("three.py", THREE)
    for url, said in [
        ("mysql://me@host/airflow", "Only SQLite and PostgreSQL can be read"),
        ("postgresql://me:battery@host/airflow", "--from has a password"),
        (f"sqlite:///{tmp_path}/none.db", "there is no file"),
    ]:
        done = site.run("migrate", str(site.dags), "--from", url, code=None)
        assert done.code in (1, 2)
        assert said in done.stderr
        assert "battery" not in done.stderr
    os.close(os.open(tmp_path / "empty.db", os.O_CREAT))
    done = site.run("migrate", str(site.dags), "--from", f"sqlite:///{tmp_path}/empty.db", code=1)
    assert "has no tables of Airflow's" in done.stderr


@on_one_database
def test_nothing_is_imported_beside_a_running_scheduler(site):
    site.write("three.py", THREE)
    (site.root / "v.json").write_text('{"a": "b"}')
    with site.up():
        refused = site.run("migrate", str(site.dags), "--variables", "v.json", "--apply", code=1)
        assert "Stop the scheduler before the import" in refused.stderr
        assert site.json("variables", "list") == []
