"""SQLite for the scheduler: one thread that writes, a few that read, and no event loop that waits for either.

A whole query runs in its thread, on the driver of the standard library. An asynchronous driver would cross to a thread
and back for every single statement, which takes three to four times as long.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import anyio
from sqlalchemy import Connection

from asynsched.store.database import Database
from asynsched.store.group_commit import GroupCommit
from asynsched.store.sqlite_connection import SqliteConnection, Synchronous, Work

P = ParamSpec("P")
T = TypeVar("T")
N_READERS = 2


class SqliteDatabase(Database):
    """A SQLite file that exists and is migrated. Belongs to the event loop that it is made on."""

    def __init__(self, path: Path, shown: str, *, synchronous: Synchronous) -> None:
        self._writing = SqliteConnection(path, shown, synchronous=synchronous)
        self._writer = ThreadPoolExecutor(1, "asynsched store writer")
        self._commits = GroupCommit(self._writing.write_together, self._writer)
        self._new_reader = partial(SqliteConnection, path, shown, read_only=True)
        self._readers = ThreadPoolExecutor(N_READERS, "asynsched store reader")
        self._reading: list[SqliteConnection] = []
        self._of_thread = threading.local()

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(_call, query, args, kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._commits.write(partial(_call, query, args, kwargs))

    async def close(self) -> None:
        """Finish the writes that were asked for, then release every connection."""
        with anyio.CancelScope(shield=True):
            await self._commits.wait_idle()
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        for connection in (*self._reading, self._writing):
            connection.close()

    def _read(self, work: Work[T]) -> T:
        connection: SqliteConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = self._new_reader()
            self._reading.append(connection)
        return connection.read(work)


def _call(query: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object], connection: Connection) -> T:
    return query(connection, *args, **kwargs)
