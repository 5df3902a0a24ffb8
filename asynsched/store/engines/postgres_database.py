"""PostgreSQL for the scheduler: asyncpg on the event loop, a pool of connections, timeouts on everything."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import asyncpg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database
from asynsched.store.encryption import execution_options
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.preparation import bring_to_head
from asynsched.store.engines.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 10.0
POOL_TIMEOUT_SECONDS = 30.0
COMMIT_TIMEOUT_SECONDS = 10.0
ROLLBACK_TIMEOUT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
"""How much longer than the server lets a statement take we wait for its answer: then the server is lost."""
SERVER_SETTINGS = {
    "application_name": "asynsched",
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Sent when connecting; the same names in the URL's query win."""
N_STATEMENTS = 500
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|)\s*")
_SECONDS_IN = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class PostgresDatabase(Database):
    """A PostgreSQL database that is migrated. Belongs to the event loop that it is used on.

    Args:
        pool_size: Connections that are kept; as many again are opened when all are busy.
        keys: Those of its secrets.
    """

    is_shared = True

    def __init__(self, url: DatabaseUrl, *, pool_size: int = 5, keys: FernetKeys | None = None) -> None:
        self._url = url
        self._shown = url.shown
        connecting = partial(connect, url, command_timeout=command_timeout(url.dsn))
        self._engine = _engine(
            connecting,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_use_lifo=True,
            execution_options=execution_options(keys),
        )
        # One moment of the database for all statements of a query, as on SQLite.
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._opening = True

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transaction(self._snapshots, query, args, kwargs)

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if query is bring_to_head:
            # It may take as long as it takes, here as at the server.
            unhurried = _engine(partial(connect, self._url), poolclass=NullPool)
            return await self._transaction(unhurried, query, args, kwargs)
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
                await self._commit(connection)
                return result

    async def _commit(self, connection: AsyncConnection) -> None:
        # From here on it will be done, whether or not somebody still waits for it.
        try:
            with anyio.move_on_after(COMMIT_TIMEOUT_SECONDS, shield=True) as scope:
                await connection.commit()
        except asyncio.CancelledError:  # by the event loop itself: no scope keeps that off
            await _give_up(connection)
            raise
        if scope.cancelled_caught:
            await _give_up(connection)
            raise StoreUnavailable(
                f"The database {self._shown} cannot be used: no answer to a commit within {COMMIT_TIMEOUT_SECONDS:g} s"
            )


async def _roll_back(connection: AsyncConnection) -> None:
    with anyio.move_on_after(ROLLBACK_TIMEOUT_SECONDS, shield=True) as scope:
        await connection.rollback()
    if scope.cancelled_caught:
        await _give_up(connection)


async def _give_up(connection: AsyncConnection) -> None:
    with anyio.CancelScope(shield=True):  # the driver itself gives up after 2 s
        await connection.invalidate()


async def connect(url: DatabaseUrl, *, command_timeout: float | None = None) -> "asyncpg.Connection[asyncpg.Record]":
    """Return a connection of the driver's own.

    Args:
        command_timeout: Seconds to wait for the answer to a statement; None waits for ever.

    Raises:
        SettingsError: The URL has a parameter that the driver refuses.
        StoreUnavailable: There was no answer in time.
    """
    dsn, timeout = _without_connect_timeout(url.dsn)
    try:
        return await asyncpg.connect(
            dsn, timeout=timeout, command_timeout=command_timeout, server_settings=_server_settings(dsn)
        )
    except (asyncpg.ClientConfigurationError, asyncpg.InterfaceError, ValueError) as exc:
        raise SettingsError(f"database: {url.shown} cannot be used: {exc}") from exc
    except TimeoutError as exc:
        raise StoreUnavailable(f"The database {url.shown} cannot be reached: no answer within {timeout:g} s") from exc


def command_timeout(dsn: str) -> float | None:
    """Return how many seconds to wait for the answer to a statement: somewhat longer than the server's own limit.

    None where the URL's `statement_timeout` sets no limit. What the server will not understand is left to it to refuse.
    """
    given = dict(parse_qsl(urlsplit(dsn).query)).get("statement_timeout", "")
    match = _DURATION.fullmatch(given) or _DURATION.fullmatch(SERVER_SETTINGS["statement_timeout"])
    assert match
    seconds = float(match[1]) * _SECONDS_IN[match[2]]
    return seconds + ANSWER_SECONDS if seconds else None


def _engine(connecting: Callable[..., Awaitable[Any]], **pool: Any) -> AsyncEngine:
    connect_args = {"async_creator_fn": connecting, "prepared_statement_cache_size": N_STATEMENTS}
    return create_async_engine("postgresql+asyncpg://", connect_args=connect_args, **pool)


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
