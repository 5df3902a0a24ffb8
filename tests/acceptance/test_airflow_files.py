"""Files that were written for Airflow run as they are."""

import json

import pytest

DATABASES = ("sqlite",)

FOR_AIRFLOW_3 = """
    from datetime import timedelta

    import pendulum
    from airflow.exceptions import AirflowException
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
    from airflow.sdk import DAG, BaseOperator, get_current_context, task, timezone
    from airflow.sdk.exceptions import AirflowSkipException

    class Defers(BaseOperator):
        def execute(self, context):
            self.defer(trigger=TimeDeltaTrigger(timedelta(0)), method_name="resumed")

        def resumed(self, context, event=None):
            return timezone.coerce_datetime(event).isoformat()

    def told(context):
        from airflow.sdk import TaskInstance

        assert isinstance(context["ti"], TaskInstance)
        print("the callback was called")

    with DAG("three", schedule=None, start_date=pendulum.datetime(2026, 1, 1)):

        @task(on_success_callback=told)
        def skips():
            raise AirflowSkipException("nothing to do")

        @task(trigger_rule="none_failed")
        def catches():
            try:
                raise AirflowException("caught")
            except AirflowException:
                return get_current_context()["run_id"]

        skips() >> catches() >> Defers(task_id="defers") >> BashOperator(task_id="bash", bash_command="echo {{ ds }}")
"""
FOR_AIRFLOW_2 = """
    import datetime

    from airflow import DAG
    from airflow.decorators import task
    from airflow.models import Variable
    from airflow.operators.dummy_operator import DummyOperator
    from airflow.operators.python import PythonOperator

    tags = [Variable.get("tag", default_var="none")]  # so each try loads the file
    with DAG("two", schedule_interval=None, start_date=datetime.datetime(2026, 1, 1), concurrency=2, tags=tags) as dag:
        start = DummyOperator(task_id="start")
        says = PythonOperator(task_id="says", python_callable=lambda: Variable.get("word"), provide_context=True)
        start >> says
"""
SMALL_NAMES = """
    from airflow import DAG
    from airflow.configuration import conf
    from airflow.sdk import task
    from airflow.sdk.log import mask_secret
    from airflow.utils.dates import days_ago

    options = [conf.get("core", "parallelism"), str(conf.getboolean("operators", "default_deferrable"))]
    with DAG("small", schedule=None, start_date=days_ago(1), tags=options):

        @task
        def tells():
            mask_secret({"password": "correct horse", "user": "battery staple"})
            print("correct horse, battery staple,", conf.getint("core", "parallelism"), conf.get("smtp", "smtp_host"))

        tells()
"""
MIXINS = """
    from airflow.sdk import DAG, BaseOperator, BaseOperatorLink, BranchMixIn, SkipMixin, get_current_context
    from airflow.sdk import task, task_group
    from airflow.sdk.bases.branch import BaseBranchOperator
    from airflow.sdk.exceptions import AirflowException, DownstreamTasksSkipped
    from airflow.sdk.execution_time.xcom import XCom

    class JobLink(BaseOperatorLink):
        name = "Job"

        @property
        def xcom_key(self):
            return "job"

        def get_link(self, operator, *, ti_key):
            return f"https://jobs.example/{ti_key.task_id}/{ti_key.xcom_pull(key='number')}"

    class Branches(BaseOperator, BranchMixIn):
        operator_extra_links = (JobLink(),)

        def execute(self, context):
            context["ti"].xcom_push(key="number", value=7)
            self.do_branch(context, ["group", "kept"])

    class Fails(BaseOperator):
        operator_extra_links = (JobLink(),)

        def execute(self, context):
            raise AirflowException("no")

    class Skips(BaseOperator, SkipMixin):
        def execute(self, context):
            self.skip(context["ti"], [self.dag.get_task("far"), *self.downstream_list])

    class Raises(BaseOperator):
        def execute(self, context):
            raise DownstreamTasksSkipped(tasks=[("end", -1)])

    class Own(BaseBranchOperator):
        def choose_branch(self, context):
            return "chosen"

    class MappedSkips(BaseOperator, SkipMixin):
        template_fields = ("n",)

        def __init__(self, *, n, **kwargs):
            super().__init__(**kwargs)
            self.n = n

        def execute(self, context):
            if self.n:
                self.skip(context["ti"], self.downstream_list)
            return self.n

    def done(task_id, **kwargs):
        @task(task_id=task_id, **kwargs)
        def does():
            ti = get_current_context()["ti"]
            place = {name: getattr(ti, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
            XCom.set("note", 1, **place)
            XCom.delete("note", **place)
            return XCom.get_one(key="note", **place)

        return does()

    with DAG("mixins", schedule=None):
        branches = Branches(task_id="branches")

        @task_group
        def group():
            done("first") >> done("second")

        branches >> [done("kept"), done("left"), group()]

        far = done("far")
        done("before") >> done("middle") >> far >> done("after", trigger_rule="all_done")
        Skips(task_id="skips") >> [done("next")] >> done("last")
        far << done("slow")
        Raises(task_id="raises") >> done("anyway") >> done("end")
        Own(task_id="own") >> [done("chosen"), done("refused")]
        Fails(task_id="fails")

        @task_group
        def each(n):
            MappedSkips(task_id="decides", n=n) >> done("inner")

        each.expand(n=[0, 1]) >> done("joins", trigger_rule="none_failed")
"""
OURS = """
    from asynsched import DAG

    dag = DAG("ours", schedule=None)
"""
USES_SECRETS = """
    import os

    from airflow.models import Connection
    from airflow.sdk import DAG, BaseOperator, Variable, task
    from airflow.triggers.base import BaseTrigger, TriggerEvent

    class Reads(BaseTrigger):
        def serialize(self):
            return f"{__name__}.Reads", {}

        async def run(self):
            yield TriggerEvent(Variable.get("colour"))

    class Waits(BaseOperator):
        def execute(self, context):
            self.defer(trigger=Reads(), method_name="resumed")

        def resumed(self, context, event):
            print("the trigger has read", event)

    def told(context):
        print("the callback has read", Variable.get("colour"), Connection.get("db").password)

    at_parse = Variable.get("colour", default="nothing")
    with DAG("secrets", schedule=None):

        @task(on_success_callback=told)
        def reads(rendered):
            kwargs = os.environ["AIRFLOW__SECRETS__BACKEND_KWARGS"]
            print("read", at_parse, rendered, Connection.get("db").password, kwargs)

        reads("{{ var.value.colour }} {{ var.value.shade }}") >> Waits(task_id="waits")
"""


@pytest.fixture
def site(new_site):
    site = new_site()
    site.write("three.py", FOR_AIRFLOW_3)
    site.write("two.py", FOR_AIRFLOW_2)
    return site


def test_each_finding_about_airflow_2_names_its_lines_even_if_the_file_fails(new_site):
    site = new_site()
    old = [f"o{n} = PythonOperator(task_id='o{n}', python_callable=print, provide_context=True)" for n in range(12)]
    dag = "with DAG('old', schedule_interval=None, concurrency=2, default_view='graph', orientation='LR'):"
    head = ["from asynsched import DAG, PythonOperator", dag]
    templated = "print('{{ execution_date }}', '{{ tomorrow_ds }}')"
    limited = "o = PythonOperator(task_id='o', python_callable=print, task_concurrency=2, trigger_rule='dummy')"
    site.write("old.py", "\n".join([*head, *(f"    {line}" for line in (*old, limited, templated)), "1 / 0"]))
    site.up_until_idle()
    [failed, warned] = site.json("dags", "errors", "--warnings")
    assert "ZeroDivisionError" in failed["message"]
    begin, _, findings = warned["message"].partition("; ")
    assert begin == "old.py: this file is written for Airflow 2"
    assert [finding for finding in EXPECTED_FINDINGS if finding not in findings] == []


EXPECTED_FINDINGS = (
    "schedule_interval is now schedule (line 2)",
    "concurrency is now max_active_tasks (line 2)",
    "default_view has no effect: it is about Airflow 2's web page; remove it (line 2)",
    "orientation has no effect: it is about Airflow 2's web page; remove it (line 2)",
    "that they name; remove it (lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2 more)",
    "task_concurrency is now max_active_tis_per_dag (line 15)",
    "the trigger rule dummy is now always (line 15)",
    "execution_date is now logical_date (line 16)",
    "tomorrow_ds is now macros.ds_add(ds, 1) (line 16)",
)


def test_files_for_airflow_run_unmodified_and_old_names_are_named(site):
    site.run("variables", "set", "word", "hello")
    logged = site.up_until_idle().stderr
    assert "file.written_for_airflow_2" in logged
    for dag_id in ("two", "three"):
        site.run("dags", "trigger", dag_id)
    assert "2 runs have ended: 2 success." in site.up_until_idle().stderr
    states = {task["task_id"]: task["state"] for task in site.json("tasks", "list", "three", "latest")}
    assert states == {"skips": "skipped", "catches": "success", "defers": "success", "bash": "success"}
    warned = site.json("dags", "errors", "--warnings")
    assert [(one["file"], one["kind"]) for one in warned] == [("two.py", "moved")]
    message = warned[0]["message"]
    assert "airflow.operators.dummy_operator.DummyOperator is now airflow.providers.standard" in message
    assert "schedule_interval is now schedule (line 11), concurrency is now max_active_tasks (line 11)" in message
    assert "default_var of Variable.get is now default" in message
    log = site.run("tasks", "logs", "two", "latest", "says").stdout
    assert "Returned value was: hello" in log
    assert " is now " not in log
    assert "Warning" not in log


def test_the_foreground_serves_airflows_names_as_well(site):
    assert "success" in site.run("dags", "test", "three").stdout


def test_where_airflow_is_off_its_names_are_errors_of_the_file(site):
    site.env["ASYNSCHED_AIRFLOW"] = "off"
    site.up_until_idle()
    errors = {error["file"]: error["message"] for error in site.json("dags", "errors")}
    assert set(errors) == {"two.py", "three.py"}
    assert 'set airflow = "ours", or import the same names from asynsched' in errors["two.py"]


def test_an_installed_airflow_is_what_files_get_only_where_a_setting_says_so(new_site):
    site = new_site()
    (site.root / "installed" / "airflow").mkdir(parents=True)
    (site.root / "installed" / "airflow" / "__init__.py").write_text("__version__ = 'of another'\n")
    site.env["PYTHONPATH"] = str(site.root / "installed")
    site.write("which.py", "import airflow, asynsched\n\ndag = asynsched.DAG('which', tags=[airflow.__version__])\n")
    for kind, version in (("ours", "3.3.2"), ("installed", "of another")):
        site.env["ASYNSCHED_AIRFLOW"] = kind
        site.up_until_idle()
        shown = site.json("dags", "show", "which")
        assert (shown["airflow"], shown["tags"]) == (kind, [version])


def test_configuration_and_masking_work_at_parse_and_in_tasks(new_site):
    site = new_site()
    site.write("small.py", SMALL_NAMES)
    site.write("ours.py", OURS)
    site.env |= {"ASYNSCHED_PARALLELISM": "7", "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"}
    site.up_until_idle()
    assert site.json("dags", "show", "ours")["airflow"] is None
    shown = site.json("dags", "show", "small")
    assert (shown["airflow"], sorted(shown["tags"])) == ("ours", ["7", "True"])
    site.run("dags", "trigger", "small")
    site.up_until_idle()
    assert "***, battery staple, 7 localhost" in site.run("tasks", "logs", "small", "latest", "tells").stdout
    assert "battery staple, 7 localhost" in site.run("dags", "test", "small").stderr


def test_operators_with_mixins_skip_as_in_airflow_and_their_links_are_listed(new_site):
    site = new_site()
    site.write("mixins.py", MIXINS)
    site.run("dags", "trigger", "mixins")
    site.up_until_idle()
    found = site.json("tasks", "list", "mixins", "latest")
    states = {f"{one['task_id']}[{one['map_index']}]".replace("[-1]", ""): one["state"] for one in found}
    skipped = {"left", "far", "next", "last", "end", "refused", "each.inner[1]"}
    assert {name for name, state in states.items() if state == "skipped"} == skipped
    assert {name for name, state in states.items() if state != "success"} == {*skipped, "fails"}
    assert site.json("tasks", "links", "mixins", "latest") == [
        {"task_id": "branches", "map_index": -1, "name": "Job", "url": "https://jobs.example/branches/7"},
        {"task_id": "fails", "map_index": -1, "name": "Job", "url": "https://jobs.example/fails/None"},
    ]
    assert len(site.json("tasks", "links", "mixins", "latest", "fails")) == 1
    assert "Job: https://jobs.example/branches/7" in site.run("tasks", "logs", "mixins", "latest", "branches").stdout
    # A task that was skipped directly is skipped again; one further away runs when it is cleared.
    site.run("tasks", "clear", "mixins", "latest", "next", "far", "--yes")
    site.up_until_idle()
    again = {one["task_id"]: one["state"] for one in site.json("tasks", "list", "mixins", "latest")}
    assert (again["next"], again["far"]) == ("skipped", "success")


def test_a_secrets_backend_is_asked_where_user_code_runs_and_masked(new_site):
    site = new_site()
    site.write("secrets.py", USES_SECRETS)
    (site.root / "variables.json").write_text('{"colour": "red"}')
    (site.root / "connections.env").write_text("db=postgres://me:hunter22@host/shop")
    kwargs = json.dumps({f"{kind}_file_path": f"{site.root}/{kind}" for kind in ("variables", "connections")})
    kwargs = kwargs.replace('/variables"', '/variables.json"').replace('/connections"', '/connections.env"')
    site.env["ASYNSCHED_SECRETS__BACKEND"] = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    site.env["ASYNSCHED_SECRETS__BACKEND_KWARGS"] = kwargs
    site.run("variables", "set", "colour", "stored")
    site.run("variables", "set", "shade", "dark")
    site.up_until_idle()
    site.run("dags", "trigger", "secrets")
    assert "1 run has ended: 1 success." in site.up_until_idle().stderr
    log = site.run("tasks", "logs", "secrets", "latest", "reads").stdout
    assert "read stored red dark *** ***" in log
    assert "the callback has read red ***" in log
    assert "the trigger has read red" in site.run("tasks", "logs", "secrets", "latest", "waits").stdout
    assert "read stored red dark hunter22" in site.run("dags", "test", "secrets").stderr
    shown = {row["name"]: row["value"] for row in site.json("config", "show")}
    assert shown["secrets.backend_kwargs"] == "***"
