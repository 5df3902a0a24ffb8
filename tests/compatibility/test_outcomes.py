"""Verdicts of the command on parses and runs, and its report. Without the package index."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.compatibility.outcomes import (
    Expectations,
    Outside,
    Run,
    Tried,
    expectations,
    observed,
    parse_verdict,
    run_verdict,
)  # fmt: skip
from tests.compatibility.packages import listed, reason
from tests.compatibility.report import read, section, written
from tests.compatibility.trying import last_error

REASONS = Expectations(files={"cloud/*.py": "needs a cloud"}, runs={"away": "needs the network"}, varies={"dice": "x"})
IN_AIRFLOW = {"same": Run("success", {"a": ("success",)}), "dice": Run("success", {"a": ("skipped",)})}


def test_a_file_that_does_not_parse_is_a_failure_unless_there_is_a_reason():
    assert parse_verdict(Tried("a.py"), REASONS).kind == "success"
    assert parse_verdict(Tried("cloud/a.py", ("ImportError",)), REASONS).kind == "expected"
    assert parse_verdict(Tried("a.py", ("ImportError",)), REASONS).kind == "failure"


def test_a_file_that_airflow_refuses_too_needs_something_outside():
    needs = Expectations(outside=[Outside(["x/*.py"], "No module named 'sap'", "needs a library without a wheel")])
    missing = "ModuleNotFoundError: No module named 'sap'"
    assert parse_verdict(Tried("x/a.py", (missing,)), needs).kind == "outside"
    assert parse_verdict(Tried("x/a.py", (missing, "TypeError")), needs).kind == "failure"
    assert parse_verdict(Tried("y/a.py", (missing,)), needs).kind == "failure"
    told, failures = section("p", [Tried("x/a.py", (missing,)), Tried("x/b.py")], needs, {})
    assert (told.counts.parse, told.counts.outside, failures) == (1, 1, [])
    assert "1 of 2 files parse, and 1 need something outside: 100.0 % of" in written([told])


@pytest.mark.parametrize(
    ("dag_id", "run", "kind"),
    [
        ("same", Run("success", {"a": ("success",)}), "as in Airflow"),
        ("same", Run("success", {"a": ("skipped",)}), "failure"),
        ("same", Run("success", {}), "failure"),
        ("same", Run("failed", {"a": ("success",)}), "failure"),
        ("dice", Run("success", {"a": ("success",)}), "as in Airflow"),
        ("dice", Run("failed", {"a": ("success",)}), "failure"),
        ("away", Run("failed"), "expected"),
        ("away", Run("success"), "success"),
        ("unknown", Run("success"), "success"),
        ("unknown", Run("timeout"), "failure"),
    ],
)
def test_a_run_is_held_to_its_end_in_airflow(dag_id, run, kind):
    assert run_verdict(dag_id, run, IN_AIRFLOW.get(dag_id), REASONS).kind == kind


def test_a_run_that_fails_in_airflow_too_ends_as_there():
    failed = Run("failed", {"a": ("failed",)})
    assert run_verdict("a", failed, failed, Expectations()).kind == "as in Airflow"


def test_a_report_is_read_as_it_was_written():
    one, failures = section(
        "core",
        [
            Tried("a.py", runs={"same": IN_AIRFLOW["same"], "away": Run("failed")}),
            Tried("b.py", ("b.py:1: ImportError: cannot import name 'X' from 'airflow.sdk'; a | b\n## no heading",)),
        ],
        REASONS,
        IN_AIRFLOW,
    )
    assert [line.partition(": ")[0] for line in failures] == ["core b.py "]
    two, _ = section("other", [], REASONS, {})
    report = written([one, two])
    assert read(report) == [one, two]
    assert "| `airflow.sdk.X` | 1 |" in report
    assert one.counts.worse_than(one.counts) == ""
    assert two.counts.worse_than(one.counts) == "0 files parse, and 1 did"
    assert one.counts.worse_than(replace(one.counts, failures=0)) == "1 failures, and there were 0"


def test_a_package_index_that_cannot_be_reached_is_said_in_one_line():
    told = "WARNING: Retrying (Retry(total=0 ...)) after connection broken by 'NewConnectionError'\nERROR: No matching"
    assert reason(told) == "the package index cannot be reached, and the package is not in the cache"
    assert reason("x\nerror: metadata-generation-failed\nhint: See above") == "error: metadata-generation-failed"


def test_the_line_that_says_most_about_a_failure_is_the_last_error():
    assert last_error("KeyError: 'a'\nValueError: b\n  done\n") == "ValueError: b"
    assert last_error("  odd\n") == "odd"


def test_the_tables_name_packages_environments_and_dags_that_there_are():
    packages, environments = listed()
    assert expectations().keys() <= packages.keys()
    assert {package.environment for package in packages.values()} == environments.keys()
    assert {beside for package in packages.values() for beside in package.beside} <= packages.keys()
    assert all("==" in package.requirement for package in packages.values())
    assert observed()["example_failed_dag"].state == "failed"


def test_no_file_of_the_tried_packages_is_in_the_project():
    names = {path.name for path in Path(__file__).parent.rglob("*.py")}
    assert not [name for name in names if name.startswith("example_")]
