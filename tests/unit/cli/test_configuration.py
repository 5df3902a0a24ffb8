"""The sources of settings, and the messages about wrong ones."""

import re
from pathlib import Path

import pytest

from asynsched.cli.configuration import all_options, load_configuration
from asynsched.errors import SettingsError
from asynsched.settings import LeaseSettings, LogSettings, MonitorSettings, ParseSettings, Settings


def load(folder: Path, *, toml: str | None = None, flags=None, **environ: str):
    if toml is not None:
        (folder / "asynsched.toml").write_text(toml, encoding="utf-8")
    return load_configuration(flags or {}, environ, folder)


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "value", "source"),
    [
        (None, {}, {}, 50.0, "default"),
        ("[parse]\ntimeout = 7", {}, {}, 7.0, "asynsched.toml"),
        ("[parse]\ntimeout = 7", {"ASYNSCHED_PARSE__TIMEOUT": "8.5"}, {}, 8.5, "environment variable"),
        ("[parse]\ntimeout = 7", {"ASYNSCHED_PARSE__TIMEOUT": "8.5"}, {"parse.timeout": 9.0}, 9.0, "--parse-timeout"),
        ("[parse]\ntimeout = 7", {}, {"parse.timeout": None}, 7.0, "asynsched.toml"),
    ],
    ids=["default", "file", "environment over file", "flag over environment", "a flag not given"],
)
def test_nearest_source_wins_and_is_named(tmp_path, toml, environ, flags, value, source):
    configuration = load(tmp_path, toml=toml, flags=flags, **environ)
    assert configuration.settings.parse.timeout == value
    assert source in configuration.sources["parse.timeout"]


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("ASYNSCHED_HOME", "/somewhere", "home", "/somewhere"),
        ("ASYNSCHED_PARALLELISM", "4", "parallelism", 4),
        ("ASYNSCHED_DAGS_ARE_PAUSED_AT_CREATION", "Yes", "dags_are_paused_at_creation", True),
        ("ASYNSCHED_WATCH__SAFE_MODE", "off", "watch.safe_mode", False),
        ("ASYNSCHED_PARSE__READABLE", "/data, /more data", "parse.readable", ("/data", "/more data")),
        ("ASYNSCHED_PARSE__READABLE", '["/with,comma"]', "parse.readable", ("/with,comma",)),
        ("ASYNSCHED_PARSE__READABLE", "", "parse.readable", ()),
        ("ASYNSCHED_WATCH__SORT_MODE", "alphabetical", "watch.sort_mode", "alphabetical"),
        ("ASYNSCHED_DEFAULT_TIMEZONE", "Europe/Berlin", "default_timezone", "Europe/Berlin"),
    ],
)
def test_environment_texts_become_values_of_their_type(tmp_path, variable, text, name, value):
    found = load(tmp_path, **{variable: text}).settings
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(tmp_path):
    tcp = {f"ASYNSCHED_PORT_8080_TCP{end}": "x" for end in ("", "_ADDR", "_PORT", "_PROTO")}
    service = {f"ASYNSCHED_{end}": "x" for end in ("PORT", "SERVICE_HOST", "SERVICE_PORT")}
    another = {f"ASYNSCHED_WEB_{end}": "x" for end in ("PORT", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP")}
    assert load(tmp_path, **tcp, **service, **another).settings == Settings()
    with pytest.raises(SettingsError, match="ASYNSCHED_METRICS_PORT: there is no such setting"):
        load(tmp_path, **service, ASYNSCHED_METRICS_PORT="9000")


def test_every_setting_can_be_set_by_its_variable_and_in_the_file(tmp_path):
    options = all_options()
    texts = {o.name: ",".join(o.default) if isinstance(o.default, tuple) else str(o.default) for o in options.values()}
    without_default = {"database": "sqlite:///x.db", "fernet_key": "a,b", "fernet_key_file": "keys"}
    texts |= without_default | {"log.file": "log", "monitor.listen": "unix:x", "lease.shared_outage": "7"}
    by_variable = load(tmp_path, **{options[name].variable: text for name, text in texts.items()})
    assert {source.split()[0] for source in by_variable.sources.values()} == {"environment"}
    lines = [f'{name} = "{text}"' for name, text in texts.items()]
    by_file = load(tmp_path, toml="\n".join(lines))
    expected = Settings(
        **without_default,
        log=LogSettings(file="log"),
        monitor=MonitorSettings(listen="unix:x"),
        lease=LeaseSettings(shared_outage=7),
    )
    assert by_file.settings == by_variable.settings == expected


@pytest.mark.parametrize(
    ("toml", "environ", "message"),
    [
        (None, {"ASYNSCHED_PARSE__TIMEOUT": "soon"}, "parse.timeout: must be a number .*'soon'.*ASYNSCHED_PARSE__TIM"),
        (None, {"ASYNSCHED_PARSE__TIMEOUT": "-1"}, "parse.timeout: must be a number above 0"),
        (None, {"ASYNSCHED_PARSE__TIMEOUT": "nan"}, "parse.timeout: must be a number above 0 up to"),
        (None, {"ASYNSCHED_PARSE__TIMEOUT": "inf"}, "parse.timeout: must be a number above 0 up to"),
        (None, {"ASYNSCHED_PARALLELISM": "0"}, "parallelism: must be a whole number from 1"),
        (None, {"ASYNSCHED_WATCH__MODE": "magic"}, "watch.mode: must be one of auto, events, poll"),
        (None, {"ASYNSCHED_WATCH__SAFE_MODE": "perhaps"}, "watch.safe_mode: must be true or false"),
        (None, {"ASYNSCHED_PARSE__READABLE": "[1"}, "parse.readable: must be a list"),
        (None, {"ASYNSCHED_DEFAULT_TIMEZONE": "Mars/Olympus"}, "default_timezone: there is no .*'Mars.*_TIMEZONE"),
        (None, {"ASYNSCHED_LEASE__DURATION": "4"}, "lease.renew_interval: must be below lease.duration, which is 4"),
        (None, {"ASYNSCHED_CONFIG": "gone.toml"}, "gone.toml: the file cannot be read.*ASYNSCHED_CONFIG"),
        ("parallelism = 'many'", {}, "parallelism: must be a whole number.*asynsched.toml"),
        ("paralelism = 3", {}, "asynsched.toml: there is no setting 'paralelism'. Did you mean parallelism"),
        ("[parse]\ntimeot = 3", {}, "asynsched.toml: there is no setting 'parse.timeot'. Did you mean parse.timeout"),
        ("parse = 3", {}, "there is no setting 'parse'"),
        ("[pasre]\ntimeout = 3", {}, "there is no setting 'pasre.timeout'. Did you mean parse.timeout"),
        ("[core]\nparallelism = 3", {}, r"there is no setting 'core.parallelism'. Did you mean parallelism\?"),
        ("[pasre]", {}, "there is no setting 'pasre'"),
        ("[parallelism]\nn = 3", {}, "there is no setting 'parallelism.n'. Did you mean parallelism"),
        (None, {"ASYNSCHED_PARALELISM": "3"}, r"variable ASYNSCHED_PARALELISM: there is no .* ASYNSCHED_PARALLELISM\?"),
        (None, {"ASYNSCHED_PARSE_TIMEOUT": "3"}, r"no such setting. Did you mean ASYNSCHED_PARSE__TIMEOUT\?"),
        (None, {"ASYNSCHED_PARSE__TIMEOT": "3", "OTHER": "x"}, r"Did you mean ASYNSCHED_PARSE__TIMEOUT\?"),
        (None, {"ASYNSCHED_DAGS": "d"}, r"Did you mean ASYNSCHED_DAGS_FOLDER or ASYNSCHED_DAGS_ARE_PAU.*\?"),
        (None, {"ASYNSCHED_SAFE_MODE": "d"}, r"Did you mean ASYNSCHED_WATCH__SAFE_MODE\?"),
        (None, {"ASYNSCHED_ZZZ": "d"}, r"ASYNSCHED_ZZZ: there is no such setting\.$"),
        ("parallelism = \n", {}, "asynsched.toml: this is not TOML.*line 1"),
    ],
)  # fmt: skip
def test_wrong_setting_names_the_option_and_where_it_was_set(tmp_path, toml, environ, message):
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, toml=toml, **environ)


def test_password_is_shown_nowhere(tmp_path):
    url = "postgresql://me:hunter2@host/db?password=hunter2"
    configuration = load(tmp_path, ASYNSCHED_DATABASE=url, ASYNSCHED_FERNET_KEY="hunter2")
    assert configuration.settings.database == url
    assert configuration.settings.fernet_key == "hunter2"
    assert "hunter2" not in str(configuration.rows())
    assert "hunter2" not in repr(configuration.settings)


def test_file_can_be_named_by_a_variable(tmp_path):
    (tmp_path / "other.toml").write_text("parallelism = 3")
    configuration = load(tmp_path, toml="parallelism = 2", ASYNSCHED_CONFIG=str(tmp_path / "other.toml"))
    assert configuration.settings.parallelism == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Settings(parallelism=0), "parallelism"),
        (lambda: ParseSettings(timeout="5"), "parse.timeout"),
        (lambda: LeaseSettings(renew_interval=20), "lease.renew_interval: must be below lease.duration, which is 15"),
        (lambda: Settings(home=""), "home: must not be empty"),
    ],
)
def test_settings_made_by_a_program_are_checked_too(make, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        make()
