"""PostgreSQL for the scheduler: asyncpg on the event loop, a pool of connections, timeouts on everything."""

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import asyncpg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.store.database import Database
from asynsched.store.driver_errors import store_errors
from asynsched.store.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 10.0
POOL_TIMEOUT_SECONDS = 30.0
ROLLBACK_TIMEOUT_SECONDS = 3.0
SERVER_SETTINGS = {
    "application_name": "asynsched",
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Sent when connecting; the same names in the URL's query win."""
N_STATEMENTS = 500


class PostgresDatabase(Database):
    """A PostgreSQL database that is migrated. Belongs to the event loop that it is used on.

    Args:
        pool_size: Connections that are kept; as many again are opened when all are busy.
    """

    def __init__(self, url: DatabaseUrl, *, pool_size: int = 5) -> None:
        self._shown = url.shown
        self._engine = _engine(url, pool_size)
        # One moment of the database for all statements of a query, as on SQLite.
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._opening = True

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transaction(self._snapshots, query, args, kwargs)

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transaction(self._engine, query, args, kwargs)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._engine.dispose()

    async def _transaction(
        self, engine: AsyncEngine, query: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        with store_errors(self._shown, opening=self._opening):
            async with engine.connect() as connection:
                self._opening = False
                try:
                    result = await connection.run_sync(query, *args, **kwargs)
                except BaseException:
                    await _roll_back(connection)
                    raise
                # From here on it will be done, whether or not somebody still waits for it.
                with anyio.CancelScope(shield=True):
                    await connection.commit()
                return result


async def _roll_back(connection: AsyncConnection) -> None:
    with anyio.move_on_after(ROLLBACK_TIMEOUT_SECONDS, shield=True) as scope:
        await connection.rollback()
    if scope.cancelled_caught:
        await connection.invalidate()


async def connect(url: DatabaseUrl) -> "asyncpg.Connection[asyncpg.Record]":
    """Return a connection of the driver's own.

    Raises:
        SettingsError: The URL has a parameter that the driver refuses.
        StoreUnavailable: There was no answer in time.
    """
    dsn, timeout = _without_connect_timeout(url.dsn)
    try:
        return await asyncpg.connect(dsn, timeout=timeout, server_settings=_server_settings(dsn))
    except (asyncpg.ClientConfigurationError, asyncpg.InterfaceError, ValueError) as exc:
        raise SettingsError(f"database: {url.shown} cannot be used: {exc}") from exc
    except TimeoutError as exc:
        raise StoreUnavailable(f"The database {url.shown} cannot be reached: no answer within {timeout:g} s") from exc


def _engine(url: DatabaseUrl, pool_size: int) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": partial(connect, url), "prepared_statement_cache_size": N_STATEMENTS},
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        pool_use_lifo=True,
    )


def _server_settings(dsn: str) -> dict[str, str]:
    """Return our settings less those that the URL's query gives (the driver passes these on itself)."""
    given = dict(parse_qsl(urlsplit(dsn).query))
    return {name: value for name, value in SERVER_SETTINGS.items() if name not in given}


def _without_connect_timeout(dsn: str) -> tuple[str, float]:
    """Take libpq's `connect_timeout`, in seconds, out of a URL: the driver has no such parameter."""
    parts = urlsplit(dsn)
    query = parse_qsl(parts.query)
    try:
        timeout = float(dict(query).get("connect_timeout", CONNECT_TIMEOUT_SECONDS))
    except ValueError as exc:
        raise SettingsError("database: connect_timeout in the URL must be a number of seconds") from exc
    kept = [(name, value) for name, value in query if name != "connect_timeout"]
    return urlunsplit(parts._replace(query=urlencode(kept))), timeout
