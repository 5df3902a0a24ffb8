"""Functions that are called in another Python, or in a virtual environment."""

import os
import sys
from pathlib import Path

import pytest

from asynsched import (
    DAG,
    BranchExternalPythonOperator,
    DagError,
    EmptyOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
    task,
)
from tests.unit.authoring.standard import NOON, outcome


def describes(a, b=2, ts=None, params=None, logical_date=None, templates_dict=None):
    import sys

    given = virtualenv_string_args  # noqa: F821 - it is there in the other Python
    print("it runs in", sys.executable)
    kind = type(logical_date).__module__.partition(".")[0]
    return {"sum": a + b, "ts": ts, "p": params["p"], "strings": given, "kind": kind, "templates": templates_dict}


def fails():
    raise ValueError("no luck")


def exits():
    import sys

    sys.exit(99)


def environment():
    import os

    return {name: os.environ.get(name) for name in ("GIVEN", "HOME")}


def test_a_function_is_called_in_another_python():
    # That of the machine sees none of the packages of this one.
    python = os.path.realpath(sys.executable)
    arguments = {"python": python, "op_args": [1], "op_kwargs": {"b": "{{ 40 + 1 }}"}, "string_args": ["x", 3]}
    ended = outcome(
        ExternalPythonOperator, python_callable=describes, templates_dict={"day": "{{ ds }}"},
        **arguments | {"op_args": ["1"]},
    )  # fmt: skip
    assert ended.result == {
        "sum": "141", "ts": NOON.isoformat(), "p": "param", "strings": ["x", "3"], "kind": "datetime",
        "templates": {"day": "2026-01-05"},
    }  # fmt: skip
    ended = outcome(ExternalPythonOperator, python_callable=describes, **arguments | {"python": sys.executable})
    assert ended.state == "failed"
    assert "TypeError" in ended.reason


def test_dates_are_pendulums_where_the_other_python_has_it():
    ended = outcome(ExternalPythonOperator, python_callable=describes, python=sys.executable, op_args=[1])
    assert ended.result["kind"] == "pendulum"


@pytest.mark.parametrize(
    ("function", "options", "state", "reason"),
    [
        (fails, {}, "failed", "ValueError: no luck"),
        (exits, {}, "failed", "exit code 99"),
        (exits, {"skip_on_exit_code": 99}, "skipped", "Process exited with code 99"),
        (describes, {"op_args": [lambda: None]}, "failed", "cannot be passed to another Python"),
        (describes, {"op_args": [1], "op_kwargs": {"b": lambda: None}}, "failed", "another Python: b ("),
        (
            fails,
            {"python": "/nowhere/python"},
            "failed",
            "of a Python interpreter, not /nowhere/python",
        ),
    ],
)
def test_what_goes_wrong_in_another_python_is_told(function, options, state, reason):
    ended = outcome(ExternalPythonOperator, python_callable=function, **{"python": sys.executable, **options})
    assert ended.state == state
    assert reason in ended.reason


def test_another_python_is_given_the_environment_that_it_is_to_have(monkeypatch):
    monkeypatch.setenv("HOME", "/inherited")
    options = {"python_callable": environment, "python": sys.executable, "env_vars": {"GIVEN": "yes"}}
    assert outcome(ExternalPythonOperator, **options).result == {"GIVEN": "yes", "HOME": "/inherited"}
    assert outcome(ExternalPythonOperator, inherit_env=False, **options).result == {"GIVEN": "yes", "HOME": None}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1, "made by def"),
        (outcome.__call__, "made by def"),
        ((lambda: (yield)), "made by def"),
    ],
)
def test_only_functions_can_be_called_in_another_python(function, message):
    with DAG("d"), pytest.raises(DagError, match=message):
        ExternalPythonOperator(task_id="t", python=sys.executable, python_callable=function)


def packages():
    import sys

    return [sys.prefix != sys.base_prefix, "asynsched" in sys.modules, sys.prefix]


def test_a_virtual_environment_is_made_for_a_function_and_cached(tmp_path):
    once = outcome(PythonVirtualenvOperator, python_callable=packages).result
    assert once[:2] == [True, False]
    assert not Path(once[2]).exists()
    kept = [
        outcome(PythonVirtualenvOperator, python_callable=packages, venv_cache_path=str(tmp_path)).result[2]
        for _ in range(2)
    ]
    assert kept[0] == kept[1]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(kept[0]).name]


def test_an_environment_that_cannot_be_made_says_why(tmp_path):
    missing = tmp_path / "nothing.whl"
    ended = outcome(PythonVirtualenvOperator, python_callable=packages, requirements=[str(missing)])
    assert "the virtual environment could not be made" in ended.reason
    ended = outcome(PythonVirtualenvOperator, python_callable=packages, python_version="3.0")
    assert "there is no python3.0" in ended.reason


def test_the_decorators_of_other_pythons():
    with DAG("d") as dag:

        @task.external_python(python=sys.executable)
        def doubled(n):
            return {"n": 2 * n}

        @task.virtualenv(multiple_outputs=True)
        def listed(given) -> dict:
            return {"first": given["n"]}

        @task.branch_external_python(python=sys.executable)
        def picks(n):
            return "yes" if n == 6 else "no"

        picked = picks(listed(doubled(3))["first"])
        picked >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
        assert isinstance(picked.operator, BranchExternalPythonOperator)
    run = dag.test()
    assert {name: run.task(name).state for name in ("yes", "no")} == {"yes": "success", "no": "skipped"}
