"""SQLite for the scheduler: aiosqlite connections, one for writing and a few for reading.

A whole query runs in the thread of its connection. Crossing to that thread and back for every statement, as an
asynchronous driver below SQLAlchemy does, takes three to four times as long.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiosqlite
import anyio

from asynsched.errors import StoreError, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database, P, Query, T
from asynsched.store.engines.group_commit import GroupCommit
from asynsched.store.engines.sqlite_connection import SqliteConnection, Synchronous

N_READERS = 2


class _Thread(aiosqlite.Connection):
    """An aiosqlite connection that runs any function in its thread."""

    async def call(self, call: Callable[[], T]) -> T:
        result: T = await self._execute(call)  # type: ignore[no-untyped-call]
        return result


class QueryThread:
    """A connection in a thread of aiosqlite's that runs queries, not statements.

    It opens at its first use. A failed opening ends its thread; the next use opens another one.
    """

    def __init__(self, queries: SqliteConnection, shown: str) -> None:
        self.queries = queries
        self._shown = shown
        self._opening: asyncio.Task[_Thread] | None = None
        self._is_closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """Call a function in the connection's thread. When this is cancelled, the call still runs to its end.

        Raises:
            StoreUnavailable: The connection cannot be opened at the moment.
            StoreError: The file is not a database, or the connection was closed.
        """
        if self._is_closed:
            raise StoreError(f"The database {self._shown} is closed")
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.create_task(self._open())
        # A caller that gives up waiting must not stop the opening: others wait for it too.
        connection = await asyncio.shield(self._opening)
        return await connection.call(call)

    async def close(self) -> None:
        """Close the connection and end its thread, for good."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        if not _has_failed(self._opening):
            connection = self._opening.result()
            await connection.call(self.queries.close)
            await connection.close()

    async def _open(self) -> _Thread:
        try:
            thread = _Thread(self.queries.open, iter_chunk_size=64)
            await thread
        except RuntimeError as exc:  # from starting the thread
            raise StoreUnavailable(f"The database {self._shown} cannot be used: {exc}") from exc
        return thread


class SqliteDatabase(Database):
    """A SQLite file that exists and is migrated. Belongs to the event loop that creates it."""

    def __init__(self, path: Path, shown: str, *, synchronous: Synchronous, keys: FernetKeys | None) -> None:
        self.address = f"sqlite:///{path.absolute()}"
        self._writer = QueryThread(SqliteConnection(path, shown, synchronous=synchronous, keys=keys), shown)
        writer = self._writer
        self._commits = GroupCommit(lambda works: writer.run(partial(writer.queries.write_together, works)))
        self._all_readers = tuple(
            QueryThread(SqliteConnection(path, shown, read_only=True, keys=keys), shown) for _ in range(N_READERS)
        )
        self._idle_readers: asyncio.LifoQueue[QueryThread] = asyncio.LifoQueue()
        for reader in self._all_readers:
            self._idle_readers.put_nowait(reader)

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        reader = await self._idle_readers.get()
        try:
            return await reader.run(partial(reader.queries.read, query, *args, **kwargs))
        finally:
            self._idle_readers.put_nowait(reader)

    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._commits.write(lambda connection: query(connection, *args, **kwargs))

    async def close(self) -> None:
        """Finish the pending writes, then release every connection."""
        with anyio.CancelScope(shield=True):
            await self._commits.wait_idle()
            for connection in (*self._all_readers, self._writer):
                await connection.close()


def _has_failed(opening: asyncio.Task[_Thread]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
