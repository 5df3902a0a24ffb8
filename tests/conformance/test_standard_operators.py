"""The standard operators, sensors and triggers have the arguments and defaults of Airflow's provider."""

import inspect

import pytest

import asynsched
from asynsched import BaseOperator, BaseSensorOperator, BaseTrigger

REQUIRED = inspect.Parameter.empty
BY_OPTION = None  # where the provider reads [operators] default_deferrable
PYTHON = {
    "python_callable": REQUIRED, "op_args": None, "op_kwargs": None, "templates_dict": None, "templates_exts": None,
    "show_return_value_in_logs": True,
}  # fmt: skip
FOREIGN = PYTHON | {
    "serializer": None, "string_args": None, "expect_airflow": True, "skip_on_exit_code": None, "env_vars": None,
    "inherit_env": True,
}  # fmt: skip
VIRTUALENV = FOREIGN | {
    "requirements": None, "python_version": None, "system_site_packages": True, "pip_install_options": None,
    "index_urls": None, "index_urls_from_connection_ids": None, "venv_cache_path": None,
}  # fmt: skip
EXTERNAL = FOREIGN | {"python": REQUIRED, "expect_pendulum": False}
FOLLOW = {"follow_task_ids_if_true": REQUIRED, "follow_task_ids_if_false": REQUIRED}
ARGUMENTS = {
    "BashOperator": {
        "bash_command": REQUIRED, "env": None, "append_env": False, "output_encoding": "utf-8", "skip_on_exit_code": 99,
        "cwd": None, "output_processor": None,
    },
    "BashSensor": {"bash_command": REQUIRED, "env": None, "output_encoding": "utf-8", "retry_exit_code": None},
    "BranchDateTimeOperator": FOLLOW | {
        "target_lower": REQUIRED, "target_upper": REQUIRED, "use_task_logical_date": False
    },
    "BranchDayOfWeekOperator": FOLLOW | {"week_day": REQUIRED, "use_task_logical_date": False},
    "BranchExternalPythonOperator": EXTERNAL,
    "BranchPythonOperator": PYTHON,
    "BranchPythonVirtualenvOperator": VIRTUALENV,
    "DagStateTrigger": {
        "dag_id": REQUIRED, "states": REQUIRED, "run_ids": None, "execution_dates": None, "poll_interval": 5.0
    },
    "DateTimeSensor": {"target_time": REQUIRED},
    "DateTimeSensorAsync": {
        "target_time": REQUIRED, "start_from_trigger": False, "end_from_trigger": False, "trigger_kwargs": None
    },
    "DateTimeTrigger": {"moment": None, "target_time": None, "end_from_trigger": False},
    "DayOfWeekSensor": {"week_day": REQUIRED, "use_task_logical_date": False},
    "EmptyOperator": {},
    "ExternalPythonOperator": EXTERNAL,
    "ExternalTaskMarker": {
        "external_dag_id": REQUIRED, "external_task_id": REQUIRED, "logical_date": "{{ logical_date.isoformat() }}",
        "recursion_depth": 10,
    },
    "ExternalTaskSensor": {
        "external_dag_id": REQUIRED, "external_task_id": None, "external_task_ids": None,
        "external_task_group_id": None, "allowed_states": None, "skipped_states": None, "failed_states": None,
        "execution_delta": None, "execution_date_fn": None, "check_existence": False, "poll_interval": 2.0,
        "deferrable": BY_OPTION,
    },
    "FileSensor": {
        "filepath": REQUIRED, "fs_conn_id": "fs_default", "recursive": False, "deferrable": BY_OPTION,
        "start_from_trigger": False, "trigger_kwargs": None,
    },
    "FileTrigger": {"filepath": REQUIRED, "recursive": False, "poke_interval": 5.0},
    "LatestOnlyOperator": {},
    "PythonOperator": PYTHON,
    "PythonSensor": {"python_callable": REQUIRED, "op_args": None, "op_kwargs": None, "templates_dict": None},
    "PythonVirtualenvOperator": VIRTUALENV,
    "ShortCircuitOperator": PYTHON | {"ignore_downstream_trigger_rules": True},
    "TimeDeltaSensor": {"delta": REQUIRED, "deferrable": BY_OPTION, "end_from_trigger": False},
    "TimeDeltaSensorAsync": {"delta": REQUIRED, "end_from_trigger": False},
    "TimeDeltaTrigger": {"delta": REQUIRED, "end_from_trigger": False},
    "TimeSensor": {
        "target_time": REQUIRED, "deferrable": BY_OPTION, "start_from_trigger": False, "end_from_trigger": False,
        "trigger_kwargs": None,
    },
    "TriggerDagRunOperator": {
        "trigger_dag_id": REQUIRED, "trigger_run_id": None, "conf": None, "logical_date": ..., "reset_dag_run": False,
        "wait_for_completion": False, "poke_interval": 60, "allowed_states": None, "failed_states": None,
        "skip_when_already_exists": False, "fail_when_dag_is_paused": False, "deferrable": BY_OPTION,
    },
    "WaitSensor": {"time_to_wait": REQUIRED, "deferrable": BY_OPTION},
    "WorkflowTrigger": {
        "external_dag_id": REQUIRED, "run_ids": None, "execution_dates": None, "logical_dates": None,
        "external_task_ids": None, "external_task_group_id": None, "failed_states": None, "skipped_states": None,
        "allowed_states": None, "poke_interval": 2.0, "soft_fail": False,
    },
}  # fmt: skip
"""By class, its own arguments and their defaults; `...` stands for a marker object."""


def own_arguments(name):
    """Return the arguments of a class and its parents, without those that all operators have."""
    found = {}
    bases = (BaseOperator, BaseSensorOperator, BaseTrigger)
    for cls in reversed(getattr(asynsched, name).__mro__):
        if cls in bases or not issubclass(cls, bases) or "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters) or issubclass(cls, BaseTrigger):
            found.clear()
        found |= {p.name: p.default for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}
    return found


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_arguments_are_those_of_the_provider(name):
    expected = ARGUMENTS[name]
    found = own_arguments(name)
    assert found.keys() >= expected.keys()
    assert {key: found[key] for key, value in expected.items() if value is not ...} == {
        key: value for key, value in expected.items() if value is not ...
    }
