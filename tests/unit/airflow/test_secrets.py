"""Secrets backends: where they stand in the order, how they are configured, what becomes of their errors."""

import json

import pytest

from asynsched import Connection, Variable
from asynsched.airflow import secrets
from asynsched.airflow.exceptions import (
    AirflowConfigException,
    AirflowFileParseException,
    AirflowSecretsBackendAccessDenied,
    ConnectionNotUnique,
    VariableNotUnique,
)
from asynsched.airflow.finder import offer_secrets_backend
from asynsched.airflow.local_filesystem import LocalFilesystemBackend
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.masking import redact
from asynsched.authoring.supervisor import current_supervisor, set_supervisor
from asynsched.errors import SettingsError
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.settings import SecretsSettings, Settings

LOCAL = "asynsched.airflow.local_filesystem.LocalFilesystemBackend"


class Broken(secrets.BaseSecretsBackend):
    """Fails as a backend without a network does."""

    def get_conn_value(self, conn_id, team_name=None):
        raise OSError("no network")

    def get_variable(self, key, team_name=None):
        raise (AirflowSecretsBackendAccessDenied if key == "forbidden" else OSError)("no network")


class Keyworded(secrets.BaseSecretsBackend):
    """Has its argument as a variable."""

    def __init__(self, one, two="-"):
        self.values = {"one": one, "two": two}

    def get_variable(self, key):
        return self.values.get(key)


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch):
    monkeypatch.setattr(secrets, "_made", None)
    offer_secrets_backend()
    set_supervisor(MemorySupervisor({"colour": "stored"}, {"db": {"host": "stored"}}))
    yield
    set_supervisor(None)


@pytest.fixture
def configure(monkeypatch):
    def configure(backend, kwargs="", section="SECRETS", key="BACKEND"):
        monkeypatch.setattr(secrets, "_made", None)
        monkeypatch.setenv(f"AIRFLOW__{section}__{key}", backend)
        monkeypatch.setenv(f"AIRFLOW__{section}__{key}_KWARGS", kwargs)

    return configure


def file_of(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_backend_is_asked_before_the_environment_and_the_database(tmp_path, configure, monkeypatch):
    variables = tmp_path / "variables.json"
    connections = file_of(tmp_path, "connections.json", '{"db": "postgres://me:hunter22@backend/"}')
    kwargs = {"variables_file_path": str(variables), "connections_file_path": connections}
    assert (Variable.get("colour"), Connection.get("db").host) == ("stored", "stored")
    monkeypatch.setenv("AIRFLOW_VAR_COLOUR", "environment")
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgres://environment")
    assert (Variable.get("colour"), Connection.get("db").host) == ("environment", "environment")
    configure(LOCAL, json.dumps(kwargs))
    variables.write_text('{"colour": "backend", "api_token": "0123456789"}')
    assert (Variable.get("colour"), Connection.get("db").host) == ("backend", "backend")
    assert Variable.get("api_token") == "0123456789"
    assert redact("hunter22 and 0123456789") == "*** and ***"
    variables.write_text('{"other": 1}')
    assert Variable.get("colour") == "environment"
    set_supervisor(current_supervisor(), loads_file=True)
    variables.write_text('{"colour": "backend"}')
    assert Variable.get("colour") == "environment"


def test_a_backend_of_workers_goes_before_and_single_arguments_too(configure, monkeypatch):
    configure(LOCAL, '{"variables_file_path": "/nowhere.json"}')
    keyworded = f"{__name__}.Keyworded"
    configure(keyworded, '{"one": "json", "two": "json"}', "WORKERS", "SECRETS_BACKEND")
    monkeypatch.setenv("AIRFLOW__WORKERS__SECRETS_BACKEND_KWARG__TWO", "single")
    assert (Variable.get("one"), Variable.get("two")) == ("json", "single")


def test_a_backend_that_fails_is_passed_over_unless_it_denies_access(configure, caplog):
    configure(f"{__name__}.Broken")
    assert (Variable.get("colour"), Connection.get("db").host) == ("stored", "stored")
    assert "could not be asked for the variable 'colour': OSError: no network" in caplog.text
    with pytest.raises(AirflowSecretsBackendAccessDenied):
        Variable.get("forbidden", default="-")


def test_a_wrong_configuration_is_an_error_that_shows_no_arguments(configure):
    configure("nowhere.Backend")
    with pytest.raises(AirflowConfigException, match=r"\[secrets\] backend must be .* not 'nowhere.Backend'"):
        Variable.get("colour")
    for wrong in ("hunter22", '["hunter22"]'):
        configure(LOCAL, wrong)
        with pytest.raises(AirflowConfigException, match=r"\[secrets\] backend_kwargs must be a JSON object") as caught:
            Variable.get("colour")
        assert "hunter22" not in str(caught.value)
        with pytest.raises(SettingsError, match=r"secrets\.backend_kwargs: must be a JSON object") as caught:
            SecretsSettings(backend=LOCAL, backend_kwargs=wrong)
        assert "hunter22" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"secrets\.backend: must name a class"):
        SecretsSettings(backend="Backend")


def test_the_settings_become_airflows_variables_and_do_not_show_arguments():
    given = SecretsSettings(backend=LOCAL, backend_kwargs='{"token": "hunter22"}')
    assert given.variables == {
        "AIRFLOW__SECRETS__BACKEND": LOCAL,
        "AIRFLOW__SECRETS__BACKEND_KWARGS": '{"token": "hunter22"}',
    }
    assert "hunter22" not in repr(given)
    assert Settings().secrets.variables == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "# comment\n\ndb=mysql://host:1/shop\n"),
        ("all.json", '{"db": {"conn_type": "mysql", "host": "host", "port": 1, "schema": "shop"}}'),
        ("all.json", '{"db": [{"conn_id": "db", "conn_type": "mysql", "host": "host", "port": 1, "schema": "shop"}]}'),
        ("all.yaml", "db: mysql://host:1/shop"),
    ],
)
def test_connections_are_read_from_each_format_of_files(tmp_path, name, text):
    found = LocalFilesystemBackend(connections_file_path=file_of(tmp_path, name, text)).get_connection("db")
    assert found == Connection("db", conn_type="mysql", host="host", port=1, schema="shop", extra=None)


def test_extra_dejson_is_the_extra_of_a_connection(tmp_path):
    file = file_of(tmp_path, "all.yml", "db:\n  conn_type: mysql\n  extra_dejson: {a: 1}")
    backend = LocalFilesystemBackend(connections_file_path=file, variables_file_path=file, configs_file_path=file)
    assert backend.get_connection("db").extra_dejson == {"a": 1}
    assert backend.get_connection("other") is None
    assert backend.get_variable("db") == backend.get_config("db")


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("all.txt", "db=x", AsynschedException, r"must end in one of \.env, \.json, \.yaml, \.yml"),
        ("all.env", "db=x\nwrong", AirflowFileParseException, r"all\.env:2: the line must be name=value"),
        ("all.json", "{", AirflowFileParseException, r"all\.json:1: "),
        ("all.json", "[]", AirflowFileParseException, r"all\.json:1: the file must hold an object"),
        ("all.yaml", "a: [", AirflowFileParseException, r"all\.yaml:\d: "),
        ("all.yaml", "a: \x01", AirflowFileParseException, r"all\.yaml:1: .*not allowed"),
        ("all.yaml", "a: 2024-02-30", AirflowFileParseException, r"all\.yaml:1: .*day"),
        ("all.yaml", "", AirflowFileParseException, r"all\.yaml:1: the file is empty"),
        ("all.env", "db=x://a\ndb=x://b", ConnectionNotUnique, "there are 2 connections 'db'"),
        ("all.json", '{"db": {"hots": ""}}', AsynschedException, "'db' has unknown fields: hots"),
        ("all.json", '{"db": {"conn_id": "b"}}', AsynschedException, "'db' has another conn_id inside"),
        ("all.json", '{"db": {"extra": "", "extra_dejson": {}}}', AsynschedException, "both extra and extra_dejson"),
        ("all.json", '{"db": 7}', AsynschedException, "'db' must be a text or an object"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_file_and_line(tmp_path, name, text, error, message):
    with pytest.raises(error, match=message):
        LocalFilesystemBackend(connections_file_path=file_of(tmp_path, name, text)).get_connection("db")


def test_a_variable_that_a_file_has_twice_is_an_error(tmp_path):
    with pytest.raises(VariableNotUnique, match="several values of a"):
        LocalFilesystemBackend(variables_file_path=file_of(tmp_path, "all.env", "a=1\na=2")).get_variable("a")


def test_the_environment_is_a_backend_as_well(monkeypatch):
    monkeypatch.setenv("AIRFLOW_VAR_A", "1")
    monkeypatch.setenv("AIRFLOW_CONN_DB", "mysql://host")
    backend = secrets.EnvironmentVariablesBackend()
    assert (backend.get_variable("a"), backend.get_connection("db").host) == ("1", "host")
