"""PostgreSQL by asyncpg, on an event loop or without one, and plain connections of the driver: all with timeouts.

SQLAlchemy waits for that driver within greenlets, so callers run its functions by `greenlet_spawn`. SQLAlchemy's own
asyncio package does little more than that, but imports the whole ORM: a tenth of a second for each command.

A URL may name several servers of one database, such as a primary and its standbys. The driver's timeout covers all of
them together, so a machine that does not answer would keep the driver from trying the next one. Therefore each server
is tried separately, beginning with the one that answered last.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import asyncpg
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database, DirectDatabase, P, Query, T
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.opening import bring_to_head
from asynsched.store.engines.urls import DatabaseUrl
from asynsched.store.secrets import execution_options

CONNECT_TIMEOUT_SECONDS = 10.0
POOL_TIMEOUT_SECONDS = 30.0
COMMIT_TIMEOUT_SECONDS = 10.0
ROLLBACK_TIMEOUT_SECONDS = 3.0
CLOSE_TIMEOUT_SECONDS = 3.0
"""Of all connections together: the driver would wait for each as long as for a statement."""
ANSWER_SECONDS = 5.0
"""How long to wait for an answer beyond the server's own limit for a statement. After that the server is lost."""
SERVER_SETTINGS = {
    "application_name": "asynsched",
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Sent when connecting; the same names in the URL's query win."""
N_STATEMENTS = 500
PLANS_SECONDS = 10.0
"""How long a connection keeps the server's plans. A plan made while a table was new reads all of that table."""
_UNREACHABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)
"""Errors of a server that is stopping, starting or full: another server may work."""
_READ_ONLY = "25006"
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|)\s*")
_SECONDS_IN = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class DirectPostgres(DirectDatabase):
    """PostgreSQL through an event loop of its own, which runs only during queries."""

    def __init__(self, url: DatabaseUrl, keys: FernetKeys | None) -> None:
        self._shown = url.shown
        self._runner = asyncio.Runner()
        self._engines = _Engines(url, pool_size=1, keys=keys)
        self._opening = True

    def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(self._engines.snapshots, lambda connection: query(connection, *args, **kwargs))

    def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(self._engines.writing(query), lambda connection: query(connection, *args, **kwargs))

    def close(self) -> None:
        self._runner.run(_close_pooled(self._engines.pooled))
        self._runner.close()

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with store_errors(self._shown, opening=self._opening):
            result: T = self._runner.run(greenlet_spawn(self._transaction, engine, work))
            return result

    def _transaction(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            self._opening = False
            return work(connection)


class ServerOrder:
    """The order in which the servers of one URL are tried. Connections for the same purpose may share it."""

    def __init__(self) -> None:
        self._answered_last = ""

    def of(self, dsn: str) -> list[str]:
        """Return a URL for each server that the URL names, in the order of trial."""
        return sorted(_servers_of(dsn), key=lambda server: server != self._answered_last)

    def answered(self, server: str) -> None:
        """Put this server first."""
        self._answered_last = server


def _servers_of(dsn: str) -> list[str]:
    """Return a URL for each server that a URL names, in its order.

    A scheduler writes, so of several servers only one that accepts writes is used, unless the URL says otherwise.
    """
    parts = urlsplit(dsn)
    who, at, named = parts.netloc.partition("@") if "@" in parts.netloc else ("", "", parts.netloc)
    query = dict(parse_qsl(parts.query))
    places: list[tuple[str, dict[str, str]]]
    if "," in named:
        places = [(who + at + host, {}) for host in named.split(",")]
    elif not named and "," in query.get("host", ""):
        hosts, ports = query["host"].split(","), query.get("port", "").split(",")
        ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
        places = [
            (parts.netloc, {"host": host} | ({"port": port} if port else {}))
            for host, port in zip(hosts, ports, strict=True)
        ]
    else:
        return [dsn]
    asked = {"target_session_attrs": "read-write"} | query
    return [f"{parts.scheme}://{netloc}{parts.path}?{urlencode(asked | own)}" for netloc, own in places]


class _Engines:
    """The engines of one database.

    Args:
        pool_size: Connections that are kept; as many again are opened when all are busy.
        keys: The keys of the database's secrets.
    """

    def __init__(self, url: DatabaseUrl, *, pool_size: int, keys: FernetKeys | None) -> None:
        order = ServerOrder()
        self.pooled = _engine(
            partial(connect, url, order, command_timeout=command_timeout(url.dsn)),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_use_lifo=True,
            execution_options=execution_options(keys),
        )
        # For reading: all statements of a query see one snapshot of the database, as on SQLite.
        self.snapshots = self.pooled.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # A statement that is a transaction of its own is one message to the server instead of three.
        self.single = self.pooled.execution_options(isolation_level="AUTOCOMMIT")
        self._for_migrations = partial(_engine, partial(connect, url, order), poolclass=NullPool)

    def writing(self, query: object) -> Engine:
        """Return the engine of a query that writes: for a migration, one without any limit on a statement's time."""
        return self._for_migrations() if query is bring_to_head else self.pooled


_REFUSED_PARAMETERS = (
    asyncpg.UndefinedObjectError, asyncpg.InvalidParameterValueError, asyncpg.CantChangeRuntimeParamError,
)  # fmt: skip
"""What a server says of a parameter of the URL that it does not know, or of a value."""


async def connect(
    url: DatabaseUrl, order: ServerOrder, *, command_timeout: float | None = None
) -> "asyncpg.Connection[asyncpg.Record]":
    """Return a plain connection of the driver, to the first of the URL's servers that can be used, in their order.

    `command_timeout`: seconds to wait for the answer to a statement; None means no limit.

    Raises:
        SettingsError: The URL has a parameter that the driver refuses.
        StoreUnavailable: There was no answer in time, or none of several servers accepts writes.
    """
    dsn, timeout = _without_connect_timeout(url.dsn)
    *others, last = order.of(dsn)
    for server in others:
        try:
            connection = await _connect_to(server, url.shown, timeout, command_timeout)
        except (StoreUnavailable, OSError, *_UNREACHABLE):
            continue
        order.answered(server)
        return connection
    connection = await _connect_to(last, url.shown, timeout, command_timeout)
    order.answered(last)
    return connection


async def _connect_to(
    server: str, shown: str, seconds: float, command_timeout: float | None
) -> "asyncpg.Connection[asyncpg.Record]":
    try:
        return await asyncpg.connect(
            server, timeout=seconds, command_timeout=command_timeout, server_settings=_server_settings(server)
        )
    except asyncpg.TargetServerAttributeNotMatched as exc:
        raise StoreUnavailable(f"The database {shown} cannot be used: none of its servers accepts writes") from exc
    except (asyncpg.ClientConfigurationError, asyncpg.InterfaceError, ValueError, *_REFUSED_PARAMETERS) as exc:
        raise SettingsError(f"database: {shown} cannot be used: {exc}") from exc
    except TimeoutError as exc:
        raise StoreUnavailable(f"The database {shown} cannot be reached: no answer within {seconds:g} s") from exc


def command_timeout(dsn: str) -> float | None:
    """Return the seconds to wait for the answer to a statement: somewhat longer than the server's own limit.

    None where the URL's `statement_timeout` sets no limit. The server itself refuses a value that it does not know.
    """
    given = dict(parse_qsl(urlsplit(dsn).query)).get("statement_timeout", "")
    match = _DURATION.fullmatch(given) or _DURATION.fullmatch(SERVER_SETTINGS["statement_timeout"])
    assert match
    seconds = float(match[1]) * _SECONDS_IN[match[2]]
    return seconds + ANSWER_SECONDS if seconds else None


def _engine(connecting: partial[Any], **pool: Any) -> Engine:
    connect_args = {"async_creator_fn": connecting, "prepared_statement_cache_size": N_STATEMENTS}
    engine = create_engine("postgresql+asyncpg://", connect_args=connect_args, **pool)
    event.listen(engine, "handle_error", _leave_standby)
    event.listen(engine, "checkout", _forget_old_plans)
    return engine


def _leave_standby(context: ExceptionContext) -> None:
    """Replace all connections when a server no longer accepts writes: another one may have taken its place."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _forget_old_plans(connection: Any, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection) -> None:
    """Make the server plan a connection's statements again from time to time, by the current sizes of tables.

    Without this, the server does so only after it has analyzed a table again: a minute later, or never.
    """
    now = asyncio.get_running_loop().time()
    if now - record.info.setdefault("planned_at", now) < PLANS_SECONDS:
        return
    try:
        connection.run_async(lambda driver: driver.execute("DISCARD PLANS", timeout=ANSWER_SECONDS))
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as exc:
        raise InvalidatePoolError("the connection was lost") from exc  # and perhaps all others: new ones are made
    record.info["planned_at"] = now


def _server_settings(dsn: str) -> dict[str, str]:
    """Return our settings, except those that the URL's query gives, which the driver itself passes on."""
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


class PostgresDatabase(Database):
    """A migrated PostgreSQL database. Belongs to the event loop that uses it."""

    is_shared = True

    def __init__(self, url: DatabaseUrl, *, keys: FernetKeys | None) -> None:
        self.url, self.address, self._shown = url, url.dsn, url.shown
        self._engines = _Engines(url, pool_size=5, keys=keys)
        self._opening = True

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._engines.snapshots, lambda connection: query(connection, *args, **kwargs))

    async def read_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._engines.single, lambda connection: query(connection, *args, **kwargs))

    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._engines.writing(query), lambda connection: query(connection, *args, **kwargs))

    async def write_at_once(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        seconds = COMMIT_TIMEOUT_SECONDS  # the statement is the commit
        return await self._run(self._engines.single, lambda connection: query(connection, *args, **kwargs), seconds)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await _close_pooled(self._engines.pooled)

    async def _run(self, engine: Engine, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        """Run work, and commit it unless each statement commits itself; within a number of seconds."""
        with store_errors(self._shown, opening=self._opening):
            connection = await greenlet_spawn(engine.connect)
            self._opening = False
            try:
                try:
                    with anyio.fail_after(seconds):
                        result: T = await greenlet_spawn(work, connection)
                except BaseException:
                    await _roll_back(connection)
                    raise
                if engine is not self._engines.single:
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


async def _close_pooled(engine: Engine) -> None:
    """Close the connections that are not in use; cut those that are left if the server does not answer in time."""
    seconds = CLOSE_TIMEOUT_SECONDS
    while True:
        try:
            async with asyncio.timeout(seconds):  # a command would import anyio's for this alone
                await greenlet_spawn(engine.dispose)
            return
        except TimeoutError:
            seconds = 0.0  # the driver cuts the one that it was closing
