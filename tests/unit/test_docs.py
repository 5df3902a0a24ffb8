"""The reference says what the code does: every command, option, setting and public name."""

import re
import subprocess
from pathlib import Path

import pytest

import asynsched
from tests.support.reference import FOLDER, pages


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "authoring.md", "metrics.md"])
def test_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run `python -m tests.support.reference`"


MOVING = Path(__file__).parents[2] / "docs" / "how-to" / "move-from-airflow.md"
OF_AIRFLOW = """\
from airflow import DAG
from airflow.decorators import dag, task
from airflow.exceptions import AirflowException, AirflowFailException
from airflow.models.baseoperator import BaseOperator, chain
from airflow.operators.python import get_current_context
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.common.compat.sdk import TriggerRule
from airflow.sdk import Param, ParamsDict, TaskInstance, Variable, get_parsing_context
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException
from airflow.timetables.trigger import CronTriggerTimetable
from airflow.utils.task_group import TaskGroup
"""


def test_the_command_that_moves_a_folder_from_airflow_leaves_imports_of_names_that_are_here(tmp_path):
    [command] = re.findall(r"^```sh\n(find dags .*?)^```", MOVING.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "dags" / "team").mkdir(parents=True)
    file = tmp_path / "dags" / "team" / "etl.py"
    file.write_text(OF_AIRFLOW + "from airflow.providers.amazon.hooks.s3 import S3Hook\n")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    *moved, kept = file.read_text().splitlines()
    assert kept == "from airflow.providers.amazon.hooks.s3 import S3Hook"
    for line in moved:
        assert line.startswith("from asynsched import ")
        for name in line.removeprefix("from asynsched import ").split(", "):
            assert hasattr(asynsched, name)


PROMISES = MOVING.parents[1] / "discussion" / "promises.md"


def test_every_test_that_a_promise_names_exists_and_every_promise_names_one():
    text = PROMISES.read_text(encoding="utf-8")
    promises = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    without = [promise for promise in promises if "`tests/" not in promise]
    assert promises
    assert without == []
    missing = []
    for path, name in re.findall(r"`(tests/[^`:]+)(?:::(\w+))?`", text):
        file = MOVING.parents[2] / path
        if not file.exists() or (name and not re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)):
            missing.append(f"{path}::{name}")
    assert missing == []
