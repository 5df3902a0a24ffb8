"""Commands about what is stored of DAGs and runs: versions, sources, notes, deadlines, the audit, deletions."""

import pytest

from tests.support.up import Site

DATABASES = ("postgresql",)

DAG = """
    from datetime import datetime, timedelta

    from asynsched import AsyncCallback, DAG, BashOperator, DeadlineAlert, DeadlineReference, EmptyOperator

    async def tell():
        pass

    with DAG(
        "etl", schedule=None, default_args={"owner": "ada"},
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(days=1), callback=AsyncCallback(tell),
            name="daily",
        ),
    ):
        load = BashOperator(task_id="load", bash_command="echo {{ run_id }}")
"""
NEWER = '        load >> EmptyOperator(task_id="check")\n'


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    """Two versions of a DAG, and two runs."""
    site = new_site()
    site.write("etl.py", DAG)
    site.run("dags", "trigger", "etl", "--run-id", "first", "--note", "by hand")
    site.up_until_idle()
    site.write("etl.py", DAG + NEWER)
    site.run("dags", "reparse", "etl")
    return site


def test_versions_and_their_sources_are_shown(site):
    assert [version["number"] for version in site.json("dags", "versions", "etl")] == [2, 1]
    assert site.run("dags", "source", "etl").stdout == (site.dags / "etl.py").read_text()
    old = site.json("dags", "source", "etl", "--number", "1")
    assert (old["number"], "check" in old["text"], old["is_cut"]) == (1, False, False)
    assert "no version '3'" in site.run("dags", "source", "etl", "--number", "3", code=1).stderr
    assert [dag["dag_id"] for dag in site.json("dags", "list", "--owner", "ada", "--owner", "bob")] == ["etl"]
    assert site.json("dags", "list", "--owner", "bob") == []


def test_runs_and_tasks_are_noted(site):
    assert site.json("runs", "show", "etl", "first")["note"] == "by hand"
    site.run("runs", "note", "etl", "first", "checked")
    site.run("tasks", "note", "etl", "first", "load", "slow")
    assert site.json("runs", "list", "etl")[0]["note"] == "checked"
    assert [task["note"] for task in site.json("tasks", "list", "etl", "first")] == ["slow"]
    assert "has no note" in site.run("tasks", "note", "etl", "first", "load", "").stdout
    assert [task["note"] for task in site.json("tasks", "list", "etl", "first")] == [None]
    assert "at most 1000 characters" in site.run("runs", "note", "etl", "first", "?" * 1001, code=1).stderr
    acts = {act["action"] for act in site.json("audit", "list", "etl", "latest")}
    assert acts == {"dag.trigger", "run.note", "task.note"}
    assert site.json("audit", "list", "etl", "other") == []


def test_deadlines_and_rendered_templates_are_listed(site):
    [deadline] = site.json("deadlines", "list", "etl", "latest")
    assert (deadline["run_id"], deadline["name"], deadline["state"]) == ("first", "daily", "met")
    assert site.json("deadlines", "list", "--state", "missed") == []
    rendered = site.json("tasks", "rendered", "etl", "first", "load")
    assert {"field": "bash_command", "value": "echo first"} in rendered
    told = site.run("tasks", "rendered", "etl", "first", "load", "--try", "7").stderr
    assert "Try 7 has no rendered template" in told


def test_xcoms_are_written_and_deleted(site):
    for value, shown in (('{"rows": 5}', {"rows": 5}), ('"text"', "text")):
        site.run("tasks", "set-xcom", "etl", "first", "load", "of/key", value)
        stored = {one["key"]: one["value"] for one in site.json("tasks", "xcom", "etl", "first", "load")}
        assert stored["of/key"] == shown
    assert "it is not JSON" in site.run("tasks", "set-xcom", "etl", "first", "load", "k", "text", code=2).stderr
    site.run("tasks", "delete-xcom", "etl", "first", "load", "of/key")
    assert "no XCom 'of/key'" in site.run("tasks", "delete-xcom", "etl", "first", "load", "of/key", code=1).stderr


def test_lines_of_a_log_are_shown_by_number_and_from_its_end(site):
    [log] = (site.home / "logs").rglob("attempt=1.log")
    written = log.read_text()
    log.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    logs = ("tasks", "logs", "etl", "first", "load")
    for options, numbers in (
        (("--tail", "2"), [29, 30]), (("--lines", "3:4"), [3, 4]), (("--lines", "30:"), [30]), (("--lines", "7"), [7]),
        (("--tail", "1", "--follow"), [30]),
    ):  # fmt: skip
        assert site.run(*logs, *options).stdout == "".join(f"line {n}\n" for n in numbers), options
    assert site.json(*logs, "--tail", "1")["log"] == "line 30\n"
    assert "not of the form" in site.run(*logs, "--lines", "4:3", code=2).stderr
    assert "leave out --tail" in site.run(*logs, "--lines", "4", "--tail", "3", code=2).stderr
    assert site.run(*logs, "--find", "LINE 2").stdout == "".join(f"line {n}\n" for n in (2, *range(20, 30)))
    assert site.json(*logs, "--find", "line 2")[0] == {"start": len("line 1\n"), "text": "line 2"}
    nothing = site.run(*logs, "--find", "lime")
    assert (nothing.stdout, nothing.stderr) == ("", "No line of the log has the text 'lime'.\n")
    assert "searches a whole log" in site.run(*logs, "--find", "line", "--tail", "3", code=2).stderr
    log.write_text(written)


def test_a_connection_is_changed_in_part(site):
    site.run("connections", "add", "shop", "--conn-type", "http", "--conn-host", "a", "--conn-password", "hunter22")
    site.run("connections", "change", "shop", "--conn-host", "b", "--conn-port", "81")
    shown = site.json("connections", "get", "shop")
    assert (shown["host"], shown["port"], shown["password"]) == ("b", 81, "***")
    assert "Name a part" in site.run("connections", "change", "shop", code=2).stderr
    assert "no connection" in site.run("connections", "change", "none", "--conn-host", "b", code=1).stderr


def test_queued_events_are_listed_and_forgotten_and_tags_listed(site):
    site.write("waits.py", """
        from asynsched import DAG, Asset, EmptyOperator

        with DAG("waits", schedule=Asset("orders") & Asset("never"), tags=["b", "a"]):
            EmptyOperator(task_id="see")
    """)  # fmt: skip
    site.run("dags", "reparse", "waits.py")
    site.run("assets", "event", "orders")
    [queued] = site.json("assets", "queued", "waits")
    [orders] = (one for one in site.json("assets", "list") if one["name"] == "orders")
    assert (queued["dag_id"], queued["asset_id"]) == ("waits", orders["id"])
    assert "orders" in site.run("assets", "queued").stdout
    assert "1 event is no longer queued" in site.run("assets", "unqueue", "waits", "orders").stdout
    assert site.json("assets", "queued") == []
    assert "no queued event" in site.run("assets", "unqueue", "waits", code=1).stderr
    assert site.json("dags", "tags") == ["a", "b"]


def test_a_run_is_deleted_with_its_logs_and_a_dag_once_its_file_is_gone(site):
    site.run("dags", "trigger", "etl", "--run-id", "second")
    [log] = (site.home / "logs").rglob("attempt=1.log")
    assert "give --yes" in site.run("runs", "delete", "etl", "first", code=1).stderr
    site.run("runs", "delete", "etl", "first", "--yes")
    assert [run["run_id"] for run in site.runs("etl")] == ["second"]
    assert not log.exists()
    assert "remove it from there" in site.run("dags", "delete", "etl", "--yes", code=1).stderr
    (site.dags / "etl.py").unlink()
    site.up_until_idle()
    site.run("dags", "delete", "etl", "--yes")
    assert "There is no DAG 'etl'" in site.run("runs", "list", "etl", code=1).stderr
