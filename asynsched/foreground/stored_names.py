"""Variables and connections of a home, for `DAG.test()` in a program of one's own."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound
from asynsched.errors import NotFound, StoreError
from asynsched.fernet_keys import keys_of
from asynsched.settings import Settings
from asynsched.store.connections import get_connection
from asynsched.store.direct_database import DirectDatabase, connect_direct
from asynsched.store.urls import parse_url
from asynsched.store.variables import get_variable


class StoredNames:
    """Answers `variable_get` and `connection_get` from a database, which it opens at the first question.

    In a thread of its own: a task that asks may be on an event loop.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: DirectDatabase | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asynsched-names")

    def request(self, operation: str, **arguments: Any) -> Any:
        """Return the answer.

        Raises:
            SupervisorNotFound: There is no such variable or connection.
            SupervisorError: The database cannot be read, or something else is asked for.
        """
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
        if operation == "variable_get":
            return self._database.read(get_variable, arguments["key"]).value
        if operation == "connection_get":
            return msgspec.structs.asdict(self._database.read(get_connection, arguments["conn_id"]))
        raise SupervisorError(f"{operation} cannot be answered in a run without a scheduler")


def names_of_home(environ: Mapping[str, str]) -> StoredNames | None:
    """Return the names of the home that `ASYNSCHED_HOME` names, if it has a database.

    That is the one of `ASYNSCHED_DATABASE`, else the SQLite file in the home where there is one. Nothing is made.
    """
    home = environ.get("ASYNSCHED_HOME")
    if not home:
        return None
    database = environ.get("ASYNSCHED_DATABASE") or None
    settings = Settings(
        home=home,
        database=database,
        fernet_key=environ.get("ASYNSCHED_FERNET_KEY") or None,
        fernet_key_file=environ.get("ASYNSCHED_FERNET_KEY_FILE") or None,
    )
    path = parse_url(settings.database_url).path
    if path is not None and not Path(path).exists():
        return None
    return StoredNames(settings)
