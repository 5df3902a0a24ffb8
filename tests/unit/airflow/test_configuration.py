"""`conf`: options of asynsched's settings, of the environment, of Airflow and of providers."""

import enum
import importlib.metadata
import json
import traceback
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from asynsched.airflow import configuration
from asynsched.airflow.configuration import conf, options_in, set_options
from asynsched.airflow.exceptions import AirflowConfigException
from asynsched.settings import ParseSettings, Settings


class Colour(enum.Enum):
    RED = 1


@pytest.fixture(autouse=True)
def options():
    """Leave no option to other tests."""
    configuration._defaults_of_providers.cache_clear()
    yield
    set_options({})
    configuration._defaults_of_providers.cache_clear()


def test_settings_come_before_the_environment_and_that_before_defaults(monkeypatch):
    assert conf.getint("core", "parallelism") == 32
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "5")
    assert conf.getint("core", "PARALLELISM") == 5
    set_options(Settings(parallelism=7).airflow_options)
    assert conf.getint("CORE", "parallelism") == 7


def test_the_options_of_the_settings_have_the_form_of_airflows(tmp_path):
    settings = Settings(
        dags_folder=str(tmp_path), executor="sequential", parse=ParseSettings(timeout=12.5, import_timeout=20.0)
    )
    set_options(settings.airflow_options)
    assert conf.get("core", "dags_folder") == str(tmp_path)
    assert conf.get("core", "executor") == "SequentialExecutor"
    assert conf.getfloat("dag_processor", "dag_file_processor_timeout") == 12.5
    assert conf.getint("core", "dagbag_import_timeout") == 20
    assert conf.getboolean("core", "dags_are_paused_at_creation") is False


def test_a_parse_is_told_only_options_that_hold_no_secrets():
    environment = {
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
        "AIRFLOW__CORE__FERNET_KEY": "secret",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "secret",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": '{"secret_id": "secret"}',
        "AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS": '{"token": "secret"}',
        "AIRFLOW__LOGGING__REMOTE_TASK_HANDLER_KWARGS": '{"key": "secret"}',
    }
    assert options_in(environment) == {"operators.default_deferrable": "True"}


@pytest.mark.parametrize(
    ("method", "text", "arguments", "value"),
    [
        (conf.get, "a", (), "a"),
        (conf.get_mandatory_value, "a", (), "a"),
        (conf.getboolean, "True", (), True),
        (conf.getboolean, "0 # no", (), False),
        (conf.getint, "4.0", (), 4),
        (conf.getfloat, "0.5", (), 0.5),
        (conf.getlist, "a, b", (), ["a", "b"]),
        (conf.getlist, "", (), []),
        (conf.getlist, "a;b", (";",), ["a", "b"]),
        (conf.get_mandatory_list_value, "a", (), ["a"]),
        (conf.getjson, '{"a": [1]}', (), {"a": [1]}),
        (conf.getjson, "", (), None),
        (conf.getimport, "datetime.timedelta", (), timedelta),
        (conf.getimport, "", (), None),
        (conf.getenum, "RED", (Colour,), Colour.RED),
        (conf.gettimedelta, "90", (), timedelta(seconds=90)),
    ],
)
def test_a_value_has_the_type_that_is_asked_for(method, text, arguments, value, monkeypatch):
    monkeypatch.setenv("AIRFLOW__MY_TEAM__KEY", text)
    assert method("my_team", "key", *arguments) == value


@pytest.mark.parametrize(
    ("method", "text", "arguments", "form"),
    [
        (conf.getboolean, "maybe", (), "true or false"),
        (conf.getint, "1.5", (), "a whole number"),
        (conf.getfloat, "many", (), "a number"),
        (conf.getjson, "{", (), "JSON"),
        (conf.getimport, "datetime.nothing", (), "the name of an object that can be imported"),
        (conf.getenum, "BLUE", (Colour,), "one of RED"),
    ],
)
def test_a_value_of_the_wrong_form_is_told_with_its_option(method, text, arguments, form, monkeypatch):
    monkeypatch.setenv("AIRFLOW__MY_TEAM__KEY", text)
    with pytest.raises(AirflowConfigException, match=rf"\[my_team\] key must be {form}, not '"):
        method("my_team", "key", *arguments)


def test_a_missing_option_is_an_error_unless_there_is_a_fallback():
    with pytest.raises(AirflowConfigException, match=r"set AIRFLOW__MY_TEAM__KEY in the environment"):
        conf.get("my_team", "key")
    assert conf.get("my_team", "key", fallback=None) is None
    assert conf.getint("my_team", "key", fallback=3) == 3
    assert conf.getboolean("my_team", "key", fallback=False) is False
    assert not conf.has_option("my_team", "key")
    assert conf.has_option("core", "parallelism")


def test_a_section_has_values_of_all_sources(monkeypatch):
    monkeypatch.setenv("AIRFLOW__SENSORS__MINE", "yes")
    set_options({"sensors.ours": "true"})
    assert conf.getsection("sensors") == {"default_timeout": 604800, "mine": "yes", "ours": True}
    assert conf.getsection("nothing") is None
    assert not conf.has_section("nothing")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[database]\nsql_alchemy_conn\n  password-is-hunter22\n", ", line 2: this is not a configuration of Airflow"),
        ("password-is-hunter22\n[core]\n", ", line 1: this is not a configuration of Airflow"),
        ("[core]\nkey = hunter22é\n", ": this is not a configuration of Airflow"),
        (None, ": the file cannot be read: No such file or directory"),
    ],
    ids=["no value", "no section", "not UTF-8", "no file"],
)
def test_an_airflow_cfg_that_becomes_unreadable_is_an_error_without_its_text(tmp_path, text, where):
    cfg = tmp_path / "airflow.cfg"
    if text is not None:
        cfg.write_text(text, encoding="latin-1")
    set_options(configuration.with_cfg({}, str(cfg)))
    with pytest.raises(AirflowConfigException) as caught:
        conf.get("my_team", "word")
    assert str(caught.value) == f"{cfg}{where}"
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))


def test_installed_providers_give_defaults_for_their_own_options(monkeypatch, caplog):
    described = {"config": {"acme": {"options": {"host": {"default": "localhost"}, "key": {"default": None}}}}}
    entries = [
        SimpleNamespace(
            value="acme:info", dist=SimpleNamespace(name="acme", version="1"), load=lambda: lambda: described
        ),
        SimpleNamespace(value="no:info", dist=SimpleNamespace(name="broken", version="1"), load=lambda: 1 / 0),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    assert conf.get("acme", "host", fallback="other") == "localhost"
    assert conf.get("acme", "key", fallback="other") == "other"
    assert "The provider broken does not say its configuration: ZeroDivisionError" in caplog.text


def test_every_option_with_a_default_in_airflow_has_it_here():
    """The names are those of Airflow 3.3.2's core, and those of providers that it knows."""
    options = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
    named = {f"{section}.{key}" for section, keys in options.items() for key in keys.split()}
    without = {name for name in named if conf.get(*name.split("."), fallback=None) is None}
    assert without == {"api.secret_key", "api_auth.jwt_secret", "core.fernet_key", "database.sql_alchemy_conn"}
    assert conf.getboolean("kubernetes_executor", "in_cluster") is True
    assert conf.getjson("dag_processor", "dag_bundle_config_list")[0]["name"] == "dags-folder"
    assert conf.getsection("atlas") == {
        "host": "",
        "password": "",
        "port": 21000,
        "sasl_enabled": False,
        "username": "",
    }


def test_the_default_of_an_installed_provider_comes_before_that_of_airflow(monkeypatch):
    declared = {"config": {"kubernetes_executor": {"options": {"namespace": {"default": "airflow"}}}}}
    provider = SimpleNamespace(error="", info=declared)
    monkeypatch.setattr("asynsched.authoring.providers.installed_providers", lambda: [provider])
    assert conf.get("kubernetes_executor", "namespace") == "airflow"
    assert conf.get("kubernetes_executor", "verify_ssl") == "True"
