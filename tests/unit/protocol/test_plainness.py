"""Which DAG files look as if their tasks needed nothing but their arguments."""

import pytest

from asynsched.protocol.plainness import MAX_CHARACTERS, looks_plain

PLAIN = """
from __future__ import annotations
import csv, json
from datetime import datetime
from asynsched import DAG, EmptyOperator, PythonOperator, task
from shop.prices import price


@task(retries=2)
def work(name: str, n: int = 2, ti=None, params=None) -> dict:
    return {"name": name, "total": n * price(name), "pushed": ti.xcom_pull(task_ids="before")}


with DAG("d", start_date=datetime(2024, 1, 1), schedule="@daily", default_args={"owner": "me"}):
    EmptyOperator(task_id="before") >> PythonOperator(task_id="p", python_callable=price) >> work("x")
"""
LOCAL = "def price(name):\n    return len(name)\n"


def test_functions_that_look_at_their_arguments_are_plain():
    assert looks_plain([PLAIN, LOCAL], ["", "shop.prices"])


@pytest.mark.parametrize(
    "line",
    [
        'work("{{ ds }}")',
        'work("{% if 1 %}a{% endif %}")',
        "def f(**context): ...",
        "def f(logical_date): ...",
        "def f(dag_run=None): ...",
        "def f(data_interval_end): ...",
        "def f(prev_start_date_success): ...",
        "from asynsched import get_current_context",
        "from asynsched import BashOperator",
        "from asynsched import BranchExternalPythonOperator, PythonVirtualenvOperator",
        "from asynsched import FileSensor",
        "class Mine(Base):\n    def execute(self, context): ...",
        "@task.bash\ndef f(): ...",
        "@task.branch_virtualenv\ndef f(): ...",
        "@task.sensor\ndef f(): ...",
        "dag.on_failure_callback = print",
        "task(map_index_template='x')",
        "import pendulum",
        "def f(ti):\n    print(ti.start_date)",
        "def f(ti):\n    ti.get_previous_start_date()",
        "import sys\nsys.path.insert(0, '.')",
        "import os\nos.setuid(1)",
        "    import subprocess",
        "from company.operators import Copy",
    ],
)
@pytest.mark.parametrize("is_in_file", [True, False])
def test_what_may_lead_to_templates_instants_or_programs_is_not_plain(line, is_in_file):
    texts = [PLAIN + line + "\n", LOCAL] if is_in_file else [PLAIN, LOCAL + line + "\n"]
    assert not looks_plain(texts, ["", "shop.prices"])


def test_a_local_module_named_like_one_of_python_makes_a_file_not_plain():
    assert not looks_plain([PLAIN, LOCAL], ["", "shop.prices", "calendar"])


def test_a_module_that_is_not_among_the_texts_makes_a_file_not_plain():
    assert not looks_plain([PLAIN], [""])


@pytest.mark.parametrize(("n_more", "is_plain"), [(0, True), (1, False)])
def test_a_file_that_is_too_long_with_its_local_modules_is_not_plain(n_more, is_plain):
    padding = "#" * (MAX_CHARACTERS - len(PLAIN) - len(LOCAL) + n_more)
    assert looks_plain([PLAIN, LOCAL + padding], ["", "shop.prices"]) == is_plain
