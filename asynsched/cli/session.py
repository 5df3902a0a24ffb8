"""A command's view of a home: the settings, the database, and the scheduler that may be serving it."""

import getpass
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import msgspec

from asynsched.bell import is_serving, ring
from asynsched.cli.configuration import DEFAULT, PREFIX, Configuration
from asynsched.cli.output import command_line, note, of_same_place
from asynsched.errors import AsynschedError, DatabaseMissing
from asynsched.fernet_keys import keys_of
from asynsched.home import prepare_home
from asynsched.settings import Settings
from asynsched.store.engines.urls import parse_url, without_secrets

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from asynsched.cli.changes import Changes
    from asynsched.explaining.reason import Reason
    from asynsched.keys import DagRunKey
    from asynsched.queries.context import Act
    from asynsched.queries.paging import Page, Paging
    from asynsched.queries.runs import RunInfo
    from asynsched.store.database import DirectDatabase


P = ParamSpec("P")
T = TypeVar("T")
Wanted = TypeVar("Wanted")


class Session:
    """One command's work on a home. The database is opened, and migrated, at its first use.

    Only `make` makes a home: a command that reads leaves none behind.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.settings: Settings = configuration.settings
        self.keys = keys_of(self.settings)
        self._database: DirectDatabase | None = None
        self._passing: TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Close the database, and remove a temporary home."""
        self._close_database()
        if self._passing is not None:
            self._passing.cleanup()

    def command_line(self, *words: str) -> str:
        """Return another command on the same home and database, quoted for a shell."""
        given = {"home": str(self.settings.home), "database": self.settings.database}
        flags = {name: given[name] for name in given if self.configuration.sources[name].startswith("flag")}
        return command_line(*words, options=of_same_place(flags.get("home"), flags.get("database")))

    @property
    def home(self) -> Path:
        """The home, absolute."""
        return self.settings.home_path

    @property
    def database(self) -> "DirectDatabase":
        """The database. Raises StoreError or SettingsError if it cannot be used, or does not exist."""
        try:
            return self._opened(make=False)
        except DatabaseMissing as exc:
            raise AsynschedError(self._nothing_here()) from exc

    @property
    def is_made(self) -> bool:
        """Whether there is a database. Raises StoreError or SettingsError when it cannot be used."""
        try:
            self._opened(make=False)
        except DatabaseMissing:
            return False
        return True

    @property
    def is_passing(self) -> bool:
        """Whether the DAG folder was read for this command alone, into a temporary home."""
        return self.settings.database is None and self._passing is not None

    def make(self) -> None:
        """Make the home and the database if they do not exist, and print that."""
        if self.is_made:
            prepare_home(self.home)
            return
        with self.making_home():
            self._opened(make=True)
        note(f"Made {self.place}.")

    @contextmanager
    def making_home(self) -> Iterator[None]:
        """Create the database in the block. The home is made before it or, so that a failure leaves none, after it."""
        path = parse_url(self.settings.database_url).path
        if path is not None and path.is_relative_to(self.home):
            prepare_home(self.home)
        yield
        prepare_home(self.home)

    def use_passing_home(self, *, keep_database: bool) -> None:
        """Go on in a temporary home, with a database of its own or with that of the settings.

        A command that reads needs it where there is no home: a parse has its scratch folder in a home.
        """
        if self._passing is not None:
            return
        self._passing = TemporaryDirectory(prefix="asynsched-", ignore_cleanup_errors=True)
        database = self.settings.database_url if keep_database else None
        if not keep_database:
            self._close_database()
        self.settings = msgspec.structs.replace(self.settings, home=self._passing.name, database=database)

    @property
    def place(self) -> str:
        """The home and database that the command reads, for people."""
        if self.is_passing:
            return f"the DAG folder {self.settings.dags_path}"
        if self.settings.database is None:
            return f"the home {self.home}"
        return f"the database {without_secrets(self.settings.database)}"

    def _nothing_here(self) -> str:
        """Return the error where there is no database: where it should be, and how to name or make one."""
        option = "home" if self.settings.database is None else "database"
        source = self.configuration.sources[option]
        given = "" if source == DEFAULT else f" ({source})"
        lacks = "has no database yet" if option == "home" and self.home.is_dir() else "does not exist yet"
        return (
            f"Nothing is known here: {self.place}{given} {lacks}. Name another with --{option} or"
            f" {PREFIX}{option.upper()}; `asynsched up DIR` creates it."
        )

    def _opened(self, *, make: bool) -> "DirectDatabase":
        from asynsched.store.engines.opening import open_direct  # some commands need no database

        if self._database is None:
            settings = self.settings
            self._database = open_direct(
                settings.database_url, synchronous=settings.sqlite_synchronous,
                default_pool_slots=settings.default_pool_slots, keys=self.keys, make=make,
            )  # fmt: skip
        return self._database

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def now(self) -> datetime:
        """Return the current instant, aware UTC."""
        from asynsched.clock import Clock  # it loads anyio, and reading commands do not ask for the time

        return Clock().now()

    def read(self, query: "Callable[Concatenate[Connection, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing."""
        return self.database.read(query, *args, **kwargs)

    def pages(
        self,
        question: "Callable[[Connection, Wanted, Paging], Page[T]]",
        wanted: Wanted,
        *,
        order_by: tuple[str, ...] = (),
        at_most: float = math.inf,
    ) -> list[T]:
        """Return the rows of a list of `asynsched.queries`, page after page."""
        from asynsched.queries.paging import MOST_ROWS, Paging

        found: list[T] = []
        paging = Paging(limit=int(min(at_most, MOST_ROWS)), order_by=order_by)
        while len(found) < at_most:
            page = self.read(question, wanted, paging)
            found += page.items
            if page.after is None:
                break
            paging = Paging(limit=int(min(at_most - len(found), MOST_ROWS)), after=page.after, order_by=order_by)
        return found

    def act(self, action: "Callable[Concatenate[Connection, P], Act[T]]", *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something for the user, in one transaction, and wake the schedulers that it concerns."""
        from asynsched.clock import Clock  # it loads anyio
        from asynsched.queries.context import carry_out

        def write(conn: "Connection") -> "Act[T]":
            return carry_out(conn, lambda conn: action(conn, *args, **kwargs), actor=actor(), clock=Clock())

        act = self.database.write(write)
        if act.hint is not None:
            ring(self.home, [act.hint])
        return act.result

    def watching(self, run: "DagRunKey | None" = None) -> "AbstractContextManager[Changes]":
        """Return a watch for changes that other processes make: of the database or, on PostgreSQL, of a run."""
        from asynsched.cli.changes import Changes

        return closing(Changes(self.settings.database_url, run))

    def has_scheduler(self) -> bool:
        """Return whether a scheduler is serving this home or, on PostgreSQL, this database."""
        return is_serving(self.home) or (self._is_shared and self._are_others_serving())

    def _are_others_serving(self) -> bool:
        from asynsched.queries.serving import owners_of
        from asynsched.store.schedulers import known_schedulers

        return owners_of(self.read(known_schedulers), self.now(), is_shared=True).are_serving

    def lack_of(self, run: "RunInfo") -> "Reason | None":
        """Return why no scheduler works on a running run; None if its scheduler does."""
        from asynsched.queries.serving import lack_of

        return self.read(lack_of, run.id, self.now(), is_shared=self._is_shared)

    @property
    def _is_shared(self) -> bool:
        return not self.settings.database_url.startswith("sqlite")


def actor() -> str:
    """Return the user of this command, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
