"""DAG files read stored variables and connections at their top level, and follow their changes."""

import json

import pytest
from cryptography.fernet import Fernet

from tests.support.up import Site

LOADS = """
    import json
    from airflow.sdk import DAG, Variable, task

    with DAG("loads", schedule=None):
        for table in json.loads(Variable.get("tables", default='["none"]')):

            @task(task_id=f"load_{table}")
            def load(name=table):
                return f"{name} {Variable.get('word', 'nothing')}"

            load()
"""
SETS = """
    from airflow.sdk import DAG, Variable, task

    with DAG("sets", schedule=None):

        @task
        def sets():
            Variable.set("tables", ["by", "a", "task"], serialize_json=True)

        sets()
"""
CONNECTS = """
    from airflow.sdk import DAG, Connection

    warehouse = Connection.get("warehouse")
    print("the password is", warehouse.password)
    with DAG("connects", schedule=None, tags=[warehouse.host]):
        raise RuntimeError(f"{warehouse.password} is wrong")
"""
REFUSED = """
    from airflow.sdk import DAG, Variable

    word = Variable.get("{name}")
    dag = DAG("{name}", schedule=None)
"""


on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], scope="module")
"""For tests in which the database does not matter."""


@pytest.fixture
def site(new_site):
    site = new_site()
    site.env["ASYNSCHED_FERNET_KEY"] = Fernet.generate_key().decode()
    return site


def set_elsewhere(site, name, value):
    """Set a variable by a command of another home, if the database can be shared."""
    other = Site(site.root / "elsewhere", site.database, site.env) if site.database else site
    other.run("variables", "set", name, value)


def tables_of(site):
    return {task["task_id"].removeprefix("load_") for task in site.json("dags", "show", "loads")["tasks"]}


def wait_for_tables(site, *tables):
    site.until(lambda: tables_of(site) == set(tables), f"the tables are {tables}")


def test_a_dag_follows_a_variable_however_it_changes(site, tmp_path):
    site.write("loads.py", LOADS)
    site.write("sets.py", SETS)
    site.env["ASYNSCHED_WATCH__RECONCILE_INTERVAL"] = "1000"  # each scan looks for changes as well
    with site.up():
        site.wait_for_dag("loads")
        wait_for_tables(site, "none")
        set_elsewhere(site, "tables", '["a", "b"]')
        wait_for_tables(site, "a", "b")
        (tmp_path / "variables.json").write_text(json.dumps({"tables": '["c"]', "word": "hello"}))
        site.run("variables", "import", str(tmp_path / "variables.json"))
        wait_for_tables(site, "c")
        site.run("dags", "trigger", "loads", "--wait")
        assert "c hello" in site.run("tasks", "xcom", "loads", "latest", "load_c").stdout
        site.run("dags", "trigger", "sets", "--wait")
        wait_for_tables(site, "by", "a", "task")
        site.run("variables", "delete", "tables")
        wait_for_tables(site, "none")
    assert site.json("dags", "show", "loads")["reads"] == ["variable tables"]
    site.run("variables", "set", "tables", '["while", "nobody", "served"]')
    assert "file=loads.py" in site.up_until_idle().stderr
    assert tables_of(site) == {"while", "nobody", "served"}
    assert "file.parsed" not in site.up_until_idle().stderr


@on_sqlite
def test_settings_decide_what_a_parse_may_read(site):
    site.run("connections", "add", "warehouse", "--conn-uri", "postgres://me:hunter22@db/sales")
    site.write("connects.py", CONNECTS)
    site.write("other.py", REFUSED.format(name="other"))
    site.write("team.py", REFUSED.format(name="team_word"))
    site.env["ASYNSCHED_PARSE__VARIABLES"] = "team_*"
    site.up_until_idle()
    errors = {error["file"]: error["message"] for error in site.json("dags", "errors")}
    assert "connects.py:4: SupervisorError: the connection 'warehouse' may not be read" in errors["connects.py"]
    assert "the setting parse.connections allows none; add 'warehouse' to it" in errors["connects.py"]
    assert "other.py:4: SupervisorError: the variable 'other' may not be read while a DAG" in errors["other.py"]
    assert "the setting parse.variables allows only 'team_*'; add 'other' to it" in errors["other.py"]
    assert "team.py:4: AsynschedNotFoundException: there is no variable 'team_word': set it" in errors["team.py"]

    site.env["ASYNSCHED_PARSE__CONNECTIONS"] = "ware*"
    site.run("variables", "set", "team_word", "hello")
    site.up_until_idle()
    [connects, other] = sorted(site.json("dags", "errors"), key=lambda error: error["file"])
    assert (connects["file"], other["file"]) == ("connects.py", "other.py")
    shown = json.dumps(connects)
    assert "*** is wrong" in shown
    assert "the password is ***" in shown
    assert "hunter22" not in site.story() + shown


@on_sqlite
def test_a_file_that_has_read_a_changed_option_is_parsed_again(site):
    site.write(
        "option.py",
        """
        from airflow.configuration import conf
        from airflow.sdk import DAG

        dag = DAG("option", schedule=None, tags=[conf.get("email", "email_conn_id")])
        """,
    )
    site.write("other.py", "from airflow.sdk import DAG\ndag = DAG('other', schedule=None)\n")
    site.up_until_idle()
    site.env["AIRFLOW__EMAIL__EMAIL_CONN_ID"] = "me"
    log = site.up_until_idle().stderr
    assert ("file=option.py" in log, "file=other.py" in log) == (True, False)
    assert site.json("dags", "show", "option")["tags"] == ["me"]


@on_sqlite
def test_the_foreground_and_a_simulation_read_variables_at_the_top_level(site):
    site.write("loads.py", LOADS)
    site.run("variables", "set", "tables", '["a"]')
    site.up_until_idle()
    tested = site.run("dags", "test", "loads")
    assert "load_a" in tested.stdout + tested.stderr
    simulated = site.run("simulate", str(site.dags), "--from", "2026-01-01", "--to", "2026-01-02")
    assert "Left out" not in simulated.stderr


@on_sqlite
def test_a_simulation_without_a_database_makes_none_and_finds_no_variable(site):
    site.write("loads.py", LOADS)
    span = ("--from", "2026-01-01", "--to", "2026-01-02")
    for has_home in (False, True):
        if has_home:
            site.home.mkdir(exist_ok=True)
        assert "Left out" not in site.run("simulate", str(site.dags), *span).stderr
        assert not (site.home / "asynsched.db").exists()
