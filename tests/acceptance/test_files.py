"""A scheduler serves while its folder changes: it knows the saved state moments later."""

import re
import subprocess
import zipfile
from textwrap import dedent
from typing import Any

import pytest

from tests.support.up import Site, Up

DATABASES = ("sqlite",)

DAG_FILE = """
    from asynsched import DAG, EmptyOperator

    with DAG("{dag_id}"):
        EmptyOperator(task_id="{task_id}")
"""


@pytest.fixture(scope="module")
def served(new_site) -> Any:
    """Yield a site and its running scheduler."""
    site = new_site()
    with site.up() as up:
        yield site, up


@pytest.fixture
def site(served: tuple[Site, Up]) -> Site:
    return served[0]


def dag_ids(site: Site) -> set[str]:
    return {dag["dag_id"] for dag in site.json("dags", "list")}


def tasks_of(site: Site, dag_id: str) -> list[str]:
    """Return the tasks of a DAG; none while it is not known."""
    shown = site.run("dags", "show", dag_id, "--output", "json", code=None)
    return sorted(task["task_id"] for task in shown.json["tasks"]) if shown.code == 0 else []


def errors_of(site: Site, file: str) -> list[dict[str, Any]]:
    return [error for error in site.json("dags", "errors") if error["file"] == file]


def test_files_of_windows_editors_mean_the_same_as_others(new_site):
    """They begin with a byte order mark, and their lines end with CR LF."""
    site = new_site()
    for name in ("read", "ignored", "also_ignored"):
        write_dag(site, f"{name}.py", name)
    site.write(".airflowignore", "ignored.py\nalso_ignored.py\n")
    written = {
        "variables.json": '{"here": "a value"}',
        "connections.json": '{"there": "http://host"}',
        "airflow.cfg": "[core]\nparallelism = 7\n",
    }
    for name, text in written.items():
        (site.root / name).write_text(text)
    for path in (*site.dags.glob("*.py"), site.dags / ".airflowignore", *(site.root / name for name in written)):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert "7 at once" in site.up_until_idle().stderr
    assert dag_ids(site) == {"read"}
    assert site.json("dags", "errors") == []
    for kind in ("variables", "connections"):
        site.run(kind, "import", str(site.root / f"{kind}.json"))
        with (site.root / f"{kind}.json").open("rb") as file:
            command = site.command(kind, "import", "-")
            subprocess.run(command, env=site.environment, cwd=site.root, stdin=file, check=True, capture_output=True)
    assert site.json("variables", "get", "here")["value"] == "a value"
    assert [one["conn_id"] for one in site.json("connections", "list")] == ["there"]


def write_dag(site: Site, file: str, dag_id: str, task_id: str = "only") -> None:
    site.write(file, DAG_FILE.format(dag_id=dag_id, task_id=task_id))


def test_new_edited_moved_and_deleted_files_are_followed(site):
    write_dag(site, "team/first.py", "first")
    site.until(lambda: "first" in dag_ids(site), "the new file's DAG is known")
    write_dag(site, "team/first.py", "first", "renamed")
    site.until(lambda: tasks_of(site, "first") == ["renamed"], "the edit is known")
    (site.dags / "team" / "first.py").rename(site.dags / "moved.py")
    site.until(
        lambda: [dag["file"] for dag in site.json("dags", "list") if dag["dag_id"] == "first"] == ["moved.py"],
        "the DAG has moved to the other file",
    )
    site.run("dags", "trigger", "first", "--run-id", "kept", "--wait")
    (site.dags / "moved.py").unlink()
    site.until(lambda: "first" not in dag_ids(site), "the DAG has gone with its file")
    assert [run["run_id"] for run in site.json("runs", "list", "first")] == ["kept"]


def test_an_atomic_save_and_a_renamed_folder_are_followed(site):
    write_dag(site, "atomic.py", "atomic", "before")
    site.until(lambda: "atomic" in dag_ids(site), "the DAG is known")
    (site.dags / ".atomic.py.swp").write_text(dedent(DAG_FILE.format(dag_id="atomic", task_id="after")))
    (site.dags / ".atomic.py.swp").replace(site.dags / "atomic.py")
    site.until(lambda: tasks_of(site, "atomic") == ["after"], "the atomic save is known")
    write_dag(site, "folder/inside.py", "inside")
    site.until(lambda: "inside" in dag_ids(site), "the nested DAG is known")
    (site.dags / "folder").rename(site.dags / "other")
    site.until(
        lambda: {dag["file"] for dag in site.json("dags", "list") if dag["dag_id"] == "inside"} == {"other/inside.py"},
        "the DAG has moved with its folder",
    )


def test_editing_a_helper_reparses_the_files_that_import_it(site):
    site.write("helper.py", "NAME = 'one'\n")
    site.write(
        "user.py",
        """
        import helper
        from asynsched import DAG, EmptyOperator

        with DAG("user"):
            EmptyOperator(task_id=helper.NAME)
        """,
    )
    site.until(lambda: "user" in dag_ids(site), "the DAG is known")
    assert tasks_of(site, "user") == ["one"]
    site.write("helper.py", "NAME = 'two'\n")
    site.until(lambda: tasks_of(site, "user") == ["two"], "the helper's edit has reached the DAG")


def test_a_file_that_stops_parsing_keeps_its_last_good_version(site):
    write_dag(site, "fragile.py", "fragile")
    site.until(lambda: "fragile" in dag_ids(site), "the DAG is known")
    site.write("fragile.py", "from asynsched import DAG\n\nwith DAG('fragile'\n")
    site.until(lambda: errors_of(site, "fragile.py"), "the error is known")
    [error] = errors_of(site, "fragile.py")
    assert (error["kind"], error["line"]) == ("syntax", 3)
    assert tasks_of(site, "fragile") == ["only"]
    [dag] = [dag for dag in site.json("dags", "list") if dag["dag_id"] == "fragile"]
    assert dag["has_errors"] is True
    site.run("dags", "trigger", "fragile", "--wait")
    write_dag(site, "fragile.py", "fragile", "mended")
    site.until(lambda: tasks_of(site, "fragile") == ["mended"], "the mended file is known")
    assert errors_of(site, "fragile.py") == []


def test_a_parse_that_takes_long_is_told_of_wherever_somebody_may_wonder(served):
    site, up = served
    write_dag(site, "patient.py", "patient")
    site.until(lambda: "patient" in dag_ids(site), "the DAG is known")
    waits = (
        "import time\nfrom pathlib import Path\nwhile not Path(__file__).with_name('gate').exists(): time.sleep(0.01)\n"
    )
    site.write("patient.py", waits + dedent(DAG_FILE.format(dag_id="patient", task_id="late")))
    site.until(lambda: "file=patient.py limit_seconds=30.0 seconds=2" in up.log, "the long parse is reported")
    told = r"patient\.py is being parsed, for \d+ s so far; limit 30 s"
    assert re.search(told, site.run("dags", "errors").stderr)
    assert re.search(f"- parse: {told}", site.run("why", "patient").stdout)
    assert re.search(told, site.run("dags", "show", "unknown", code=1).stderr)
    assert re.search("patient\\.py is being parsed, for", site.run("check", "--live").stderr)
    (site.dags / "gate").touch()
    site.until(lambda: tasks_of(site, "patient") == ["late"], "the parse has ended")
    assert "is being parsed" not in site.run("dags", "errors").stderr


def test_archives_are_read_and_ignored_files_are_not(site):
    with zipfile.ZipFile(site.root / "packed.zip", "w") as archive:
        archive.writestr("zipped.py", dedent(DAG_FILE.format(dag_id="zipped", task_id="only")))
    (site.root / "packed.zip").replace(site.dags / "packed.zip")
    site.until(lambda: "zipped" in dag_ids(site), "the archive's DAG is known")
    site.write(".asynschedignore", "ignored*.py\n")
    write_dag(site, "ignored_file.py", "ignored")
    write_dag(site, "not_ignored.py", "not_ignored")
    site.until(lambda: "not_ignored" in dag_ids(site), "the file beside it is known")
    assert "ignored" not in dag_ids(site)
    site.write(".asynschedignore", "")
    site.until(lambda: "ignored" in dag_ids(site), "a file that is no longer ignored is known")


def test_a_file_that_moves_in_with_a_thousand_others_is_found(site):
    for number in range(40):
        write_dag(site, f"../checkout/dag_{number}.py", f"checked_out_{number}")
    for number in range(960):
        (site.root / "checkout" / f"module_{number}.py").write_text(f"VALUE = {number}\n")
    (site.root / "checkout").rename(site.dags / "checkout")
    expected = {f"checked_out_{number}" for number in range(40)}
    site.until(lambda: expected <= dag_ids(site), "every DAG of the new folder is known", seconds=60)


def test_a_file_deleted_while_it_is_parsed_leaves_no_error(site):
    path = site.write("fleeting.py", "import time\nfrom asynsched import DAG\ntime.sleep(1)\nDAG('fleeting')\n")
    site.until(lambda: list(site.home.glob("tmp/parse-*")), "its parse has begun")
    path.unlink()
    site.until(lambda: not list(site.home.glob("tmp/parse-*")), "it has ended")
    write_dag(site, "lasting.py", "lasting")
    site.until(lambda: "lasting" in dag_ids(site), "a file saved afterwards is known")
    assert errors_of(site, "fleeting.py") == []
    assert "fleeting" not in dag_ids(site)


def test_a_dag_id_of_two_files_stays_with_the_first_until_that_goes(site):
    write_dag(site, "owner.py", "contested", "first")
    site.until(lambda: "contested" in dag_ids(site), "the DAG is known")
    write_dag(site, "rival.py", "contested", "second")
    site.until(lambda: errors_of(site, "rival.py"), "the rival's error is known")
    [error] = errors_of(site, "rival.py")
    assert "contested" in error["message"]
    assert "owner.py" in error["message"]
    assert tasks_of(site, "contested") == ["first"]
    (site.dags / "owner.py").unlink()
    site.until(lambda: tasks_of(site, "contested") == ["second"], "the rival has taken the DAG over")


def test_a_dag_stays_with_the_file_that_makes_it_while_another_file_imports_it(site):
    write_dag(site, "lender.py", "lent")
    site.until(lambda: "lent" in dag_ids(site), "the DAG is known")
    site.write("borrower.py", "import lender\n" + dedent(DAG_FILE.format(dag_id="borrows", task_id="only")))
    site.until(lambda: "borrows" in dag_ids(site), "the file that imports it is known")

    def file_of_lent() -> str:
        return {dag["dag_id"]: dag["file"] for dag in site.json("dags", "list")}.get("lent", "")

    assert (file_of_lent(), errors_of(site, "borrower.py")) == ("lender.py", [])
    site.write(".asynschedignore", "lender.py\n")
    site.until(lambda: file_of_lent() == "borrower.py", "the file that still imports it has the DAG")
    site.write(".asynschedignore", "")
    site.until(lambda: file_of_lent() == "lender.py", "the file that makes it has it again")
    assert errors_of(site, "lender.py") == []


def test_nothing_is_parsed_again_by_a_start_that_finds_nothing_new(site, served):
    served[1].interrupt()
    assert served[1].wait() == 0
    known = dag_ids(site)
    ended = site.up_until_idle("--log-format", "json")
    assert "file.parsed" not in ended.stderr
    assert dag_ids(site) == known
