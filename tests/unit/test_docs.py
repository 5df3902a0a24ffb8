"""The reference matches the code: every command, option, setting and public name."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import asynsched
from asynsched.client.client import Client
from asynsched.client.operation import OPERATIONS
from tests.support.reference import FOLDER, pages


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "authoring.md", "metrics.md", "rest.md", "own-rest.md"])
def test_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run `python -m tests.support.reference`"


def test_the_how_to_of_the_client_names_every_method():
    table = re.findall(r"^\|.*\|$", CLIENT.read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", "".join(table)))
    assert set(OPERATIONS) <= named
    assert named <= set(dir(Client)), "no method that is gone"


CLIENT = FOLDER.parent / "how-to" / "use-the-client.md"
MOVING = Path(__file__).parents[2] / "docs" / "how-to" / "move-from-airflow.md"
OF_AIRFLOW = """\
from airflow import DAG
from airflow.assets.metadata import Metadata
from airflow.datasets.metadata import Metadata
from airflow.decorators import dag, setup, task, task_group, teardown
from airflow.decorators.base import task_group
from airflow.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException
from airflow.exceptions import AirflowRescheduleException
from airflow.exceptions import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout, DuplicateTaskIdFound
from airflow.exceptions import ParamValidationError, TaskDeferralError, TaskDeferralTimeout, TaskDeferred, TaskNotFound
from airflow.hooks.base import BaseHook
from airflow.macros import ds_add, ds_format, ds_format_locale
from airflow.models import DAG, BaseOperator, Connection, Param, TaskInstance, Variable
from airflow.models.baseoperator import BaseOperator, chain, chain_linear, cross_downstream
from airflow.models.connection import Connection
from airflow.models.dag import DAG
from airflow.models.param import Param, ParamsDict
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.models.xcom_arg import XComArg
from airflow.notifications.basenotifier import BaseNotifier
from airflow.operators.bash import BashOperator
from airflow.operators.branch import BaseBranchOperator
from airflow.operators.datetime import BranchDateTimeOperator
from airflow.operators.empty import EmptyOperator
from airflow.operators.latest_only import LatestOnlyOperator
from airflow.operators.python import BranchPythonOperator, PythonOperator, ShortCircuitOperator, get_current_context
from airflow.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.operators.weekday import BranchDayOfWeekOperator
from airflow.providers.common.compat.sdk import TriggerRule
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import BranchExternalPythonOperator, BranchPythonVirtualenvOperator
from airflow.providers.standard.operators.python import ExternalPythonOperator, PythonVirtualenvOperator
from airflow.providers.standard.sensors.date_time import DateTimeSensor, DateTimeSensorAsync
from airflow.providers.standard.sensors.time import TimeSensor
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor, WaitSensor
from airflow.providers.standard.triggers.external_task import DagStateTrigger, WorkflowTrigger
from airflow.providers.standard.triggers.file import FileTrigger
from airflow.providers.standard.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
from airflow.sdk import Param, ParamsDict, TaskInstance, Variable, get_parsing_context, macros, timezone
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.bases.sensor import BaseSensorOperator, PokeReturnValue
from airflow.sdk.definitions.asset import Asset, AssetAlias, AssetAll, AssetAny
from airflow.sdk.definitions.asset.decorators import asset
from airflow.sdk.definitions.context import Context
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException
from airflow.sdk.execution_time.macros import datetime_diff_for_humans
from airflow.sdk.timezone import convert_to_utc, datetime, make_aware, parse, utc, utcnow
from airflow.sensors.base import BaseSensorOperator, PokeReturnValue
from airflow.sensors.bash import BashSensor
from airflow.sensors.external_task import ExternalTaskMarker, ExternalTaskSensor
from airflow.sensors.filesystem import FileSensor
from airflow.sensors.python import PythonSensor
from airflow.sensors.weekday import DayOfWeekSensor
from airflow.task.trigger_rule import TriggerRule
from airflow.task.weight_rule import WeightRule
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.events import EventsTimetable
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.timetables.simple import ContinuousTimetable, NullTimetable, OnceTimetable
from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable, MultipleCronTriggerTimetable
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from airflow.triggers.temporal import DateTimeTrigger
from airflow.utils import timezone
from airflow.utils.edgemodifier import EdgeModifier, Label
from airflow.utils.state import DagRunState, State, TaskInstanceState
from airflow.utils.task_group import TaskGroup
from airflow.utils.timezone import datetime
from airflow.utils.trigger_rule import TriggerRule
from airflow.utils.types import DagRunType
from airflow.utils.weekday import WeekDay
from airflow.utils.weight_rule import WeightRule
"""
"""Where Airflow 3 has the names of DAG files, and where Airflow 2 had them (Airflow 3 still knows these places)."""
OF_OTHERS = "from airflow.providers.amazon.hooks.s3 import S3Hook"


def test_the_command_to_move_from_airflow_imports_existing_names(tmp_path):
    [command] = re.findall(r"^```sh\n(find dags .*?)^```", MOVING.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "dags" / "team").mkdir(parents=True)
    file = tmp_path / "dags" / "team" / "etl.py"
    file.write_text(f"{OF_AIRFLOW}{OF_OTHERS}\n")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    *moved, kept = file.read_text().splitlines()
    assert kept == OF_OTHERS
    for line in moved:
        assert line.startswith("from asynsched")
        exec(line, {})


def test_listed_missing_names_are_missing():
    section = MOVING.read_text(encoding="utf-8").partition("## Missing features")[2]
    listed = set(re.findall(r"`@?(\w+)`", section))
    assert "DagBag" in listed
    assert not {name for name in listed if name in dir(asynsched)}


PROMISES = MOVING.parents[1] / "discussion" / "promises.md"


def test_every_promise_names_tests_and_they_exist():
    text = PROMISES.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    promises = [row for row in rows if not row.startswith(("promise |", "---"))]
    without = [promise for promise in promises if "`tests/" not in promise]
    assert promises
    assert without == []
    missing, path = [], ""
    for named, name in re.findall(r"`(tests/[^`:]+)?(?:::(\w+))?`", text):
        path = named or path  # the second and later tests of a file follow it
        file = MOVING.parents[2] / path
        if not file.is_file() or (name and not re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_the_layers_of_the_architecture_are_those_of_the_import_contract():
    project = tomllib.loads((MOVING.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [found for found in project["tool"]["importlinter"]["contracts"] if found["type"] == "layers"]
    section = (
        (MOVING.parents[1] / "discussion" / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
    )
    drawn = [re.split(r" {2,}", line)[0].split(", ") for line in section.split("```")[1].strip().splitlines()]
    assert drawn == [re.split(r" [:|] ", layer) for layer in contract["layers"]]
