"""What a command works with: the settings, the database, and the bell of a scheduler that may be serving."""

import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from asynsched.bell import Hint, encode_hints, is_serving, ring
from asynsched.cli.configuration import Configuration
from asynsched.fernet_keys import keys_of
from asynsched.home import prepare_home
from asynsched.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from asynsched.explaining.owners import Owners
    from asynsched.store.engines.direct_database import DirectDatabase

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """One command's work on a home. The database is opened, made and migrated when it is first used."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.settings: Settings = configuration.settings
        self.home: Path = self.settings.home_path
        self.keys = keys_of(self.settings)
        self._database: DirectDatabase | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._database is not None:
            self._database.close()

    @property
    def database(self) -> "DirectDatabase":
        """The database. Raises StoreError or SettingsError when it cannot be used."""
        if self._database is None:
            from asynsched.store.engines.direct_database import open_direct  # some commands do without a database

            prepare_home(self.home)
            self._database = open_direct(
                self.settings.database_url,
                synchronous=self.settings.sqlite_synchronous,
                default_pool_slots=self.settings.default_pool_slots,
                keys=self.keys,
            )
        return self._database

    def now(self) -> datetime:
        """Return the current instant, aware UTC."""
        from asynsched.clock import SystemClock  # it loads anyio, and reading commands do not ask for the time

        return SystemClock().now()

    def read(self, query: "Callable[Concatenate[Connection, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing."""
        return self.database.read(query, *args, **kwargs)

    def change(
        self,
        action: str,
        query: "Callable[[Connection], T]",
        *,
        hints: Callable[[T], Sequence[Hint]] = lambda _: (),
        detail: Mapping[str, Any] | None = None,
    ) -> T:
        """Do something on behalf of the user, in one transaction, and wake the schedulers that it concerns.

        Args:
            action: What it is, for the audit, e.g. `dag.pause`.
            query: What writes.
            hints: Given what `query` returned, what has changed: for schedulers on this home and, on PostgreSQL,
                elsewhere. The first names the DAG and the run for the audit.
            detail: More for the audit; never secrets.
        """
        from asynsched.store.audit import record_audit
        from asynsched.store.notifications import notify

        def write(conn: "Connection") -> tuple[T, Sequence[Hint]]:
            result = query(conn)
            told = hints(result)
            about = told[0] if told else Hint("pool")
            record_audit(
                conn, at=self.now(), actor=actor(), action=action, dag_id=about.dag_id or None,
                run_id=about.run_id or None, detail=dict(detail or {}),
            )  # fmt: skip
            if told:
                notify(conn, encode_hints(told))
            return result, told

        result, told = self.database.write(write)
        if told:
            ring(self.home, told)
        return result

    def is_serving(self) -> bool:
        """Return whether a scheduler on this home is serving."""
        return is_serving(self.home)

    def has_scheduler(self) -> bool:
        """Return whether a scheduler is serving this home or, on PostgreSQL, this database."""
        return self.is_serving() or (self._is_shared and self.owners().are_serving)

    def owners(self) -> "Owners":
        """Return who has the running runs, as far as that can be known from here."""
        from asynsched.cli.standings import standing
        from asynsched.explaining.owners import Owners
        from asynsched.store.schedulers import known_schedulers

        now, rows = self.now(), self.read(known_schedulers)
        standings = {row.lease_epoch: standing(row, now) for row in rows if row.ended_at is None}
        return Owners(rows, standings, now=now, is_shared=self._is_shared)

    @property
    def _is_shared(self) -> bool:
        return not self.settings.database_url.startswith("sqlite")


def actor() -> str:
    """Return who gives this command, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
