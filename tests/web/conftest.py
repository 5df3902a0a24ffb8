"""A filled database of each kind, and the application that answers from a copy of it."""

import shutil
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import msgspec
import pytest
import pytest_asyncio
from starlette.requests import Request

from asynsched.clock import Clock
from asynsched.fernet_keys import keys_of
from asynsched.queries.context import QueryContext
from asynsched.queries.users import Issuer
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.web.access import Access, Identity, Permission
from asynsched.web.app import make_app
from tests.support.postgres import PostgresServer
from tests.web.filling import fill, write_dags


class Filled(NamedTuple):
    """A database that a scheduler has filled; nothing writes to it any more."""

    settings: Settings
    server: PostgresServer | None

    def copy(self, folder: Path) -> Settings:
        """Return the settings of a copy of the database and its home."""
        home = folder / "home"
        shutil.copytree(self.settings.home, home, ignore=shutil.ignore_patterns("*.sock", "lock"))
        database = None if self.server is None else self.server.copy_of(self.settings.database)
        plugins = str(folder / "plugins")  # a test may add some
        return msgspec.structs.replace(self.settings, home=str(home), database=database, plugins_folder=plugins)


@pytest.fixture(scope="session")
def new_filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Filled]:
    """A function that returns a database of a kind, which a scheduler has filled (tests/web/filling.py).

    A fixture with parameters would be filled again whenever the next test has another parameter.
    """

    @cache
    def new(kind: str) -> Filled:
        root = tmp_path_factory.mktemp("filled")
        write_dags(root / "dags")
        server = None if kind == "sqlite" else request.getfixturevalue("postgres_server")
        database = None if server is None else server.new_database()
        settings = Settings(
            dags_folder=str(root / "dags"), home=str(root / "home"), database=database, shutdown_grace=0.2,
            sqlite_synchronous="normal",
        )  # fmt: skip
        anyio.run(fill, settings)
        return Filled(settings, server)

    return new


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, new_filled: Callable[[str], Filled]) -> Filled:
    """A filled database of each kind."""
    return new_filled(request.param)


class Known(Access):
    """Access for one user, whom a test may change."""

    def __init__(self) -> None:
        self.who = Identity(name="ada", permission=Permission.ADMINISTER, issuer=Issuer("ada", None, "administer"))

    async def identify(self, request: Request) -> Identity:
        return self.who


class Site:
    """An application, with a client that calls it.

    Attributes:
        access: Who calls; a test may set `access.who`.
    """

    def __init__(self, settings: Settings, database: Database, client: httpx.AsyncClient, access: Known) -> None:
        self.settings = settings
        self.database = database
        self.client = client
        self.access = access

    async def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        """Return the JSON of an answer of Airflow's API, which must have this status."""
        answer = await self.client.request(method, f"/api/v2{path}", **options)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def get(self, path: str, status: int = 200, **params: Any) -> Any:
        """Return the JSON of an answer to a GET with this query string."""
        return await self.call("GET", path, status, params=params)


@pytest_asyncio.fixture
async def site(filled: Filled, tmp_path: Path) -> AsyncIterator[Site]:
    """The application on a copy of the filled database; no scheduler serves it."""
    settings, access = filled.copy(tmp_path), Known()
    database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
    app = make_app(QueryContext(database, settings.home_path, settings, Clock()), access)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        yield Site(settings, database, client, access)
    await database.close()
    if filled.server is not None:
        filled.server.drop(settings.database_url)
