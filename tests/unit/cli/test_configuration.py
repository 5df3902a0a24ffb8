"""The sources of settings, and the messages about wrong ones."""

import re
from pathlib import Path

import pytest

from asynsched.cli.airflow_cfg import without_effect
from asynsched.cli.command import settings_located
from asynsched.cli.configuration import all_options, load_configuration
from asynsched.errors import SecretsUnreadable, SettingsError
from asynsched.settings import LeaseSettings, LogSettings, MonitorSettings, ParseSettings, Settings, WebSettings
from asynsched.store.engines.urls import parse_url


def load(folder: Path, *, toml: str | None = None, flags=None, **environ: str):
    if toml is not None:
        (folder / "asynsched.toml").write_text(toml, encoding="utf-8")
    return load_configuration(flags or {}, environ, folder)


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "value", "source"),
    [
        (None, {}, {}, 50.0, "default"),
        ("[parse]\ntimeout = 7", {}, {}, 7.0, "asynsched.toml"),
        ("\ufeff[parse]\r\ntimeout = 7\r\n", {}, {}, 7.0, "asynsched.toml, line 2"),
        ("[parse]\ntimeout = 7", {"ASYNSCHED_PARSE__TIMEOUT": "8.5"}, {}, 8.5, "environment variable"),
        ("[parse]\ntimeout = 7", {"ASYNSCHED_PARSE__TIMEOUT": "8.5"}, {"parse.timeout": 9.0}, 9.0, "--parse-timeout"),
        ("[parse]\ntimeout = 7", {}, {"parse.timeout": None}, 7.0, "asynsched.toml"),
    ],
    ids=["default", "file", "file of Windows", "environment over file", "flag over environment", "a flag not given"],
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
    (tmp_path / "airflow.cfg").touch()
    of_airflow = {"airflow_cfg": str(tmp_path / "airflow.cfg"), "plugins_folder": "plugins"}
    texts |= of_airflow | {"max_task_retry_delay": "60", "default_task_execution_timeout": "9"}
    of_web = {
        "listen": "off",
        "tls_certificate": "a",
        "tls_key": "b",
        "user_header": "X-User",
        "oidc_issuer": "https://c",
    }
    of_web |= {"oidc_client_id": "d", "oidc_client_secret_file": "e"}
    texts |= {f"web.{name}": text for name, text in of_web.items()} | {"web.trusted_proxies": "10.0.0.1"}
    by_variable = load(tmp_path, **{options[name].variable: text for name, text in texts.items()})
    assert {source.split()[0] for source in by_variable.sources.values()} == {"environment"}
    lines = [f'{name} = "{text}"' for name, text in texts.items()]
    by_file = load(tmp_path, toml="\n".join(lines))
    expected = Settings(
        **without_default,
        **of_airflow,
        max_task_retry_delay=60,
        default_task_execution_timeout=9,
        log=LogSettings(file="log"),
        monitor=MonitorSettings(listen="unix:x"),
        lease=LeaseSettings(shared_outage=7),
        web=WebSettings(trusted_proxies=("10.0.0.1",), **of_web),
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
        (
            None, {"ASYNSCHED_LEASE__DURATION": "4"},
            "lease.renew_interval: must be below lease.duration, which is 4; lease.duration is set by environment vari",
        ),
        ("\n[web]\ntls_key = 'x'", {}, "web.tls_certificate: .* must be set together; web.tls_key .*toml, line 3$"),
        (None, {"ASYNSCHED_CONFIG": "gone.toml"}, "gone.toml: the file cannot be read.*ASYNSCHED_CONFIG"),
        ("parallelism = 'many'", {}, "parallelism: must be a whole number.*asynsched.toml, line 1"),
        ("[watch]\n[parse]\n# timeout = 1\ntimeout = -1", {}, "parse.timeout: must be .*asynsched.toml, line 4"),
        ("\nparse.timeout = -1", {}, "parse.timeout: must be .*asynsched.toml, line 2"),
        ("\nparse = {timeout = -1}", {}, "parse.timeout: must be .*asynsched.toml, line 2"),
        ("home = '''\n[parse]\ntimeout = 1\n'''\n[parse]\n'timeout' = -1", {}, "timeout: .*asynsched.toml, line 6"),
        ("\n[[parse]]\ntimeout = -1", {}, "asynsched.toml, line 2: there is no setting 'parse'"),
        ("celery.broker_url = 3", {}, "celery.broker_url: must be a text; it is 3 .*line 1"),
        ("\nparalelism = 3", {}, "asynsched.toml, line 2: there is no setting 'paralelism'. Did you mean parallelism"),
        ("[parse]\ntimeot = 3", {}, "line 2: there is no setting 'parse.timeot'. Did you mean parse.time"),
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
        ("celery.options = '[1]'", {}, r"celery.options: must be a JSON object; it is '\*\*\*'"),
    ],
)  # fmt: skip
def test_wrong_setting_names_the_option_and_where_it_was_set(tmp_path, toml, environ, message):
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, toml=toml, **environ)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (SettingsError("log.store: no such bucket"), "log.store: no such bucket (set by {toml})"),
        (
            SecretsUnreadable("fernet_key: no key"),
            "fernet_key: no key (set by environment variable ASYNSCHED_FERNET_KEY)",
        ),
        (SettingsError("parallelism: must be more"), "parallelism: must be more"),
        (
            SettingsError("web.tls_certificate, log.store: must agree"),
            "web.tls_certificate, log.store: must agree; log.store is set by {toml}",
        ),
    ],
)
def test_an_error_that_shows_only_at_the_use_of_a_setting_has_its_place(tmp_path, raised, told):
    configuration = load(tmp_path, toml="[log]\nstore = 's3://no'", ASYNSCHED_FERNET_KEY="x")
    with pytest.raises(type(raised)) as caught, settings_located(configuration):
        raise raised
    places = {"toml": configuration.sources["log.store"]}
    assert str(caught.value) == told.format(**places)


def test_a_tilde_at_the_start_of_a_path_is_the_home_folder_of_a_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "home = '~/state'\ndatabase = 'sqlite:///~/a.db'\n[parse]\nreadable = ['~/data', '/a~']\n"
    settings = load(tmp_path, toml=text + "[kubernetes]\nkubeconfig = '~/.kube/config'\n").settings
    assert settings.home_path == tmp_path / "state"
    assert parse_url(settings.database_url).path == tmp_path / "a.db"
    assert settings.parse.readable == (f"{tmp_path}/data", "/a~")
    assert settings.kubernetes.kubeconfig == f"{tmp_path}/.kube/config"
    assert Settings(fernet_key_file="~/keys").fernet_key_file == f"{tmp_path}/keys"


def test_password_is_shown_nowhere(tmp_path):
    url = "postgresql://me:hunter2@host/db?password=hunter2"
    celery = {
        "ASYNSCHED_CELERY__BROKER_URL": "redis://:hunter2@host/0",
        "ASYNSCHED_CELERY__OPTIONS": '{"broker_password": "hunter2"}',
    }
    configuration = load(tmp_path, ASYNSCHED_DATABASE=url, ASYNSCHED_FERNET_KEY="hunter2", **celery)
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


CFG = """[core]
# parallelism = 1
parallelism = 7
default_timezone = utc
executor = CeleryExecutor
dag_concurrency = 5
plugins_folder = $PLACE/extensions

[scheduler]
catchup_by_default = True
parsing_processes = 3

[dag_processor]
parsing_processes = 4
"""


def site(folder: Path, cfg: str = CFG) -> Path:
    (folder / "dags").mkdir(exist_ok=True)
    (folder / "airflow.cfg").write_text(cfg)
    return folder / "airflow.cfg"


def test_an_airflow_cfg_beside_the_dag_folder_gives_values_and_airflows_defaults(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", "/srv")
    cfg = site(tmp_path)
    settings, sources = load(tmp_path)
    assert (settings.parallelism, settings.default_timezone, settings.executor) == (7, "UTC", "local")
    assert (settings.max_active_tasks_per_dag, settings.parse.processes) == (5, 4)
    assert (settings.catchup_by_default, settings.plugins_path) == (True, Path("/srv/extensions"))
    assert settings.dags_are_paused_at_creation
    assert settings.like_airflow
    assert sources["parallelism"] == f"{cfg}, line 3, [core] parallelism"
    assert sources["dags_are_paused_at_creation"] == "Airflow's default"


@pytest.mark.parametrize(
    ("theirs", "toml", "said"),
    [
        ("LocalExecutor", None, None),
        ("CeleryExecutor", None, "executor = celery"),
        ("CeleryExecutor", 'executor = "celery"', None),
        ("LocalKubernetesExecutor", None, "executor = local,kubernetes"),
        ("LocalExecutor,k8s:airflow.providers.cncf.kubernetes.executors.KubernetesExecutor", None, "local,kubernetes"),
        ("EdgeExecutor", None, "tasks run on this machine"),
    ],
)
def test_an_executor_of_airflow_s_is_answered_with_the_setting_of_ours(tmp_path, theirs, toml, said):
    site(tmp_path, f"[core]\nexecutor = {theirs}")
    settings, _ = load(tmp_path, toml=toml)
    sentences = [*without_effect(settings, {})]
    assert len(sentences) == (said is not None)
    assert all(sentence.endswith(said) for sentence in sentences)


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "value"),
    [
        (None, {}, {}, 7),
        (None, {"AIRFLOW__CORE__PARALLELISM": "8"}, {}, 8),
        ("parallelism = 9", {"AIRFLOW__CORE__PARALLELISM": "8"}, {}, 9),
        ("parallelism = 9", {"ASYNSCHED_PARALLELISM": "10"}, {}, 10),
        ("parallelism = 9", {"ASYNSCHED_PARALLELISM": "10"}, {"parallelism": 11}, 11),
        ("like_airflow = false", {"AIRFLOW__CORE__PARALLELISM": "8"}, {}, 32),
        ("airflow_cfg = ''", {"AIRFLOW__CORE__PARALLELISM": "8"}, {}, 32),
    ],
)
def test_our_own_sources_come_before_variables_of_airflow_and_these_before_its_file(
    tmp_path, toml, environ, flags, value
):
    site(tmp_path)
    assert load(tmp_path, toml=toml, flags=flags, **environ).settings.parallelism == value


def test_without_an_airflow_cfg_its_defaults_and_variables_count_only_if_wanted(tmp_path):
    variable = {"AIRFLOW__CORE__PARALLELISM": "8"}
    plain, wanted = (
        load(tmp_path, **variable).settings,
        load(tmp_path, flags={"like_airflow": True}, **variable).settings,
    )
    assert (plain.parallelism, plain.dags_are_paused_at_creation) == (32, False)
    assert (wanted.parallelism, wanted.dags_are_paused_at_creation) == (8, True)


@pytest.mark.parametrize("variable", ["AIRFLOW_HOME", "AIRFLOW_CONFIG"])
def test_the_airflow_cfg_that_the_environment_names_also_names_the_dag_folder(tmp_path, variable):
    home = tmp_path / "airflow"
    home.mkdir()
    cfg = site(home, "[core]\ndags_folder = /srv/dags\n")
    settings = load(tmp_path, **{variable: str(home if variable == "AIRFLOW_HOME" else cfg)}).settings
    assert (settings.dags_folder, settings.airflow_cfg) == ("/srv/dags", str(cfg))
    assert load(tmp_path, flags={"dags_folder": "mine"}, **{variable: str(cfg)}).settings.dags_folder == "mine"


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (
            "[core]\n\nparallelism = many",
            "parallelism: must be a whole number .*'many' .*airflow.cfg, line 3, .core. para",
        ),
        ("[core]\nparallelism", "airflow.cfg, line 2: this is not a configuration of Airflow"),
        ("[core]\ndefault_timezone = Mars/Base", "no timezone 'Mars/Base'.*line 2, .core. default_timezone"),
    ],
)
def test_an_invalid_option_of_airflow_is_one_error_that_names_its_place(tmp_path, cfg, message):
    site(tmp_path, cfg)
    with pytest.raises(SettingsError, match=message):
        load(tmp_path)


def test_an_airflow_cfg_in_the_folder_config_belongs_to_the_folder_above_it(tmp_path):
    for name in ("dags", "plugins", "config"):
        (tmp_path / name).mkdir()
    cfg = tmp_path / "config" / "airflow.cfg"
    cfg.write_text("[core]\nparallelism = 7\n")
    settings = load(tmp_path).settings
    assert (settings.parallelism, settings.airflow_cfg) == (7, str(cfg))
    assert (settings.airflow_folder, settings.plugins_path) == (tmp_path, tmp_path / "plugins")
    assert settings.installation_folders == [str(tmp_path / "plugins"), str(tmp_path / "config")]
    cfg.rename(tmp_path / "airflow.cfg")
    assert load(tmp_path, AIRFLOW_CONFIG=str(tmp_path / "airflow.cfg")).settings.airflow_folder == tmp_path


def test_two_percent_signs_in_an_airflow_cfg_are_one(tmp_path):
    site(tmp_path, "[operators]\ndefault_owner = %%h of 100%%\n")
    assert load(tmp_path).settings.default_owner == "%h of 100%"


def test_an_airflow_cfg_that_is_named_and_missing_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match=r"AIRFLOW_CONFIG: there is no file .*gone.cfg"):
        load(tmp_path, AIRFLOW_CONFIG=str(tmp_path / "gone.cfg"))
