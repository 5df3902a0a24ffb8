"""Mistakes of a folder's authors: each is told in one clear message, and harms nothing but itself."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.up import Site

DATABASES = ("sqlite",)

HEAD = "from asynsched import DAG, CronTriggerTimetable, EmptyOperator, Param\n"
GOOD = """
from asynsched import DAG, task

@task
def works():
    import json
    return json.dumps({"it": "works"})

with DAG("good", schedule="@once"):
    works()
"""


@dataclass(frozen=True)
class Bad:
    """A file, the kind of its error, and words of the message. `line` is where the author has to look."""

    text: str
    kind: str
    words: tuple[str, ...]
    line: int | None = None


BAD = {
    "syntax.py": Bad(HEAD + "with DAG('x'\n", "syntax", ("never closed",), 2),
    "imports.py": Bad(HEAD + "\nimport no_such_module\n", "import", ("no_such_module",), 3),
    "raises.py": Bad(HEAD + "DAG('half')\n1 / 0\n", "exception", ("ZeroDivisionError",), 3),
    "exits.py": Bad(HEAD + "import sys; sys.exit(5)\n", "exit", ("5",)),
    "leaves.py": Bad(HEAD + "import os; os._exit(6)\n", "exit", ("6",)),
    "segfaults.py": Bad(HEAD + "import ctypes; ctypes.string_at(0)\n", "crash", ("SIGSEGV",)),
    "cycle.py": Bad(
        HEAD + "with DAG('cycle'):\n    a, b = [EmptyOperator(task_id=i) for i in ('aa', 'bb')]\n    a >> b >> a\n",
        "dag", ("cycle", "aa", "bb"),
    ),
    "same_dag.py": Bad(HEAD + "a = DAG('twice')\nb = DAG('twice')\n", "doubtful", ("twice", "line 3 makes another"), 2),
    "same_task.py": Bad(
        HEAD + "with DAG('d1'):\n    EmptyOperator(task_id='t1')\n    EmptyOperator(task_id='t1')\n",
        "dag", ("d1", "t1"), 4,
    ),
    "cron.py": Bad(HEAD + "DAG('bad_cron', schedule='61 * * * *')\n", "dag", ("bad_cron", "61 * * * *"), 2),
    "zone.py": Bad(
        HEAD + "DAG('bad_zone', schedule=CronTriggerTimetable('0 0 * * *', timezone='Mars/Olympus'))\n",
        "dag", ("Mars/Olympus",), 2,
    ),
    "pool.py": Bad(HEAD + "with DAG('d2'):\n    EmptyOperator(task_id='t2', pool=5)\n", "dag", ("t2", "pool"), 3),
    "rule.py": Bad(
        HEAD + "with DAG('d3'):\n    EmptyOperator(task_id='t3', trigger_rule='some_success')\n",
        "dag", ("t3", "some_success", "one_success"), 3,
    ),
    "odd_id.py": Bad(HEAD + "DAG('a/b\\n')\n", "dag", ("a/b",), 2),
    "long_id.py": Bad(HEAD + "DAG('a' * 10_000)\n", "dag", ("250",), 2),
    "params.py": Bad(
        HEAD + "DAG('d4', schedule='@daily', params={'p': Param('x', type='integer')})\n",
        "dag", ("d4", "p", "integer"), 2,
    ),
    "argument.py": Bad(
        HEAD + "with DAG('d5'):\n    EmptyOperator(task_id='t5', retrys=1)\n", "exception", ("retrys",), 3
    ),
    "forgotten.py": Bad(
        "from asynsched import dag\n\n@dag\ndef forgotten(): ...\n", "doubtful", ("never called", "add forgotten()"), 3
    ),
}  # fmt: skip
LIMITS = {
    "ASYNSCHED_PARSE__IMPORT_TIMEOUT": "4",
    "ASYNSCHED_PARSE__TIMEOUT": "8",
    "ASYNSCHED_PARSE__MEMORY_BYTES": str(150 * 1024**2),
    "ASYNSCHED_PARSE__MAX_PROCESSES": "16",
}


def fill(dags: Path) -> None:
    for name, bad in BAD.items():
        (dags / name).write_text(bad.text)
    (dags / "good.py").write_text(dedent(GOOD))
    (dags / "json.py").write_text("raise RuntimeError('the standard library was shadowed')\n")
    (dags / "not_utf8.py").write_bytes(b"# asynsched dag \xff\xfe\n")
    (dags / "no_zip.zip").write_bytes(b"asynsched dag, but no archive")
    (dags / "broken_link.py").symlink_to(dags / "nowhere.py")
    (dags / "ring").mkdir()
    (dags / "ring" / "again").symlink_to(dags / "ring")
    (dags / "folder.py").mkdir()
    os.mkfifo(dags / "pipe.py")
    (dags / "locked.py").write_text(HEAD + "dag = DAG('locked')\n")
    (dags / "locked.py").chmod(0)
    with zipfile.ZipFile(dags / "climbs.zip", "w") as archive:
        archive.writestr("../climbed.py", HEAD + "dag = DAG('climbed')\n")
        archive.writestr("inside.py", HEAD + "dag = DAG('inside')\n")


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    """Return a site whose scheduler has met every bad file once, and has ended well."""
    site = new_site()
    fill(site.dags)
    site.env |= LIMITS
    site.up_until_idle()
    return site


@pytest.fixture(scope="module")
def errors(site: Site) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for error in site.json("dags", "errors"):
        found.setdefault(error["file"], []).append(error)
    return found


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_in_one_clear_message(errors, name):
    bad = BAD[name]
    assert name in errors, f"no error; others: {sorted(errors)}"
    [error] = errors[name]
    assert error["kind"] == bad.kind, error
    assert [word for word in bad.words if word not in error["message"]] == [], error["message"]
    assert "\n" not in error["message"]
    if bad.line is not None:
        assert error["line"] == bad.line, error


def test_no_message_names_its_file_twice(errors):
    told = [error["message"] for name, its in errors.items() for error in its if error["message"].count(name) > 1]
    assert told == []


def test_files_that_are_no_python_are_told_apart(errors):
    assert errors["not_utf8.py"][0]["kind"] in ("syntax", "unreadable")
    assert "UTF-8" in errors["not_utf8.py"][0]["message"]
    assert errors["no_zip.zip"][0]["kind"] == "archive"
    assert (errors["climbs.zip"][0]["kind"], errors["pipe.py"][0]["kind"]) == ("archive", "unreadable")
    assert errors["broken_link.py"][0]["kind"] == "unreadable"
    assert "nowhere.py" in errors["broken_link.py"][0]["message"]
    assert [name for name in errors if name.startswith(("ring", "folder.py"))] == []


def test_a_file_that_its_user_may_not_read_says_so(site, errors):
    if os.access(site.dags / "locked.py", os.R_OK):
        assert "locked" in {dag["dag_id"] for dag in site.json("dags", "list")}
    else:
        assert errors["locked.py"][0]["kind"] == "unreadable"


def test_good_files_among_them_run(site):
    [run] = site.runs("good")
    assert run["state"] == "success"
    assert "good" in {dag["dag_id"] for dag in site.json("dags", "list")}
    assert not (site.root / "climbed.py").exists()


def test_errors_are_told_at_the_terminal_too(site):
    shown = site.run("dags", "errors").stdout
    assert [name for name in BAD if name not in shown] == []
    (site.dags / "syntax.py").write_text("# asynsched dag\n(\n")
    fails = "with DAG('fails', schedule='@once'):\n  BashOperator(task_id='t', bash_command='false')\n"
    site.write("fails.py", f"from asynsched import DAG, BashOperator\n{fails}")
    ended = site.run("up", str(site.dags), "--until-idle", "--fail-on", "errors", code=1)
    assert "syntax.py" in ended.stderr + ended.stdout
    summary = ended.stderr[ended.stderr.index("1 run has ended: 1 failed.") :].splitlines()
    [run] = site.runs("fails")
    assert summary[1].startswith(f"  fails {run['run_id']}: t: ")
    assert summary[2] == f"    asynsched why fails {run['run_id']}"
    assert " DAG files have errors: " in summary[3]
    assert summary[4] == "    asynsched dags errors"
    assert summary[5].startswith("Error: ")
    assert summary[5].endswith(" DAG files have errors (--fail-on errors).")
    assert site.run("dags", "errors").stdout.count("syntax.py") > 0
    told = site.up_until_idle("--home", str(site.home)).stderr
    assert told.splitlines()[-1] == f"    asynsched dags errors --home {site.home}"
    assert "No run has ended." in told


def test_no_scratch_and_no_process_of_a_parse_is_left(site):
    site.assert_nothing_left()
    assert list((site.home / "tmp").iterdir()) == []
