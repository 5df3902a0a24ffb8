"""The database: named queries in, values out, every write a transaction.

A query is a plain function of a SQLAlchemy `Connection` (the modules beside this one, one a table). The scheduler runs
it through the async engine, the command line and the simulation on the spot, without an event loop or a thread. So
each query exists once, and none can commit: `write` does, when the function has returned.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

P = ParamSpec("P")
T = TypeVar("T")


class Database(ABC):
    """What the scheduler needs of a database. Every method raises StoreUnavailable when it cannot be reached."""

    is_shared = False
    """Whether several schedulers may work on it at once."""

    @abstractmethod
    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing."""

    async def read_at_once(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query that writes nothing, each statement of which may see another moment: one message for each."""
        return await self.read(query, *args, **kwargs)

    @abstractmethod
    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a transaction of its own. It is durable when this returns, or was not done at all."""

    async def write_at_once(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query of one statement, which may be its own transaction: that begins and ends with it.

        It is durable when this returns. If this is cancelled, it is not known whether it was done.
        """
        return await self.write(query, *args, **kwargs)

    @abstractmethod
    async def close(self) -> None:
        """Release every connection."""
