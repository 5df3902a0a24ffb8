"""SQLite for the scheduler: aiosqlite connections, one that writes and a few that read.

A whole query runs in the thread of its connection. To cross to that thread and back for every single statement, as an
asynchronous driver below SQLAlchemy does, takes three to four times as long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import aiosqlite
import anyio
from sqlalchemy import Connection

from asynsched.store.database import Database
from asynsched.store.group_commit import GroupCommit
from asynsched.store.sqlite_connection import Outcome, SqliteConnection, Synchronous, Work

P = ParamSpec("P")
T = TypeVar("T")
N_READERS = 2


class QueryThread(aiosqlite.Connection):
    """An aiosqlite connection that is given queries, not statements. It opens when it is first used."""

    def __init__(self, queries: SqliteConnection) -> None:
        super().__init__(queries.open, iter_chunk_size=64)
        self.queries = queries
        self._opening = asyncio.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """Call a function in the connection's thread. When this is cancelled, the call still runs to its end."""
        async with self._opening:
            if self._connection is None:
                await self
        result: T = await self._execute(call)  # type: ignore[no-untyped-call]
        return result


class SqliteDatabase(Database):
    """A SQLite file that exists and is migrated. Belongs to the event loop that it is made on."""

    def __init__(self, path: Path, shown: str, *, synchronous: Synchronous) -> None:
        self._writer = QueryThread(SqliteConnection(path, shown, synchronous=synchronous))
        self._commits = GroupCommit(self._commit)
        readers = (QueryThread(SqliteConnection(path, shown, read_only=True)) for _ in range(N_READERS))
        self._all_readers = tuple(readers)
        self._idle_readers: asyncio.LifoQueue[QueryThread] = asyncio.LifoQueue()
        for reader in self._all_readers:
            self._idle_readers.put_nowait(reader)

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._reader() as reader:
            return await reader.run(partial(reader.queries.read, partial(_call, query, args, kwargs)))

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._commits.write(partial(_call, query, args, kwargs))

    async def close(self) -> None:
        """Finish the writes that were asked for, then release every connection."""
        with anyio.CancelScope(shield=True):
            await self._commits.wait_idle()
            for connection in (*self._all_readers, self._writer):
                await connection.run(connection.queries.close)
                await connection.close()

    async def _commit(self, works: list[Work[object]]) -> list[Outcome]:
        return await self._writer.run(partial(self._writer.queries.write_together, works))

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[QueryThread]:
        reader = await self._idle_readers.get()
        try:
            yield reader
        finally:
            self._idle_readers.put_nowait(reader)


def _call(query: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object], connection: Connection) -> T:
    return query(connection, *args, **kwargs)
