"""Decent DAG files: their rights while they are parsed, and their reports."""

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import TEMPLATE
from sandbox.sources.local_imports import DAG_MODULE_PREFIX
from tests.integration.sandbox.conftest import Parser
from tests.unit.authoring.dag_files import PENDULUM


def test_report_has_the_dags_their_versions_and_the_output(parse: Parser) -> None:
    parsed = parse(
        """
        import sys
        from asynsched import DAG, EmptyOperator
        print("to standard output")
        print("to standard error", file=sys.stderr)
        with DAG("first", schedule="@daily"):
            EmptyOperator(task_id="x") >> EmptyOperator(task_id="y")
        second = DAG("second")
        """
    )
    assert parsed.exit_code == 0
    assert parsed.dag_ids == ["first", "second"]
    assert [task.task_id for task in parsed.report.dags[0].dag.tasks] == ["x", "y"]
    assert parsed.lines == ["to standard output", "to standard error"]
    assert parsed.report.path == "dag.py"
    assert parsed.report.duration > 0


def test_local_modules_are_recorded_and_others_are_not(parse: Parser) -> None:
    parse.write("from .tables import NAME\n", "shared/__init__.py")
    parse.write("from ..plain import VALUE\nNAME = 'n'\n", "shared/tables/__init__.py")
    parse.write("VALUE = 1\n", "shared/plain.py")
    parse.write("VALUE = 2\n", "spaces/inner/module.py")
    parse.write("raise SystemExit('never imported')\n", "json.py")
    parsed = parse(
        """
        import json
        import spaces.inner.module
        from shared import NAME
        print(json.dumps(NAME))
        """,
        name="team/dag.py",
    )
    assert parsed.lines == ['"n"']
    main, *rest = parsed.report.sources
    assert main.path == "team/dag.py"
    assert main.module.startswith(DAG_MODULE_PREFIX)
    assert [(source.path, source.module) for source in rest] == [
        ("spaces/inner/module.py", "spaces.inner.module"),
        ("shared/__init__.py", "shared"),
        ("shared/tables/__init__.py", "shared.tables"),
        ("shared/plain.py", "shared.plain"),
    ]
    assert main.content_hash == hashlib.sha256((parse.dags / "team" / "dag.py").read_bytes()).hexdigest()
    assert not list(parse.dags.rglob("__pycache__"))


def test_sources_are_known_of_a_file_that_dies(parse: Parser) -> None:
    parse.write("import os\nos._exit(7)\n", "deadly.py")
    parsed = parse("import deadly\n")
    assert parsed.error.kind == "exit"
    assert [source.path for source in parsed.report.sources] == ["dag.py", "deadly.py"]


def test_what_libraries_do_at_import_works(parse: Parser) -> None:
    (parse.dags / "rows.csv").write_text("a,b\n1,2\n")
    parsed = parse(
        """
        import asyncio, concurrent.futures, csv, multiprocessing, os, pathlib, shutil, socket, sqlite3, ssl, subprocess
        import sys, tempfile, threading, zoneinfo
        here = pathlib.Path(__file__).parent
        print(list(csv.reader(open(here / "rows.csv"))), sorted(path.name for path in here.iterdir()))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(abs, range(8))))
        print(subprocess.run(["true"]).returncode, subprocess.check_output([sys.executable, "-c", "print(5)"]))
        try:
            subprocess.run(["sleep", "100"], timeout=0.05)
        except subprocess.TimeoutExpired:
            print("its own child can be killed")
        print(asyncio.run(asyncio.sleep(0, "loop")))
        with tempfile.TemporaryDirectory() as folder:
            database = sqlite3.connect(f"{folder}/x.db")
            database.execute("create table t (x)")
            database.close()
        print(pathlib.Path.cwd() == pathlib.Path.home() == pathlib.Path(tempfile.gettempdir()))
        pathlib.Path("kept").write_text("x")
        print(zoneinfo.ZoneInfo("Europe/Berlin"), bool(ssl.create_default_context().get_ca_certs()))
        print(os.sched_getaffinity(0) != set(), open("/proc/self/status").read(5), open("/proc/meminfo").read(3))
        """
    )
    assert parsed.lines == [
        "[['a', 'b'], ['1', '2']] ['dag.py', 'rows.csv']",
        "28",
        "0 b'5\\n'",
        "its own child can be killed",
        "loop",
        "True",
        "Europe/Berlin True",
        "True Name: Mem",
    ]
    assert not list(parse.scratch.iterdir())


def test_a_file_that_is_parsed_by_hand_has_a_temporary_folder_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "dag.py"
    file.write_text(
        "import pathlib, tempfile\n"
        "print(pathlib.Path(tempfile.gettempdir()) == pathlib.Path.cwd())\n"
        "tempfile.TemporaryFile().close()\n"
    )
    by_hand = [sys.executable, "-P", "-m", "sandbox.parse", str(file)]
    report = decode_report(subprocess.run(by_hand, stdout=subprocess.PIPE, timeout=60, check=True).stdout)
    assert report.output == "True\n"


def test_naive_dates_get_the_default_zone(parse: Parser) -> None:
    parsed = parse(
        "from datetime import datetime\n"
        "from zoneinfo import ZoneInfo\n"
        "from asynsched import DAG, EmptyOperator\n"
        "a = DAG('a', start_date=datetime(2026, 1, 1))\n"
        "aware = datetime(2026, 1, 1, tzinfo=ZoneInfo('Asia/Tokyo'))\n"
        "with DAG('b', start_date=aware, end_date=datetime(2026, 2, 1), default_args={'end_date': '2026-03-01'}):\n"
        "    EmptyOperator(task_id='t', start_date=datetime(2026, 1, 2))\n",
        default_timezone="Europe/Berlin",
    )
    first, second = sorted((record.dag for record in parsed.report.dags), key=lambda dag: dag.dag_id)
    assert (first.timezone, first.start_date.isoformat()) == ("Europe/Berlin", "2025-12-31T23:00:00+00:00")
    assert (second.timezone, second.end_date.isoformat()) == ("Asia/Tokyo", "2026-01-31T23:00:00+00:00")
    # As in Airflow, a DAG's own zone holds for the texts in its default_args alone.
    (task,) = second.tasks
    assert task.start_date.isoformat() == "2026-01-01T23:00:00+00:00"
    assert task.end_date.isoformat() == "2026-02-28T15:00:00+00:00"


def test_unknown_default_zone_is_an_error_and_runs_nothing(parse: Parser) -> None:
    parsed = parse("print('ran')", default_timezone="Moon/Base")
    assert "Moon/Base" in parsed.error.message
    assert parsed.report.output == ""


FORGOTTEN = """
from asynsched import dag, task
from elsewhere import imported

@dag
def first(): ...

@dag(schedule="@daily")
def second(): ...
"""


def test_a_file_that_calls_none_of_its_dag_functions_gets_a_warning(parse_once: Parser) -> None:
    parse_once.write("from asynsched import dag\n\n@dag\ndef imported(): ...\n", "elsewhere.py")
    for called, warned in (("", ["first", "second"]), ("second()", []), ("imported()", ["first", "second"])):
        report = parse_once(f"{FORGOTTEN}\n{called}\n").report
        assert [(warning.kind, warning.line) for warning in report.warnings] == [("doubtful", 5), ("doubtful", 8)][
            : len(warned)
        ]
        assert [warning.message.partition(": ")[2] for warning in report.warnings] == [
            f"{name} is decorated with @dag, but never called, so it makes no DAG: add {name}() below it"
            for name in warned
        ]


@pytest.mark.parametrize(
    ("schedule", "is_warned"),
    [
        ("timedelta(microseconds=1)", True),
        ("DeltaDataIntervalTimetable(timedelta(milliseconds=999))", True),
        ("timedelta(seconds=1)", False),
        ("'* * * * * *'", False),
    ],
)
def test_a_schedule_of_less_than_a_second_is_warned_of(parse_once: Parser, schedule: str, is_warned: bool) -> None:
    report = parse_once(
        "from datetime import timedelta\nfrom asynsched import DAG, DeltaDataIntervalTimetable\n"
        f"d = DAG('d', schedule={schedule})\n"
    ).report
    assert len(report.dags) == 1
    assert [
        (warning.kind, warning.line, "leave a second or more" in warning.message) for warning in report.warnings
    ] == [("doubtful", 3, True)][:is_warned]


def test_arguments_without_effect_are_warned_of_once_for_the_whole_file(parse_once: Parser) -> None:
    report = parse_once(
        "from asynsched import DAG, EmptyOperator, task\n"
        "with DAG('d', default_args={'email': 'a@b.c', 'run_as_user': 'me'}, owner_links={'me': 'https://me'}):\n"
        "    for n in range(3): EmptyOperator(task_id=f'n{n}')\n"
        "    task(sla=3)(lambda: 1).override(task_id='last')()\n"
    ).report
    assert len(report.dags) == 1
    [warning] = report.warnings
    assert warning.kind == "no_effect"
    assert warning.message == (
        "dag.py:2: owner_links, run_as_user, sla have no effect in asynsched: put the link into doc_md; tasks run"
        " as the scheduler's user; let a command change it, such as sudo -u; give the DAG a deadline"
        " (DAG 'd'; DAG 'd', task 'n0'; DAG 'd', task 'n1'; and 2 more)"
    )


def test_warnings_of_the_folder_are_reported_with_their_line(parse: Parser) -> None:
    parsed = parse("import warnings\n\nwarnings.warn('old', DeprecationWarning)\n")
    [warning] = parsed.report.warnings
    assert warning.message == "dag.py:3: DeprecationWarning: old"
    assert warning.line == 3
    assert parsed.exit_code == 0


def test_output_is_cut_and_does_not_block(parse: Parser) -> None:
    parsed = parse("print('x' * 10_000_000)\n", output_bytes=1000)
    assert parsed.report.output == "x" * 1000
    assert not parsed.report.errors


def test_exit_of_a_forked_copy_is_not_the_files_exit(parse: Parser) -> None:
    parsed = parse(
        """
        import os
        from asynsched import DAG
        child = os.fork()
        dag = DAG("from_parent" if child else "from_child")
        if child:
            os.waitpid(child, 0)
        """
    )
    assert parsed.dag_ids == ["from_parent"]


def test_editable_projects_are_importable_and_what_lies_beside_is_not(parse: Parser, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "company").mkdir(parents=True)
    (project / "company" / "__init__.py").write_text("NAME = 'company'\n")
    (project / "secrets").mkdir()
    (project / "secrets" / "key").write_text("secret")
    parse.env = {"PYTHONPATH": str(project)}
    outcomes = parse.outcomes(
        f"""
        import company
        attempt(company.NAME, lambda: None)
        attempt("secrets", lambda: open({str(project / "secrets" / "key")!r}))
        """
    )
    assert outcomes == {"company": "done", "secrets": "EACCES"}


def test_by_hand_one_argument_is_enough(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text("from asynsched import DAG\ndag = DAG('by_hand')\n")
    command = [sys.executable, "-P", "-m", "sandbox.parse", "dag.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert msgspec.json.decode(done.stdout)["dags"][0]["dag"]["dag_id"] == "by_hand"
    assert done.stderr == b""


def test_a_confined_file_may_use_pendulum(parse: Parser) -> None:
    assert parse(PENDULUM).dag_ids == ["pendulums"]


def test_a_file_that_no_process_can_be_forked_from_is_warned_of(parse: Parser) -> None:
    plain = "from asynsched import DAG, task\nwith DAG('d'): task(print)()\n"
    assert parse(f"import numpy\n{plain}").report.warnings == (), "the threads of OpenBLAS know of forks"
    for leaves, what in (
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "a thread running"),
        ("loop = asyncio.new_event_loop()", "a socket or an event loop open"),
    ):
        [warning] = parse(f"import asyncio, threading, time\n{leaves}\n{plain}").report.warnings
        assert warning.kind == TEMPLATE
        assert warning.message == (
            f"dag.py: each of its tasks imports it again, because it leaves {what}; start that in a task"
        )
