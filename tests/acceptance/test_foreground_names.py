"""Runs in the foreground read the variables and connections that a home has stored, and change none of them."""

import subprocess
import sys

import pytest

from tests.support.up import Site

DATABASES = ("sqlite",)

DAG_FILE = """
from asynsched import DAG, Connection, Param, Variable, task

with DAG("reads", params={"n": Param(1, type="integer")}) as dag:

    @task
    def first():
        print("FIRST HAS RUN")

    @task
    async def reads(params):
        Variable.set("own", "of this run")
        Variable.delete("gone")
        found = [Variable.get("stored"), Variable.get("own"), Variable.get("gone", default="deleted")]
        assert (Variable.keys(), Variable.keys("st")) == (["own", "stored"], ["stored"])
        print("FOUND", *found, Variable.get("never", default="none"), Connection.get("db").password, params["n"])

    @task
    def many():
        return [1, 2, 3]

    @task
    def each(n):
        from airflow.exceptions import AirflowSkipException
        from asynsched import AsynschedSkipException

        assert AirflowSkipException is AsynschedSkipException

    first() >> reads()
    each.expand(n=many())

if __name__ == "__main__":
    print("STATE", dag.test(run_conf={"n": 5}).state)
"""
FOUND = "FOUND its value of this run deleted none hunter22 5"


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    site = new_site()
    site.write("reads.py", DAG_FILE)
    site.run("variables", "set", "stored", "its value")
    site.run("variables", "set", "gone", "still there")
    site.run("connections", "add", "db", "--conn-uri", "postgres://me:hunter22@db.example/shop")
    return site


def test_dags_test_asks_its_command_for_names(site):
    tested = site.run("dags", "test", "reads", "--conf", '{"n": 5}')
    assert FOUND in tested.stderr
    assert {row["key"]: row["value"] for row in site.json("variables", "list")}.keys() == {"stored", "gone"}


def test_settings_hold_in_the_foreground_too(site, monkeypatch):
    monkeypatch.setitem(site.env, "ASYNSCHED_MAX_MAP_LENGTH", "2")
    by_command = site.run("dags", "test", "reads", code=1)
    command = [sys.executable, str(site.dags / "reads.py")]
    by_program = subprocess.run(command, env=site.environment, capture_output=True, text=True, check=False, timeout=60)
    assert "max_map_length = 2 allows" in by_command.stderr
    assert "max_map_length = 2 allows" in by_program.stderr


def test_a_conf_that_does_not_fit_is_refused_before_anything_runs(site):
    refused = site.run("dags", "test", "reads", "--conf", '{"n": "five"}', code=1)
    assert "FIRST HAS RUN" not in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "reads.py: the conf of DAG 'reads': param 'n': 'five' is not of type 'integer'" in refused.stderr


def test_a_program_of_ones_own_reads_the_home_that_its_environment_names(site):
    command = [sys.executable, str(site.dags / "reads.py")]
    ran = subprocess.run(command, env=site.environment, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout.splitlines() == ["FIRST HAS RUN", FOUND, "STATE success"], ran.stderr
    no_home = {name: value for name, value in site.environment.items() if not name.startswith("ASYNSCHED_")}
    alone = subprocess.run(command, env=no_home, capture_output=True, text=True, check=False, timeout=60)
    assert alone.stdout.splitlines() == ["FIRST HAS RUN", "STATE failed"]
    assert "there is no variable 'stored'" in alone.stderr


LOGGING = """
    import logging
    from asynsched import DAG, task

    with DAG("logs"):

        @task
        def says():
            logging.getLogger("mine").info("said by the file")

        says()
"""


def test_dags_test_shows_what_the_file_itself_logs(new_site):
    site = new_site()
    site.write("logs.py", LOGGING)
    assert "INFO    mine: said by the file" in site.run("dags", "test", "logs").stderr
