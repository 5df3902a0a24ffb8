"""What a team that moves from Airflow checks first: configuration, policies, plugins, listeners and helpers."""

import subprocess
import textwrap
import zipfile

DATABASES = ("sqlite",)

CFG = """
    [core]
    default_task_retries = 3
    default_timezone = Europe/Berlin

    [scheduler]
    catchup_by_default = True
    create_cron_data_intervals = True

    [database]
    sql_alchemy_conn = postgresql://user:correct-horse@somewhere/airflow

    [team]
    word = battery-staple

    [sensors]
    default_timeout = 60
"""
CONFIGURED = """
    from datetime import datetime

    from airflow.configuration import conf
    from airflow.providers.standard.sensors.time import TimeSensor
    from airflow.sdk import DAG, task
    from asynsched import CronDataIntervalTimetable

    told = conf.get("core", "default_task_retries"), conf.get("team", "word", fallback="no word")
    sensor = TimeSensor(task_id="waits", target_time=datetime.min.time())
    assert (sensor.timeout, sensor.deferrable) == (60, True)
    with DAG("configured", schedule="@daily", start_date=datetime(2026, 11, 1), tags=told) as dag:
        assert isinstance(dag.timetable, CronDataIntervalTimetable)

        @task
        def tells():
            print("the task reads", conf.get("team", "word"), conf.get("database", "sql_alchemy_conn", fallback="none"))

        @task(retries=0)
        def maps(n):
            pass

        tells() >> maps.expand(n=[1])
"""


def beside(site, name, text):
    """Write a file beside the DAG folder; its text may be indented."""
    path = site.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_an_airflow_cfg_beside_the_folder_decides_what_airflow_would_do(new_site):
    site = new_site()
    cfg = beside(site, "airflow.cfg", CFG)
    site.env["AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"] = "True"
    site.write("configured.py", CONFIGURED)
    first = site.up_until_idle()
    assert f"catchup_by_default = True ({cfg}, line 7, [scheduler] catchup_by_default)" in first.stderr
    shown = site.json("dags", "show", "configured")
    assert (shown["paused"], shown["catchup"], shown["timezone"]) == (True, True, "Europe/Berlin")
    assert {task["task_id"]: task["retries"] for task in shown["tasks"]} == {"tells": 3, "maps": 0}
    assert shown["tags"] == ["3", "no word"], "a parse sees no option that may be a secret"
    site.run("dags", "trigger", "configured")
    site.run("dags", "unpause", "configured")
    cfg.write_text(
        cfg.read_text().replace("retries = 3", "retries = 2").replace("by_default = True", "by_default = no")
    )
    site.env["ASYNSCHED_PARSE__ENVIRONMENT"] = "AIRFLOW__TEAM__WORD"
    second = site.up_until_idle()
    shown = site.json("dags", "show", "configured")
    assert (shown["catchup"], shown["tasks"][0]["retries"]) == (False, 2), "other defaults: the file is parsed again"
    assert shown["tags"] == ["2", "battery-staple"]
    log = site.run("tasks", "logs", "configured", "manual", "tells").stdout
    assert "the task reads battery-staple none" in log
    assert "correct-horse" not in first.stderr + second.stderr + site.run("config", "show").stdout


POLICIES = """
    from datetime import timedelta

    from airflow.exceptions import AirflowClusterPolicySkipDag, AirflowClusterPolicyViolation
    from include.words import WORD


    def dag_policy(dag):
        if dag.dag_id == "skipped":
            raise AirflowClusterPolicySkipDag("not here")
        if dag.dag_id == "refused":
            raise AirflowClusterPolicyViolation("no owner")
        dag.tags.add(WORD)


    def task_policy(any_name):
        if any_name.task_id == "breaks":
            raise ValueError("a policy's own error")
        any_name.execution_timeout = timedelta(seconds=77)


    def task_instance_mutation_hook(task_instance):
        task_instance.told = f"{task_instance.task_id} of {task_instance.run_id.split('_')[0]}"
        task_instance.pool, task_instance.priority_weight = "elsewhere", 99


    def get_airflow_context_vars(context):
        return {"team": f"the team of {context['dag'].dag_id}"}
"""
PLUGIN = """
    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin
    from airflow.sdk import BaseOperatorLink, Variable
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.timetables.interval import CronDataIntervalTimetable


    class Link(BaseOperatorLink):
        name = "Console"
        operators = [BashOperator]

        def get_link(self, operator, *, ti_key):
            return f"https://console.example/{ti_key.task_id}"


    class Everywhere(Link):
        name = "Wiki"


    class Mornings(CronDataIntervalTimetable):
        def __init__(self):
            super().__init__("0 6 * * *", timezone="UTC")

        def serialize(self):
            return {}


    class Listener:
        @hookimpl
        def on_task_instance_running(self, previous_state, task_instance):
            print("HEARD", previous_state, "running", task_instance.task_id)

        @hookimpl
        def on_task_instance_success(self, task_instance):
            print("HEARD success", task_instance.task_id, task_instance.state, Variable.get("word"))

        @hookimpl
        def on_task_instance_failed(self, previous_state, task_instance, error):
            print("HEARD failed", task_instance.task_id, repr(error))
            raise RuntimeError("a listener's own error")

        @hookimpl
        def on_task_instance_skipped(self, task_instance):
            print("HEARD skipped", task_instance.task_id)

        @hookimpl
        def on_dag_run_running(self, dag_run, msg):
            print("HEARD run", dag_run.state, dag_run.get_dag().dag_id, dag_run.run_id)

        @hookimpl
        def on_dag_run_failed(self, dag_run, msg):
            print("HEARD run", dag_run.state, dag_run.get_dag().dag_id, msg)


    def shout(text):
        return text.upper()


    class House(AirflowPlugin):
        name = "house"
        macros = [shout]
        listeners = [Listener()]
        operator_extra_links = [Link()]
        global_operator_extra_links = [Everywhere()]
        timetables = [Mornings]
        flask_blueprints = [object()]
"""
USES_PLUGIN = """
    import os
    from datetime import datetime

    from airflow.exceptions import AirflowFailException, AirflowSkipException
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG, task
    from house_plugin import Mornings

    with DAG("governed", schedule=Mornings(), start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 1)):

        @task
        def fails(ti=None):
            from include.words import WORD

            print("IN THE TASK", ti.told, ti.task.execution_timeout, WORD)
            print("FOR", os.environ["AIRFLOW_CTX_TEAM"])
            raise AirflowFailException("on purpose")

        @task
        def skips():
            raise AirflowSkipException

        shouts = "echo {{ macros.house.shout('macro') }} of $AIRFLOW_CTX_TEAM"
        BashOperator(task_id="shouts", bash_command=shouts) >> [fails(), skips()]

    for name in ("skipped", "refused"):
        with DAG(name, schedule=None):
            BashOperator(task_id="nothing", bash_command="true")
"""
BREAKS = """
    from airflow.sdk import DAG
    from airflow.providers.standard.operators.empty import EmptyOperator

    with DAG("broken", schedule=None):
        EmptyOperator(task_id="breaks")
"""


WORKS = """
    from airflow.sdk import DAG, task

    with DAG("works", schedule=None):
        task(print)("it works")
"""


def test_the_flag_like_airflow_takes_airflows_defaults_and_variables_without_a_file(new_site):
    site = new_site()
    site.write("works.py", WORKS)
    site.env["AIRFLOW__CORE__DEFAULT_TASK_RETRIES"] = "3"
    with site.up("--like-airflow"):
        site.wait_for_dag("works")
        shown = site.json("dags", "show", "works")
        assert (shown["paused"], shown["tasks"][0]["retries"]) == (True, 3)
    plain = new_site()
    plain.write("works.py", WORKS)
    plain.env["AIRFLOW__CORE__DEFAULT_TASK_RETRIES"] = "3"
    with plain.up():
        plain.wait_for_dag("works")
        shown = plain.json("dags", "show", "works")
        assert (shown["paused"], shown["tasks"][0]["retries"]) == (False, 0)


def test_policies_plugins_and_listeners_beside_the_folder_take_effect(new_site):
    site = new_site()
    policies = beside(site, "config/airflow_local_settings.py", POLICIES)
    beside(site, "plugins/house_plugin.py", PLUGIN)
    beside(site, "plugins/broken_plugin.py", "import no_such_module\n")
    words = beside(site, "include/words.py", "WORD = 'from-include'\n")
    site.write("uses.py", USES_PLUGIN)
    site.write("breaks.py", BREAKS)
    site.run("variables", "set", "word", "asked")
    with site.up() as up:
        site.wait_for_dag("governed")
        assert [dag["dag_id"] for dag in site.json("dags", "list")] == ["governed"]
        errors = {error["dag_id"]: error["message"] for error in site.json("dags", "errors")}
        assert f"the dag_policy of {policies} refuses it: no owner" in errors["refused"]
        assert f"'breaks': the task_policy of {policies} raised ValueError: a policy's own error" in errors["broken"]
        shown = site.json("dags", "show", "governed")
        assert (shown["tags"], shown["tasks"][0]["execution_timeout"]) == (["from-include"], 77)
        assert site.run("dags", "trigger", "governed", "--wait", code=1).code == 1

        # A hook that needs the run cannot say where its tries are to wait.
        [shouts] = [one for one in site.json("tasks", "list", "governed", "latest") if one["task_id"] == "shouts"]
        assert (shouts["state"], shouts["pool"], shouts["priority_weight"]) == ("success", "default_pool", 3)
        logs = {
            task: site.run("tasks", "logs", "governed", "latest", task).stdout for task in ("shouts", "fails", "skips")
        }
        assert "HEARD queued running shouts" in logs["shouts"]
        assert "MACRO of the team of governed" in logs["shouts"]
        assert "Console: https://console.example/shouts" in logs["shouts"]
        assert "Wiki: https://console.example/shouts" in logs["shouts"]
        assert "HEARD success shouts success asked" in logs["shouts"]
        assert "IN THE TASK fails of manual 0:01:17 from-include" in logs["fails"]
        assert "FOR the team of governed" in logs["fails"]
        assert "HEARD failed fails AsynschedFailException('on purpose')" in logs["fails"]
        assert "a listener's own error" in logs["fails"]
        assert "HEARD skipped skips" in logs["skips"]
        heard = site.until(lambda: heard_of_runs(site, 2), "the listeners of the run were called")
        assert [line.partition("HEARD ")[2].split()[:3] for line in heard] == [
            ["run", "running", "governed"], ["run", "failed", "governed"],
        ]  # fmt: skip

        words.write_text("WORD = 'edited'\n")
        site.until(lambda: site.json("dags", "show", "governed")["tags"] == ["edited"], "the helper module was noticed")
        site.run("dags", "trigger", "governed", "--wait", code=1)
        assert "0:01:17 edited" in site.run("tasks", "logs", "governed", "latest", "fails").stdout
    assert "plugin.loaded" in up.log
    assert "flask_blueprints" in up.log
    listed = {plugin["source"]: plugin for plugin in site.json("plugins", "list")}
    assert (
        listed["house_plugin.py"]["adds"]
        == "macros, operator_extra_links, global_operator_extra_links, listeners, timetables"
    )
    assert listed["house_plugin.py"]["ignored"] == "flask_blueprints"
    assert "No module named 'no_such_module'" in listed["broken_plugin.py"]["error"]
    tested = site.run("dags", "test", "governed", code=None)
    assert "HEARD run failed" in tested.stdout + tested.stderr


ROUTES = """
    def task_instance_mutation_hook(task_instance):
        if task_instance.try_number >= 1:
            task_instance.pool, task_instance.queue = "again", "retry_queue"
            task_instance.priority_weight += 69
"""
FAILS_ONCE = """
    from airflow.sdk import dag, task

    @dag
    def routed():
        @task(retries=1, retry_delay=0)
        def fails_once(ti=None):
            print(f"try {ti.try_number} is in {ti.pool} and {ti.queue}, weighs {ti.priority_weight}")
            if ti.try_number == 1:
                raise ValueError

        fails_once()

    routed()
"""


def test_a_hook_of_task_instances_sends_a_retry_to_another_pool_and_queue(new_site):
    site = new_site()
    hook = beside(site, "config/airflow_local_settings.py", ROUTES)
    site.write("routed.py", FAILS_ONCE)

    def shown():
        [found] = site.json("tasks", "list", "routed", "latest")
        return found

    with site.up():
        site.wait_for_dag("routed")
        details = site.json("dags", "show", "routed")
        assert [route["queue"] for route in details["tasks"][0]["routes"]] == ["default", "retry_queue"]
        assert details["missing_pools"] == ["again"]
        told = site.run("dags", "show", "routed")
        assert "There is no pool 'again', so fails_once cannot start" in told.stdout + told.stderr
        site.run("dags", "trigger", "routed", "--run-id", "r")
        site.until(lambda: "no pool 'again'" in (shown()["reason"] or ""), "the retry waits for its pool")
        why = site.run("why", "routed", "r", "fails_once").stdout
        assert "there is no pool 'again': `asynsched pools set again SLOTS`" in why
        site.run("pools", "set", "again", "1")
        site.until(lambda: shown()["state"] == "success", "the retry has run there")
        assert (shown()["pool"], shown()["priority_weight"]) == ("again", 70)
        tries = site.json("tasks", "list", "routed", "r", "--all-tries")
        assert [(one["pool"], one["queue"]) for one in tries] == [("default_pool", "default"), ("again", "retry_queue")]
        log = site.run("tasks", "logs", "routed", "r", "fails_once").stdout
        assert "try 2 is in again and retry_queue, weighs 70" in log

        hook.write_text("def task_instance_mutation_hook(ti):\n    ti.queue = ti.run_id\n")
        warned = site.until(lambda: site.json("dags", "errors", "--warnings"), "the hook cannot be asked without a run")
        assert "run_id is not known yet: the file is parsed before there is a run" in warned[0]["message"]
        assert site.json("dags", "show", "routed")["missing_pools"] == []
    tested = site.run("dags", "test", "routed", code=None)
    assert "try 2 is in default_pool" in tested.stdout + tested.stderr


def test_a_plugin_that_ends_its_process_is_named_and_all_others_are_listed(new_site):
    site = new_site()
    beside(site, "plugins/a_deadly.py", "import os\nos._exit(0)\n")
    beside(site, "plugins/b_crashes.py", "import os\nos.abort()\n")
    beside(site, "plugins/c_leaves.py", "import sys\nsys.exit(3)\n")
    beside(site, "plugins/house_plugin.py", PLUGIN)
    site.write("breaks.py", BREAKS)
    with site.up() as up:
        found = site.until(lambda: site.json("dags", "errors"), "the file has an error")
        message = "breaks.py: ended its process with exit code 0 (os._exit) while loading the plugin a_deadly.py"
        assert [error["message"] for error in found] == [message]
        site.until(lambda: "plugin.loaded" in up.log, "the other plugin is loaded")
        assert "a_deadly.py" in up.log
    listed = {plugin["source"]: plugin["error"] for plugin in site.json("plugins", "list")}
    assert listed == {
        "a_deadly.py": "it ended its process: exit code 0",
        "b_crashes.py": "it ended its process: SIGABRT",
        "c_leaves.py": "SystemExit: 3",
        "house_plugin.py": "",
    }


DEBUGGED = """
    import sys
    from datetime import datetime

    from airflow import DAG
    from airflow.hooks.base import BaseHook
    from airflow.models import Variable
    from airflow.operators.python import PythonOperator
    from house_plugin import HouseOperator
    from include.words import WORD

    def works(ds):
        local = "a local"
        breakpoint()
        print(ds, sys.argv[1:], Variable.get("key"), Variable.get("more", deserialize_json=True), WORD)
        print(TOP, HouseOperator.__name__, BaseHook.get_connection("there").extra_dejson["a"])

    TOP = Variable.get("key")

    with DAG("debugged", schedule=None) as dag:
        PythonOperator(task_id="works", python_callable=works)

    if __name__ == "__main__":
        files = {"variable_file_path": "variables.json", "conn_file_path": "connections.yaml"}
        run = dag.test(execution_date=datetime(2026, 1, 2), **files)
        raise SystemExit(run.state == "success" and "an error of its own")
"""


def test_a_dag_file_that_tests_itself_runs_in_one_process_for_a_debugger(new_site, tmp_path):
    site = new_site()
    beside(site, "plugins/house_plugin.py", "class HouseOperator: ...\n")
    beside(site, "include/words.py", "WORD = 'from-include'\n")
    file = site.write("debugged.py", DEBUGGED)
    database = f"sqlite:///{site.root}/another.db"
    site.env["ASYNSCHED_DATABASE"] = database
    site.run("variables", "set", "key", "a value")
    (tmp_path / "variables.json").write_text('{"more": {"b": 1}}')
    (tmp_path / "connections.yaml").write_text("there: {conn_type: http, host: h, extra: {a: 5}}")
    site.up_until_idle()  # the home has noted where its DAG folder is
    environment = site.environment | {"ASYNSCHED_HOME": str(site.root / "another")}
    (tmp_path / "asynsched.toml").write_text(f"database = '{environment.pop('ASYNSCHED_DATABASE')}'\n")
    command = site.command("python", "--home", str(site.home), str(file), "--date", "x")
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, input="p local\nc\n", capture_output=True, text=True, check=False
    )
    assert "'a local'" in ran.stdout, ran.stderr
    assert "2026-01-02 ['--date', 'x'] a value {'b': 1} from-include\na value HouseOperator 5\n" in ran.stdout
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "an error of its own")
    file.write_text("from airflow import DAG\n1 / 0\n")
    ended = site.run("python", str(file), code=1)
    first, where, *_ = ended.stderr.splitlines()
    assert (first, where) == ("Traceback (most recent call last):", f'  File "{file}", line 2, in <module>')


def test_a_plugin_that_hangs_is_named_in_the_error_of_a_file(new_site):
    site = new_site()
    beside(site, "plugins/a_hangs.py", "while True: pass\n")
    site.write("breaks.py", BREAKS)
    site.env["ASYNSCHED_PARSE__IMPORT_TIMEOUT"] = "1"
    told = site.run("dags", "reparse", "breaks.py", code=1).stderr
    assert "its import took longer than 1 s (parse.import_timeout) while loading the plugin a_hangs.py" in told
    beside(site, "plugins/house_plugin.py", PLUGIN)
    listed = {plugin["source"]: plugin["error"] for plugin in site.json("plugins", "list")}
    assert listed == {"a_hangs.py": "it takes longer than 1 s (parse.import_timeout)", "house_plugin.py": ""}


def test_a_plugin_that_ends_only_tasks_is_named_in_their_reason(new_site):
    site = new_site()
    mark = site.root / "mark"
    beside(site, "plugins/moody.py", f"import os\nif os.path.exists({str(mark)!r}): os._exit(0)\n")
    site.write("works.py", WORKS)
    site.up_until_idle()
    mark.touch()
    site.run("dags", "trigger", "works")
    assert "while loading the plugin moody.py" in site.up_until_idle().stderr


def heard_of_runs(site, number):
    """Return the lines of the listeners of runs, the newest last; None while there are fewer than `number`."""
    files = sorted(site.home.glob("logs/**/*on_dag_run*"), key=lambda path: path.stat().st_mtime_ns)
    lines = [line for path in files for line in path.read_text().splitlines() if "HEARD" in line]
    return lines if len(lines) >= number else None


HEARS_OF_NEW = """
    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin
    from airflow.sdk import Variable
    from include.words import WORD


    class Listener:
        @hookimpl
        def on_asset_created(self, asset):
            print("HEARD", WORD, asset.name, asset.uri, asset.group, asset.extra, Variable.get("word"))
            if asset.name == "unlucky":
                raise RuntimeError("a listener's own error")

        @hookimpl
        def on_asset_alias_created(self, asset_alias):
            print("HEARD", asset_alias.name, asset_alias.group)


    class House(AirflowPlugin):
        name = "house"
        listeners = [Listener()]
"""
MAKES_ASSETS = """
    from airflow.sdk import DAG, Asset, AssetAlias, task

    with DAG("makes", schedule=None):

        @task(outlets=[AssetAlias("found", group="things"), Asset("known", "s3://known/", extra={"n": 1})])
        def finds(*, outlet_events):
            outlet_events[AssetAlias("found")].add(Asset("unlucky"))

        finds()
"""


def test_listeners_hear_once_of_each_new_asset_and_alias(new_site):
    site = new_site()
    beside(site, "plugins/house_plugin.py", HEARS_OF_NEW)
    beside(site, "include/words.py", "WORD = 'from-include'\n")
    site.write("makes.py", MAKES_ASSETS)
    site.run("variables", "set", "word", "asked")
    site.up_until_idle()
    site.run("dags", "trigger", "makes")
    second = site.up_until_idle()
    site.write("makes.py", MAKES_ASSETS.replace('{"n": 1}', '{"n": 2}'))
    site.run("dags", "trigger", "makes")
    site.up_until_idle()
    logs = {path.name: path.read_text() for path in site.home.glob("logs/listeners/*")}
    heard = {
        name: [line.partition("HEARD ")[2] for line in log.splitlines() if "HEARD" in line]
        for name, log in logs.items()
    }
    assert heard == {
        "on_asset_created.log": [
            "from-include known s3://known/ asset {'n': 1} asked", "from-include unlucky unlucky asset {} asked",
        ],
        "on_asset_alias_created.log": ["found things"],
    }  # fmt: skip
    assert "RuntimeError: a listener's own error" in logs["on_asset_created.log"]
    [failed] = [line for line in second.stderr.splitlines() if "callback.failed" in line]
    assert "unlucky" in failed
    assert "a listener's own error" in failed


HEARS_OF_FILES_AND_COMPONENTS = """
    import os

    from airflow.jobs.job import Job
    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin


    class Listener:
        @hookimpl
        def on_new_dag_import_error(self, filename, stacktrace):
            print("HEARD new", filename, stacktrace.strip().splitlines()[-1])

        @hookimpl
        def on_existing_dag_import_error(self, filename, stacktrace):
            print("HEARD existing", os.path.basename(filename), stacktrace.strip().splitlines()[-1])
            raise RuntimeError("a listener's own error")

        @hookimpl
        def on_starting(self, component):
            assert isinstance(component, Job)
            self.component = component
            print("HEARD start of", component.job_type)
            raise RuntimeError("no such service")

        @hookimpl
        def before_stopping(self, component):
            print("HEARD stop of the same", component is self.component)


    class House(AirflowPlugin):
        name = "house"
        listeners = [Listener()]
"""


def heard_in(site, event):
    """Return what listeners of an event that belongs to no run have printed."""
    path = site.home / "logs" / "listeners" / f"{event}.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition("HEARD ")[2] for line in lines if "HEARD" in line]


READS_LINEAGE = """
    from airflow.lineage.hook import HookLineageReader
    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin


    class Listener:
        @hookimpl
        def on_task_instance_success(self, task_instance):
            found = HookLineageReader().retrieve_hook_lineage()
            print("HEARD", [(one.asset.uri, one.count) for one in found.inputs], found.extra[0].value)


    class House(AirflowPlugin):
        name = "house"
        listeners = [Listener()]
        hook_lineage_readers = [HookLineageReader]
"""
REPORTS_LINEAGE = """
    from airflow.hooks.base import BaseHook
    from airflow.lineage.hook import get_hook_lineage_collector
    from airflow.sdk import DAG, task


    class Hook(BaseHook):
        def read(self, uri):
            get_hook_lineage_collector().add_input_asset(context=self, uri=uri)
            get_hook_lineage_collector().add_extra(self, "query", "SELECT 1")


    with DAG("reports", schedule="@once"):

        @task
        def reads():
            hook = Hook()
            hook.read("s3://shop/orders")
            hook.read("s3://shop/orders")

        reads()
"""


def test_a_plugins_listener_reads_the_lineage_that_hooks_have_reported(new_site):
    site = new_site()
    beside(site, "plugins/house_plugin.py", READS_LINEAGE)
    site.write("reports.py", REPORTS_LINEAGE)
    site.up_until_idle()
    assert "HEARD [('s3://shop/orders', 2)] SELECT 1" in site.run("tasks", "logs", "reports", "latest", "reads").stdout
    [plugin] = site.json("plugins", "list")
    assert "hook_lineage_readers" in plugin["adds"]


def test_listeners_hear_of_files_that_cannot_be_imported(new_site):
    site = new_site()
    beside(site, "plugins/house_plugin.py", HEARS_OF_FILES_AND_COMPONENTS)
    broken = site.write("broken.py", "from airflow.sdk import DAG\n1 / 0\n")
    site.write("ends.py", "import os\nfrom airflow.sdk import DAG\nos._exit(3)\n")
    site.write("works.py", "from airflow.sdk import DAG\nDAG('works', schedule=None)\n")
    site.up_until_idle()
    new = sorted(heard_in(site, "on_new_dag_import_error"))
    assert new[0].startswith(f"new {broken} ZeroDivisionError")
    assert "ended its process with exit code 3" in new[1]
    assert len(new) == 2
    site.write("broken.py", "from airflow.sdk import DAG\nnowhere\n")
    second = site.up_until_idle()
    [existing] = [line for line in heard_in(site, "on_existing_dag_import_error") if "broken.py" in line]
    assert existing.startswith("existing broken.py NameError")
    failed = [line for line in second.stderr.splitlines() if "callback.failed" in line]
    assert any("broken.py" in line and "a listener's own error" in line for line in failed)
    site.write("broken.py", "from airflow.sdk import DAG\n")
    site.up_until_idle()
    assert len(heard_in(site, "on_new_dag_import_error")) == 2
    assert [line for line in heard_in(site, "on_existing_dag_import_error") if "broken.py" in line] == [existing]


def test_listeners_hear_of_a_start_and_a_stop_in_one_process(new_site):
    site = new_site()
    beside(site, "plugins/house_plugin.py", HEARS_OF_FILES_AND_COMPONENTS)
    with site.up() as up:
        site.until(lambda: heard_in(site, "on_starting"), "the start is heard of")
        assert heard_in(site, "before_stopping") == []
        site.until(lambda: "no such service" in up.log, "the listener's error is logged")
    assert heard_in(site, "on_starting") == ["start of SchedulerJob"]
    assert heard_in(site, "before_stopping") == ["stop of the same True"]
    with site.up() as up:
        site.until(lambda: len(heard_in(site, "on_starting")) == 2, "the next start is heard of")
        up.kill()
    assert len(heard_in(site, "before_stopping")) == 1, "a killed scheduler has not stopped"


LIVES_ON = """
    import pathlib, threading, time

    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin

    ANSWER = pathlib.Path(__file__).with_name("answer")


    def answer():
        while not ANSWER.with_name("question").exists():
            time.sleep(0.02)
        ANSWER.touch()


    class Listener:
        @hookimpl
        def on_starting(self, component):
            threading.Thread(target=answer).start()


    class House(AirflowPlugin):
        name = "house"
        listeners = [Listener()]
"""


def test_a_thread_that_a_listener_starts_at_the_start_lives_as_long_as_the_scheduler(new_site):
    site = new_site()
    plugin = beside(site, "plugins/house_plugin.py", LIVES_ON)
    with site.up() as up:
        site.until(lambda: "plugin.loaded" in up.log, "the plugin is loaded")
        plugin.with_name("question").touch()
        site.until(plugin.with_name("answer").exists, "the thread answers")


ZIPPED = """
    from airflow.sdk import DAG, Param, task
    from helper_in_zip import word

    with DAG("zipped", schedule=None, params={"n": Param(3, type="integer", minimum=1), "who": "me"}):

        @task
        def tells(params=None):
            print("FROM THE ZIP", word(), params["n"] + 1, params["who"])

        tells()
"""
SEARCHES = """
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG

    with DAG("searches", schedule=None, template_searchpath=["/no/such/folder", "{include}"]):
        BashOperator(task_id="runs", bash_command="hello.sh")
"""


def test_zipped_dags_search_paths_params_and_ignored_files_work_as_in_airflow(new_site):
    site = new_site()
    beside(site, "airflow.cfg", "[core]\ndag_ignore_file_syntax = regexp\ndags_are_paused_at_creation = False\n")
    with zipfile.ZipFile(site.dags / "packed.zip", "w") as archive:
        archive.writestr("zipped.py", textwrap.dedent(ZIPPED))
        archive.writestr("helper_in_zip.py", "def word():\n    return 'zipped-word'\n")
    beside(site, "include/hello.sh", "echo FOUND {{ dag.dag_id }}\n")
    site.write("searches.py", SEARCHES.replace("{include}", str(site.root / "include")))
    site.write("old/searches.py", SEARCHES.replace('"searches"', '"ignored"'))
    site.write(".airflowignore", r"^old/sea\w+\.py$")
    site.up_until_idle()
    assert sorted(dag["dag_id"] for dag in site.json("dags", "list")) == ["searches", "zipped"]
    refused = site.run("dags", "trigger", "zipped", "--conf", '{"n": 0}', code=1)
    assert "minimum" in refused.stderr
    site.run("dags", "trigger", "zipped", "--conf", '{"n": 5}')
    site.run("dags", "trigger", "searches")
    site.up_until_idle()
    assert "FROM THE ZIP zipped-word 6 me" in site.run("tasks", "logs", "zipped", "latest", "tells").stdout
    assert "FOUND searches" in site.run("tasks", "logs", "searches", "latest", "runs").stdout
