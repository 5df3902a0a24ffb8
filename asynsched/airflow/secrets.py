"""Secrets backends: stores of connections and variables that a task asks before the environment and the database.

`AIRFLOW__SECRETS__BACKEND` names the class, as in Airflow; for tasks, `AIRFLOW__WORKERS__SECRETS_BACKEND` goes before
it. A backend is user code, and so only processes that run user code make one, when they first need it.
"""

from __future__ import annotations

import os

from asynsched.airflow.configuration import conf
from asynsched.airflow.exceptions import AirflowConfigException, AirflowSecretsBackendAccessDenied
from asynsched.authoring.connection import CONNECTION_PREFIX, VARIABLE_PREFIX, Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OPTIONS = (("workers", "secrets_backend"), ("secrets", "backend"))
"""Options that name the backend's class, in order of precedence. The arguments are in an option with `_kwargs` behind
that name."""
_made: BaseSecretsBackend | None = None


class BaseSecretsBackend:
    """Base class of a store for connections and variables.

    Subclasses implement `get_conn_value` and `get_variable`.
    """

    @staticmethod
    def build_path(path_prefix: str, secret_id: str, sep: str = "/") -> str:
        """Return the place of a secret: prefix, separator, id."""
        return f"{path_prefix}{sep}{secret_id}"

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        """Return a connection as a URI or as JSON; None if there is none. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn_value()")

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        """Return a variable; None if there is none. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_variable()")

    def get_config(self, key: str) -> str | None:
        """Return an option of the configuration; None if there is none."""
        del key
        return None

    def deserialize_connection(self, conn_id: str, value: str) -> Connection:
        """Return the connection that a URI or JSON describes. Raises AsynschedException if it is neither."""
        return Connection.from_text(value.strip(), conn_id)

    def get_connection(self, conn_id: str, team_name: str | None = None) -> Connection | None:
        """Return a connection; None if there is none."""
        # Backends that were written before Airflow 3.2 know no teams.
        value = self.get_conn_value(conn_id) if team_name is None else self.get_conn_value(conn_id, team_name)
        return self.deserialize_connection(conn_id, value) if value else None


class EnvironmentVariablesBackend(BaseSecretsBackend):
    """Has the connections and variables in `AIRFLOW_CONN_*` and `AIRFLOW_VAR_*`."""

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        del team_name
        return os.environ.get(CONNECTION_PREFIX + conn_id.upper())

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        del team_name
        return os.environ.get(VARIABLE_PREFIX + key.upper())


def connection_of_backend(conn_id: str) -> Connection | None:
    """Return the connection that the configured backend has, masked in the log of the task; None if it has none.

    Raises AirflowSecretsBackendAccessDenied and, for a wrong configuration, AirflowConfigException.
    """
    backend = _backend()
    found = None if backend is None else _asked(f"the connection {conn_id!r}", backend.get_connection, conn_id=conn_id)
    if found is None:
        return None
    # A backend of an installed Airflow makes connections of its own class.
    connection = found if isinstance(found, Connection) else Connection.from_uri(found.get_uri(), conn_id)
    _mask("connection_get", {}, vars(connection))
    return connection


def variable_of_backend(key: str) -> Any:
    """Return the variable that the configured backend has; see `connection_of_backend`."""
    backend = _backend()
    value = None if backend is None else _asked(f"the variable {key!r}", backend.get_variable, key=key)
    if value is not None:
        _mask("variable_get", {"key": key}, value)
    return value


def _mask(operation: str, arguments: dict[str, Any], value: Any) -> None:
    from asynsched.authoring.masking import mask_secret, secrets_in_answer

    mask_secret(list(secrets_in_answer(operation, arguments, value)))


def _asked(what: str, ask: Callable[..., Any], **arguments: Any) -> Any:
    """Return the backend's answer; None if it fails: Airflow, too, goes on to the environment and the database."""
    try:
        return ask(**arguments)
    except AirflowSecretsBackendAccessDenied:
        raise
    except Exception as exc:
        import logging

        log = logging.getLogger("asynsched.task.secrets")
        log.warning("The secrets backend could not be asked for %s: %s: %s", what, type(exc).__name__, exc)
        log.debug("The error of the secrets backend", exc_info=True)
        return None


def _backend() -> BaseSecretsBackend | None:
    """Return the backend of this process; None if none is configured."""
    global _made
    if _made is None:
        option = next((option for option in _OPTIONS if conf.get(*option, fallback="")), None)
        if option is not None:
            backend_class = conf.getimport(*option)
            _made = backend_class(**_arguments(*option))
    return _made


def _arguments(section: str, key: str) -> dict[str, Any]:
    """Return the arguments of the backend. A variable for one argument overrides the JSON object."""
    option = f"{key}_kwargs"
    try:
        given = conf.getjson(section, option) or {}
    except AirflowConfigException:
        given = None
    # The text is not shown: it may hold a password.
    if not isinstance(given, dict):
        raise AirflowConfigException(f"[{section}] {option} must be a JSON object")
    prefix = f"AIRFLOW__{section}__{key}_kwarg__".upper()
    single = {name.removeprefix(prefix).lower(): text for name, text in os.environ.items() if name.startswith(prefix)}
    return given | single
