"""The small functions of Airflow, by their results. Source: Apache Airflow 3.3.2 gives the same."""

import datetime as dt
import functools
import logging
import os
import pickle
import signal
import subprocess

import pytest

from asynsched.airflow import context, dates, file, module_loading, values
from asynsched.airflow.deprecation_tools import add_deprecated_classes
from asynsched.airflow.exceptions import AirflowConfigException, DeprecatedImportWarning
from asynsched.airflow.lineage import get_hook_lineage_collector
from asynsched.airflow.logging_mixin import LoggingMixin, StreamLogWriter, remove_escape_codes
from asynsched.airflow.processes import execute_in_subprocess, patch_environ
from asynsched.airflow.secrets import BaseSecretsBackend
from asynsched.airflow.session import NEW_SESSION, provide_session
from asynsched.airflow.settings import pod_mutation_hook
from asynsched.airflow.stats import Stats
from asynsched.airflow.timeout import timeout
from asynsched.airflow.types import NOTSET, SET_DURING_EXECUTION, TaskInstanceKey, is_arg_set
from asynsched.authoring.exceptions import (
    AirflowRuntimeError,
    AsynschedException,
    AsynschedNotFoundException,
    AsynschedTaskTimeout,
)
from asynsched.authoring.running.context import context_variables
from asynsched.authoring.triggers.base import BaseEventTrigger
from asynsched.errors import DagWarning


class Outer:
    class Inner:
        pass


async def a_coroutine():
    pass


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda: values.prune_dict({"a": None, "b": {"c": None}, "d": [None, 0, {}], "e": ""}),
         {"b": {}, "d": [0, {}], "e": ""}),
        (lambda: values.prune_dict({"a": 0, "b": {"c": ""}, "d": [None, 1, {}]}, mode="truthy"), {"d": [1]}),
        (lambda: values.prune_dict("text"), "text"),
        (lambda: values.merge_dicts({"a": 1, "b": {"c": 1, "d": 1}}, {"b": {"c": 2}, "e": [1]}),
         {"a": 1, "b": {"c": 2, "d": 1}, "e": [1]}),
        (lambda: list(values.chunks([1, 2, 3], 2)), [[1, 2], [3]]),
        (lambda: [list(part) for part in values.partition(str.isupper, ["a", "B"])], [["a"], ["B"]]),
        (lambda: values.as_flattened_list([["a"], ["b", "c"]]), ["a", "b", "c"]),
        (lambda: values.convert_camel_to_snake("LocalTaskJob"), "local_task_job"),
        (lambda: [values.exactly_one(1, 0), values.exactly_one(1, 2), values.exactly_one(None)], [True, False, False]),
        (lambda: bool(NOTSET), True),
        (lambda: [values.at_most_one(NOTSET, 1), values.at_most_one(1, 2), values.at_most_one()], [True, False, True]),
        (lambda: [values.to_boolean(word) for word in ("Yes", " on ", "0", None)], [True, True, False, False]),
        (lambda: values.md5(b"a").hexdigest(), "0cc175b9c0f1b6a831c399e269772661"),
        (lambda: module_loading.import_string("os.path.join"), os.path.join),
        (lambda: module_loading.qualname(Outer.Inner), f"{__name__}.Inner"),
        (lambda: module_loading.qualname(Outer.Inner, use_qualname=True), f"{__name__}.Outer.Inner"),
        (lambda: module_loading.qualname(Outer()), f"{__name__}.Outer"),
        (lambda: module_loading.qualname(functools.partial(a_coroutine), exclude_module=True), "a_coroutine"),
        (lambda: [module_loading.is_valid_dotpath(path) for path in ("a.b_1", "a.", "1a", "a-b")],
         [True, False, False, False]),
        (lambda: [module_loading.is_async_callable(one) for one in (functools.partial(a_coroutine), Outer, print, 1)],
         [True, False, False, False]),
        (lambda: file.get_unique_dag_module_name("/dags/my.dag-1.py"),
         "unusual_prefix_da30d5ca187862b6dbf9db28c9f0bfcdbbc773b3_my_dag_1"),
        (lambda: dates.round_time(dt.datetime(2015, 1, 1, 6), dt.timedelta(days=1)), dt.datetime(2015, 1, 1)),
        (lambda: dates.infer_time_unit([130, 5400, 10]), "minutes"),
        (lambda: dates.scale_time_units([60, 90], "minutes"), [1, 1.5]),
        (lambda: dates.datetime_to_nano(dt.datetime(1970, 1, 1, 0, 0, 1)), 1_000_000_000),
        (lambda: dates.date_range(dt.datetime(2016, 1, 1), num=2, delta=dt.timedelta(1)),
         [dt.datetime(2016, 1, 1), dt.datetime(2016, 1, 2)]),
        (lambda: [is_arg_set(NOTSET), is_arg_set(SET_DURING_EXECUTION), is_arg_set(None)], [False, False, True]),
        (lambda: TaskInstanceKey("d", "t", "r").with_try_number(2), ("d", "t", "r", 2, -1)),
        (lambda: remove_escape_codes("\x1b[31mred\x1b[0m"), "red"),
        (lambda: get_hook_lineage_collector().collected_assets.inputs, []),
        (lambda: hasattr(get_hook_lineage_collector(), "_extra"), True),
        (lambda: BaseEventTrigger.hash("a", {"b": 1}) == BaseEventTrigger.hash("a", {"b": 1}), True),
        (lambda: pod_mutation_hook(object()), None),
    ],
)  # fmt: skip
def test_a_function_gives_what_airflows_gives(call, result):
    assert call() == result


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: values.validate_key(1), TypeError, "must be a string, not int"),
        (lambda: values.validate_key("a" * 251), AsynschedException, "at most 250"),
        (lambda: values.validate_key("a b"), AsynschedException, "letters, digits"),
        (lambda: values.validate_key("a..b"), AsynschedException, "two dots"),
        (lambda: values.exactly_one([1, 0]), ValueError, r"exactly_one\(\*values\)"),
        (lambda: list(values.chunks([1], 0)), ValueError, "at least 1"),
        (lambda: values.prune_dict({}, mode="other"), ValueError, "'strict' or 'truthy'"),
        (lambda: module_loading.import_string("os"), ImportError, "write module.name"),
        (lambda: module_loading.import_string("os.nothing"), ImportError, "the module 'os' has no 'nothing'"),
    ],
)
def test_a_wrong_argument_is_told(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_days_ago_is_a_time_of_day_in_utc():
    found = dates.days_ago(2, hour=3)
    assert (found.hour, found.minute, found.utcoffset()) == (3, 0, dt.timedelta(0))
    assert dates.days_ago(0) - dates.days_ago(1) == dt.timedelta(days=1)


def test_a_user_without_a_name_is_told(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: {}["name"])
    with pytest.raises(AirflowConfigException, match="has no name"):
        values.getuser()


def test_the_environment_is_patched_within_the_block_only(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    with patch_environ({"KEPT": "within", "NEW_ONE": "within"}):
        assert (os.environ["KEPT"], os.environ["NEW_ONE"]) == ("within", "within")
    assert (os.environ["KEPT"], os.environ.get("NEW_ONE")) == ("before", None)


def test_the_output_of_a_program_is_logged_and_its_failure_raised(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(subprocess.CalledProcessError):
        execute_in_subprocess(["sh", "-c", "echo $WORD; exit 3"], env={"WORD": "hello"})
    assert "hello" in caplog.messages


def test_a_logging_mixin_logs_by_the_name_of_its_class(caplog):
    class Mine(LoggingMixin):
        _log_config_logger_name = "airflow.task"

    assert Mine().log.name == f"airflow.task.{__name__}.Mine"
    assert Mine.logger() is Mine().log
    caplog.set_level(logging.INFO)
    stream = StreamLogWriter(Mine().log, logging.INFO)
    stream.write("one ")
    stream.write("line\n")
    assert caplog.messages == ["one line"]


def test_a_timeout_interrupts_and_leaves_the_alarm_as_it_was():
    before, _ = signal.getitimer(signal.ITIMER_REAL)  # that of pytest
    with pytest.raises(AsynschedTaskTimeout, match="too long, PID"), timeout(0.01, "too long"):
        signal.pause()
    with timeout(60):
        pass
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert (after > 0, after <= before) == (before > 0, True)


def test_a_timeout_inside_another_one_keeps_the_outer_limit():
    with pytest.raises(AsynschedTaskTimeout, match="outer"), timeout(0.05, "outer"):
        _pause_after_a_limit_of_its_own()
    with pytest.raises(AsynschedTaskTimeout, match="outer"), timeout(0.05, "outer"), timeout(60, "inner"):
        signal.pause()


def _pause_after_a_limit_of_its_own():
    with timeout(0.02, "inner"):
        pass
    signal.pause()


def test_old_names_of_a_package_warn_and_give_the_new_object(monkeypatch):
    import sys
    from types import ModuleType

    package = ModuleType("acme")
    monkeypatch.setitem(sys.modules, "acme", package)
    monkeypatch.delitem(sys.modules, "acme.old", raising=False)
    add_deprecated_classes({"acme": {"join": "os.path.join"}, "old": {"*": "os"}}, "acme")
    with pytest.warns(DeprecatedImportWarning, match=r"acme\.join is deprecated; use os\.path\.join"):
        assert package.join is os.path.join
    with pytest.warns(DeprecatedImportWarning):
        assert sys.modules.pop("acme.old").getcwd is os.getcwd
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        package.other  # noqa: B018


def test_a_function_with_a_session_works_only_if_it_is_given_one():
    with pytest.warns(DagWarning, match="reads asks Airflow's database, which tasks cannot reach"):

        @provide_session
        def reads(name, *, session=NEW_SESSION):
            return name, session

    assert reads("a", session="given") == ("a", "given")
    with pytest.raises(AsynschedException, match="user code has no access to the database"):
        reads("a")


def test_figures_can_be_given_and_timed():
    Stats.incr("things", 2, tags={"a": "b"})
    with Stats.timer("work") as timer:
        assert timer.duration is None
    assert timer.duration >= 0


def test_a_secrets_backend_of_a_provider_reads_connections():
    class Backend(BaseSecretsBackend):
        def get_conn_value(self, conn_id):
            return {"mine": "http://user@host/"}.get(conn_id)

    assert Backend().get_connection("mine").host == "host"
    assert Backend().get_connection("other") is None


def test_a_context_becomes_texts_by_name(monkeypatch):
    class Thing:
        def __init__(self, **fields):
            vars(self).update(fields)

    told = {
        "task": Thing(email=["a@b", "c@d"], owner="me"),
        "ti": Thing(dag_id="d", task_id="t", run_id="r", try_number=2),
        "ts": "2026-01-01T00:00:00+00:00",
    }
    monkeypatch.setattr(context.settings, "get_airflow_context_vars", lambda _: {"team": "x"})
    assert context.context_to_airflow_vars(told) == {
        "airflow.ctx.team": "x", "airflow.ctx.dag_email": "a@b,c@d", "airflow.ctx.dag_owner": "me",
        "airflow.ctx.dag_id": "d", "airflow.ctx.task_id": "t", "airflow.ctx.try_number": "2",
        "airflow.ctx.dag_run_id": "r", "airflow.ctx.logical_date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    for_environment = context.context_to_airflow_vars(told, in_env_var_format=True)
    assert for_environment == {"AIRFLOW_CTX_TEAM": "x", **context_variables(told)}
    forms = context.AIRFLOW_VAR_NAME_FORMAT_MAPPING.values()
    assert {form["env_var_format"] for form in forms} == set(context_variables(told))


def test_what_is_missing_is_caught_as_in_airflow_2_and_as_in_airflow_3():
    error = AsynschedNotFoundException("there is no variable 'colour'")
    assert (isinstance(error, KeyError), isinstance(error, AirflowRuntimeError)) == (True, True)
    assert str(pickle.loads(pickle.dumps(error))) == "there is no variable 'colour'"
