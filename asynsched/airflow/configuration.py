"""`conf`: Airflow's configuration, as providers and DAG files read it.

An option comes from asynsched's settings where there is an equivalent, then from `AIRFLOW__SECTION__KEY` in the
environment, then from airflow.cfg, then from Airflow's defaults that are here, then from the defaults of the installed
providers, then from `defaults.cfg`, which has all other defaults of Airflow's. Only the defaults of secrets, and of the
address of Airflow's database, are left out.

Source of the defaults: `airflow/config_templates` of Apache Airflow 3.3.2.
"""

from __future__ import annotations

import os
from functools import cache

from asynsched.airflow.exceptions import AirflowConfigException
from asynsched.errors import SettingsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from enum import Enum
    from typing import Any, TypeVar

    Member = TypeVar("Member", bound=Enum)

AIRFLOW_HOME = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))  # noqa: PTH111 - pathlib is heavy
_ENVIRONMENT_PREFIX = "AIRFLOW__"
_DEFAULTS: dict[str, dict[str, str]] = {
    "core": {
        "dags_folder": f"{AIRFLOW_HOME}/dags", "plugins_folder": f"{AIRFLOW_HOME}/plugins", "default_timezone": "utc",
        "executor": "LocalExecutor", "parallelism": "32", "max_active_tasks_per_dag": "16",
        "max_active_runs_per_dag": "16", "max_consecutive_failed_dag_runs_per_dag": "0",
        "dags_are_paused_at_creation": "True", "load_examples": "True", "dagbag_import_timeout": "30.0",
        "default_impersonation": "", "security": "", "unit_test_mode": "False",
        "allowed_deserialization_classes": "airflow.*", "allowed_deserialization_classes_regexp": "",
        "killed_task_cleanup_time": "60", "dag_run_conf_overrides_params": "True", "dag_discovery_safe_mode": "True",
        "dag_ignore_file_syntax": "glob", "default_task_retries": "0", "default_task_retry_delay": "300",
        "max_task_retry_delay": "86400", "default_task_weight_rule": "downstream",
        "default_task_execution_timeout": "", "hide_sensitive_var_conn_fields": "True",
        "sensitive_var_conn_names": "", "default_pool_task_slot_count": "128", "max_map_length": "1024",
        "allow_double_dot_in_ids": "False", "test_connection": "Disabled", "max_templated_field_length": "4096",
        "multi_team": "False", "hostname_callable": "airflow.utils.net.getfqdn",
        "xcom_backend": "airflow.sdk.bases.xcom.BaseXCom",
    },
    "logging": {
        "base_log_folder": f"{AIRFLOW_HOME}/logs", "remote_logging": "False", "remote_log_conn_id": "",
        "delete_local_logs": "False", "google_key_path": "", "remote_base_log_folder": "",
        "remote_task_handler_kwargs": "", "encrypt_s3_logs": "False", "logging_level": "INFO",
        "colored_console_log": "True", "log_format": "", "min_length_masked_secret": "5", "task_log_reader": "task",
        "simple_log_format": "%(asctime)s %(levelname)s - %(message)s",
        "file_task_handler_new_folder_permissions": "0o775", "file_task_handler_new_file_permissions": "0o664",
    },
    "operators": {
        "default_owner": "airflow", "default_deferrable": "false", "default_cpus": "1", "default_ram": "512",
        "default_disk": "512", "default_gpus": "0", "default_queue": "default",
    },
    "sensors": {"default_timeout": "604800"},
    "email": {
        "email_backend": "airflow.utils.email.send_email_smtp", "email_conn_id": "smtp_default",
        "default_email_on_retry": "True", "default_email_on_failure": "True", "ssl_context": "default",
    },
    "smtp": {
        "smtp_host": "localhost", "smtp_starttls": "True", "smtp_ssl": "False", "smtp_port": "25",
        "smtp_mail_from": "airflow@example.com", "smtp_timeout": "30", "smtp_retry_limit": "5",
    },
    "kerberos": {
        "ccache": "/tmp/airflow_krb5_ccache",  # noqa: S108 - Airflow's default
        "principal": "airflow", "reinit_frequency": "3600", "kinit_path": "kinit", "keytab": "airflow.keytab",
        "forwardable": "True", "include_ip": "True",
    },
    "secrets": {"backend": "", "backend_kwargs": "", "use_cache": "False", "cache_ttl_seconds": "900"},
    "workers": {
        "secrets_backend": "", "secrets_backend_kwargs": "", "execution_api_retries": "5",
        "execution_api_retry_wait_min": "1.0", "execution_api_retry_wait_max": "90.0",
    },
    "scheduler": {
        "catchup_by_default": "False", "create_cron_data_intervals": "False", "create_delta_data_intervals": "False",
        "scheduler_health_check_threshold": "30", "orphaned_tasks_check_interval": "300.0",
        "max_dagruns_to_create_per_loop": "10", "max_dagruns_per_loop_to_schedule": "20",
        "allowed_run_id_pattern": "^[A-Za-z0-9_.~:+-]+$",
    },
    "dag_processor": {
        "refresh_interval": "300", "parsing_processes": "2", "file_parsing_sort_mode": "modified_time",
        "min_file_process_interval": "30", "dag_file_processor_timeout": "50",
    },
    "triggerer": {"capacity": "1000"},
    "api": {"host": "0.0.0.0", "port": "8080", "ssl_cert": "", "ssl_key": "", "maximum_page_limit": "100"},  # noqa: S104
    "lineage": {"max_assets_per_collector": "100", "max_extras_per_collector": "200"},
    "metrics": {"statsd_on": "False", "statsd_prefix": "airflow", "otel_on": "False", "otel_prefix": "airflow"},
}  # fmt: skip
"""The defaults that have a meaning outside of Airflow's own processes."""

_TRUE, _FALSE = ("t", "true", "1"), ("f", "false", "0")
_from_settings: dict[str, str] = {}
_read: dict[str, None] = {}
_LONGEST_NAME = 250


def set_options(options: Mapping[str, str]) -> None:
    """Set the options that asynsched's settings answer, by `section.key`."""
    global _from_cfg
    _from_cfg = None
    _from_settings.clear()
    _from_settings.update(options)


_CFG = "asynsched.airflow_cfg"
"""Among the options, the path of the airflow.cfg. A parse has none: the file may hold secrets."""
_from_cfg: dict[str, str] | None = None


def with_cfg(options: Mapping[str, str], cfg: str | None) -> dict[str, str]:
    """Return the options for a process that may read the airflow.cfg at this path."""
    return dict(options) | ({_CFG: cfg} if cfg else {})


def read_cfg(path: str) -> dict[str, str]:
    """Return the options of an airflow.cfg, by `section.key`, without the options that lead to Airflow's database.

    Raises SettingsError, which names the file and the line, if it cannot be read.
    """
    from configparser import ConfigParser, Error

    parser = ConfigParser(interpolation=None, strict=False)
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123 - pathlib is heavy
            parser.read_file(file, path)
    except OSError as exc:
        raise SettingsError(f"{path}: the file cannot be read: {exc.strerror}") from exc
    except (Error, UnicodeDecodeError) as exc:
        # Not the parser's message, nor the parser's error as the cause: it may quote a line with a password.
        lines = getattr(exc, "errors", None) or [(getattr(exc, "lineno", None), "")]
        where = f", line {lines[0][0]}" if lines[0][0] else ""
        raise SettingsError(f"{path}{where}: this is not a configuration of Airflow") from None
    found = {
        # Airflow's parser writes a percent sign twice.
        f"{section.lower()}.{key}": os.path.expandvars(value.replace("%%", "%"))
        for section in parser.sections()
        for key, value in parser.items(section)
    }
    return {option: value for option, value in found.items() if not option.startswith(_OF_AIRFLOW_ALONE)}


def variables_of_cfg(path: str | None) -> dict[str, str]:
    """Return the options of an airflow.cfg as environment variables. Raises as `read_cfg` does."""
    options = read_cfg(path) if path else {}
    return {variable_of(*option.rsplit(".", 1)): value for option, value in options.items()}


_OF_AIRFLOW_ALONE = (
    "database.",
    "core.fernet_key",
    "core.sql_alchemy_conn",
    "celery.",
    "api_auth.",
    "webserver.secret",
)


def options_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options in an environment that have a default here and hold no secret, by `section.key`.

    They are shown to all users of the machine, in the arguments of processes. Arguments of a class, such as
    `backend_kwargs`, may hold a password.
    """
    named = {
        f"{section}.{key}": variable_of(section, key)
        for section, keys in _DEFAULTS.items()
        for key in keys
        if not key.endswith("_kwargs")
    }
    return {option: environment[name] for option, name in named.items() if name in environment}


class Configuration:
    """Answers questions for options; their values are texts.

    All methods take the section and the key, in any case, and `fallback`: what to return for an option that has no
    value. They raise AirflowConfigException if there is no fallback, or the value has the wrong form.
    """

    def get(self, section: str, key: str, **options: Any) -> Any:
        """Return the value as a text. Other arguments than `fallback` have no effect."""
        section, key = section.lower(), key.lower()
        value = _value(section, key)
        for defaults in (_defaults_of_providers, _other_defaults):
            if value is None:
                value = defaults().get(section, {}).get(key)
        if value is not None:
            return value
        if "fallback" in options:
            return options["fallback"]
        raise AirflowConfigException(
            f"[{section}] {key} is not configured; set {variable_of(section, key)} in the environment"
        )

    def get_mandatory_value(self, section: str, key: str, **options: Any) -> str:
        """Return the value as a text; None is an error as well."""
        value = self.get(section, key, **options)
        if value is None:
            raise _wrong(section, key, value, "a text")
        return str(value)

    def getboolean(self, section: str, key: str, **options: Any) -> bool:
        """Return whether the value is t, true or 1, and not f, false or 0."""
        value = self.get(section, key, **options)
        word = str(value).partition("#")[0].strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise _wrong(section, key, value, "true or false")
        return word in _TRUE

    def getint(self, section: str, key: str, **options: Any) -> int:
        """Return the value as an int."""
        value = self.get(section, key, **options)
        number = _converted(float, section, key, value, "a whole number")
        if not number.is_integer():
            raise _wrong(section, key, value, "a whole number")
        return int(number)

    def getfloat(self, section: str, key: str, **options: Any) -> float:
        """Return the value as a float."""
        number: float = _converted(float, section, key, self.get(section, key, **options), "a number")
        return number

    def getlist(self, section: str, key: str, delimiter: str = ",", **options: Any) -> Any:
        """Return the parts of the value between the delimiters."""
        value = self.get(section, key, **options)
        if value is None or isinstance(value, list):
            return value
        return [part.strip() for part in value.split(delimiter)] if value else []

    def get_mandatory_list_value(self, section: str, key: str, **options: Any) -> list[str]:
        """Return the parts of the value, as `getlist` does; None is an error as well."""
        value = self.getlist(section, key, **options)
        if value is None:
            raise _wrong(section, key, value, "a list")
        return list(value)

    def getjson(self, section: str, key: str, **options: Any) -> Any:
        """Return the value of a JSON text; the fallback for an empty one."""
        import json

        value = self.get(section, key, **options)
        if not value:
            return options.get("fallback") if value == "" else value
        if not isinstance(value, str):
            return value
        return _converted(json.loads, section, key, value, "JSON")

    def getimport(self, section: str, key: str, **options: Any) -> Any:
        """Return the object with that dotted name; None for an empty one."""
        from asynsched.airflow.module_loading import import_string

        value = self.get(section, key, **options)
        if not value:
            return None
        try:
            return import_string(value)
        except ImportError as exc:
            raise _wrong(section, key, value, "the name of an object that can be imported") from exc

    def getenum(self, section: str, key: str, enum_class: type[Member], **options: Any) -> Member:
        """Return the member of an enumeration with that name."""
        value = self.get(section, key, **options)
        if value not in enum_class.__members__:
            raise _wrong(section, key, value, f"one of {', '.join(enum_class.__members__)}")
        return enum_class[value]

    def gettimedelta(self, section: str, key: str, fallback: Any = None, **_options: Any) -> timedelta | None:
        """Return the value, in seconds, as a timedelta; None for an empty one."""
        from datetime import timedelta

        value = self.get(section, key, fallback=fallback)
        if not value or isinstance(value, timedelta):
            return value or None
        return timedelta(seconds=_converted(float, section, key, value, "a number of seconds"))

    def has_option(self, section: str, option: str, **_options: Any) -> bool:
        """Return whether the option has a value."""
        return self.get(section, option, fallback=None) is not None

    def has_section(self, section: str) -> bool:
        """Return whether the section has options."""
        return self.getsection(section) is not None

    def getsection(self, section: str, **_options: Any) -> dict[str, str | int | float | bool] | None:
        """Return the options of a section, numbers and booleans as such; None if it has none."""
        section = section.lower()
        prefix = variable_of(section, "")
        keys = {
            *_defaults_of_providers().get(section, ()),
            *_other_defaults().get(section, ()),
            *_DEFAULTS.get(section, ()),
            *(name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix)),
            *(
                name.removeprefix(f"{section}.")
                for name in (*_from_settings, *_options_of_cfg())
                if name.startswith(f"{section}.")
            ),
        }
        return {key: _natural(self.get(section, key)) for key in sorted(keys)} or None


conf = Configuration()


def get_airflow_home() -> str:
    """Return Airflow's folder: `AIRFLOW_HOME`, or `~/airflow`. asynsched does not use it."""
    return AIRFLOW_HOME


def variable_of(section: str, key: str) -> str:
    """Return the environment variable of an option."""
    return f"{_ENVIRONMENT_PREFIX}{section.replace('.', '_').upper()}__{key.upper()}"


def option_of_settings(name: str) -> str:
    """Return an option that asynsched's settings answer, without counting it as read; empty for none."""
    return _from_settings.get(name, "")


def options_read(at_most: int) -> tuple[str, ...]:
    """Return the options that were asked for in this process, as `section.key`, the first ones first."""
    return tuple(_read)[:at_most]


def _value(section: str, key: str) -> str | None:
    name = f"{section}.{key}"
    if name.isascii() and len(name) <= _LONGEST_NAME:
        _read[name] = None
    found = _from_settings.get(name)
    if found is None:
        found = os.environ.get(variable_of(section, key))
    if found is None:
        found = _options_of_cfg().get(name)
    return _DEFAULTS.get(section, {}).get(key) if found is None else found


def _options_of_cfg() -> dict[str, str]:
    """Return the options of the airflow.cfg, if there is one. It is read once, when it is first needed."""
    global _from_cfg
    if _from_cfg is None:
        path = _from_settings.get(_CFG)
        try:
            _from_cfg = read_cfg(path) if path else {}
        except SettingsError as exc:
            raise AirflowConfigException(str(exc)) from None
    return _from_cfg


@cache
def _defaults_of_providers() -> dict[str, dict[str, str]]:
    """Return the defaults that installed providers declare for options of their own."""
    from asynsched.authoring.providers import installed_providers

    found: dict[str, dict[str, str]] = {}
    for provider in installed_providers():
        if provider.error:
            import logging

            what = "The provider %s does not say its configuration: %s"
            logging.getLogger(__name__).warning(what, provider.distribution, provider.error)
        for section, described in provider.info.get("config", {}).items():
            found.setdefault(section, {}).update(
                (key, str(option["default"]))
                for key, option in described["options"].items()
                if option.get("default") is not None
            )
    return found


@cache
def _other_defaults() -> dict[str, dict[str, str]]:
    """Return the defaults of `defaults.cfg`. It is read once, when it is first needed."""
    found: dict[str, dict[str, str]] = {}
    path = os.path.join(os.path.dirname(__file__), "defaults.cfg")  # noqa: PTH118, PTH120 - pathlib is heavy
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            key, is_option, value = line.partition("=")
            if line.startswith("["):
                options = found.setdefault(line.strip("[]\n"), {})
            elif is_option:
                options[key.strip()] = value.strip().replace("{AIRFLOW_HOME}", AIRFLOW_HOME)
    return found


def _converted(convert: Callable[[Any], Any], section: str, key: str, value: Any, form: str) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError) as exc:
        raise _wrong(section, key, value, form) from exc


def _wrong(section: str, key: str, value: Any, form: str) -> AirflowConfigException:
    return AirflowConfigException(f"[{section.lower()}] {key.lower()} must be {form}, not {value!r}")


def _natural(value: str) -> str | int | float | bool:
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            pass
    word = value.lower()
    return word in _TRUE if word in (*_TRUE, *_FALSE) else value
