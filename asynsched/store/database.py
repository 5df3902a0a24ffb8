"""The database: named queries in, values out, every write a transaction.

A query is a plain function of a SQLAlchemy `Connection`, in the module of its table. The scheduler awaits it through a
`Database`; commands, threads and simulation call it through a `DirectDatabase`, without an event loop. So each query
exists once, and none can commit: `write` does, when the function has returned.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

if TYPE_CHECKING:
    from asynsched.store.engines.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")
Query = Callable[Concatenate[Connection, P], T]
"""A function of a connection, and of the arguments after it."""


class Database(ABC):
    """A database for the event loop. Every method raises StoreUnavailable when the database cannot be reached."""

    is_shared = False
    """Whether several schedulers may use it at once."""
    url: "DatabaseUrl | None" = None
    """Where another connection to it may listen for notifications; None: it has none."""
    address: str | None = None
    """Its URL, with its secrets, by which another process opens it; None: no other can."""

    @abstractmethod
    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing."""

    async def read_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing and whose statements may see different moments: one message for each."""
        return await self.read(query, *args, **kwargs)

    @abstractmethod
    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a transaction of its own. It is durable when this returns.

        After StoreUnavailable or a cancellation, it is unknown whether it was done: the answer to the commit may be
        lost. So every write must bear to be repeated. After any other error, it was not done.
        """

    async def write_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query of one statement, which may be its own transaction; otherwise the same as `write`."""
        return await self.write(query, *args, **kwargs)

    @abstractmethod
    async def close(self) -> None:
        """Release every connection."""


class AnnouncingDatabase(Database):
    """Another database, and a function that is called on the loop after each write, also after one that failed."""

    def __init__(self, inner: Database, after_write: Callable[[], None]) -> None:
        self._inner = inner
        self._after_write = after_write
        self.is_shared, self.url, self.address = inner.is_shared, inner.url, inner.address

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._inner.read(query, *args, **kwargs)

    async def read_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._inner.read_at_once(query, *args, **kwargs)

    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._inner.write(query, *args, **kwargs)
        finally:
            self._after_write()

    async def write_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._inner.write_at_once(query, *args, **kwargs)
        finally:
            self._after_write()

    async def close(self) -> None:
        await self._inner.close()


class DirectDatabase(ABC):
    """A database whose methods return when the work is done. Used by one thread at a time."""

    @abstractmethod
    def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing, and sees one moment. Raises StoreUnavailable."""

    @abstractmethod
    def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a transaction of its own, durable when this returns.

        Raises StoreUnavailable, and then it is unknown whether it was done; see `Database.write`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release every connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
