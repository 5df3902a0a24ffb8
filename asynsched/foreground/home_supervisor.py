"""Variables, connections and settings of a home, for a program that runs a DAG file by itself."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound
from asynsched.errors import NotFound, StoreError
from asynsched.fernet_keys import keys_of
from asynsched.settings import Settings, settings_from
from asynsched.store.database import DirectDatabase
from asynsched.store.engines.opening import connect_direct
from asynsched.store.engines.urls import parse_url
from asynsched.store.secrets import get_connection, get_variable, variable_keys

_READ = ("home", "database", "fernet_key", "fernet_key_file", "max_map_length")
"""The settings that are read from the environment."""


class DatabaseSupervisor:
    """Answers requests for variables and connections from a database, opened at the first of them, and for settings.

    It reads in a thread of its own: the task that asks may run in an event loop.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: DirectDatabase | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asynsched-supervisor")

    def request(self, operation: str, **arguments: Any) -> Any:
        """Return the answer.

        Raises:
            SupervisorNotFound: There is no such variable or connection.
            SupervisorError: The database cannot be read, or something else is asked for.
        """
        if operation == "max_map_length":
            return self._settings.max_map_length
        try:
            return self._thread.submit(self._answer, operation, arguments).result()
        except NotFound as exc:
            raise SupervisorNotFound(str(exc)) from None
        except StoreError as exc:
            raise SupervisorError(f"{operation}: {exc}") from exc

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    def _answer(self, operation: str, arguments: dict[str, Any]) -> Any:
        if self._database is None:
            self._database = connect_direct(parse_url(self._settings.database_url), keys=keys_of(self._settings))
        if operation not in ("variable_get", "variable_keys", "connection_get"):
            raise SupervisorError(f"{operation} cannot be answered in a run without a scheduler")
        return self._database.read(stored_value, operation, arguments)


def stored_value(conn: Connection, operation: str, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a variable, the keys of variables, or the fields of a connection. Raises NotFound."""
    if operation == "variable_keys":
        return variable_keys(conn, arguments["prefix"])
    if operation == "variable_get":
        return get_variable(conn, arguments["key"]).value
    return msgspec.structs.asdict(get_connection(conn, arguments["conn_id"]))


def supervisor_of_home(environ: Mapping[str, str]) -> DatabaseSupervisor | None:
    """Return the supervisor of the home that `ASYNSCHED_HOME` names, if it has a database.

    The database is that of `ASYNSCHED_DATABASE`, or else the SQLite file in the home.
    """
    if not environ.get("ASYNSCHED_HOME"):
        return None
    variables = {name: environ.get(f"ASYNSCHED_{name.upper()}") for name in _READ}
    return supervisor_of_database(settings_from({name: value for name, value in variables.items() if value}))


def supervisor_of_database(settings: Settings) -> DatabaseSupervisor | None:
    """Return the supervisor of a database, if it is there. Nothing is made."""
    path = parse_url(settings.database_url).path
    if path is not None and not Path(path).exists():
        return None
    return DatabaseSupervisor(settings)
