"""PostgreSQL for the scheduler: a pool of connections on the event loop. Every call has a timeout."""

import asyncio
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from sqlalchemy import Connection, Engine
from sqlalchemy.util import greenlet_spawn

from asynsched.errors import StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.postgres_engine import ServerOrder, pooled_engine, snapshots_of, unhurried_engine
from asynsched.store.engines.preparation import bring_to_head
from asynsched.store.engines.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")

COMMIT_TIMEOUT_SECONDS = 10.0
ROLLBACK_TIMEOUT_SECONDS = 3.0


class PostgresDatabase(Database):
    """A migrated PostgreSQL database. Belongs to the event loop that uses it.

    Args:
        pool_size: Connections that are kept; as many again are opened when all are busy.
        keys: The keys of its secrets.
    """

    is_shared = True

    def __init__(self, url: DatabaseUrl, *, pool_size: int = 5, keys: FernetKeys | None = None) -> None:
        self._url = url
        self._shown = url.shown
        self._order = ServerOrder()
        self._engine = pooled_engine(url, self._order, pool_size=pool_size, keys=keys)
        self._snapshots = snapshots_of(self._engine)
        # A statement that is a transaction of its own is one message to the server instead of three.
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._opening = True

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transaction(self._snapshots, query, args, kwargs)

    async def read_at_once(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._transaction(self._single, query, args, kwargs, is_open=False)

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if query is bring_to_head:
            return await self._transaction(unhurried_engine(self._url, self._order), query, args, kwargs)
        return await self._transaction(self._engine, query, args, kwargs)

    async def write_at_once(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        seconds = COMMIT_TIMEOUT_SECONDS  # the statement is the commit
        return await self._transaction(self._single, query, args, kwargs, is_open=False, seconds=seconds)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await greenlet_spawn(self._engine.dispose)

    async def _transaction(
        self,
        engine: Engine,
        query: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_open: bool = True,
        seconds: float | None = None,
    ) -> T:
        """Run a query in a transaction and commit it (`is_open`), or without one; within a number of seconds."""
        with store_errors(self._shown, opening=self._opening):
            connection = await greenlet_spawn(engine.connect)
            self._opening = False
            try:
                try:
                    with anyio.fail_after(seconds):
                        result = await greenlet_spawn(query, connection, *args, **kwargs)
                except BaseException:
                    await _roll_back(connection)
                    raise
                if is_open:
                    await self._commit(connection)
                return result
            finally:
                with anyio.CancelScope(shield=True):
                    await greenlet_spawn(connection.close)

    async def _commit(self, connection: Connection) -> None:
        # From here on the commit happens, even if the caller no longer waits for it.
        try:
            with anyio.move_on_after(COMMIT_TIMEOUT_SECONDS, shield=True) as scope:
                await greenlet_spawn(connection.commit)
        except asyncio.CancelledError:  # by the event loop itself: no scope shields from that
            await _give_up(connection)
            raise
        if scope.cancelled_caught:
            await _give_up(connection)
            raise StoreUnavailable(
                f"The database {self._shown} cannot be used: no answer to a commit within {COMMIT_TIMEOUT_SECONDS:g} s"
            )


async def _roll_back(connection: Connection) -> None:
    with anyio.move_on_after(ROLLBACK_TIMEOUT_SECONDS, shield=True) as scope:
        await greenlet_spawn(connection.rollback)
    if scope.cancelled_caught:
        await _give_up(connection)


async def _give_up(connection: Connection) -> None:
    with anyio.CancelScope(shield=True):  # the driver itself gives up after 2 s
        await greenlet_spawn(connection.invalidate)
