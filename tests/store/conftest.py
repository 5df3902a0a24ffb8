"""The databases that every test of this folder runs on."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from asynsched.fernet_keys import keys_of
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database, open_inline


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """A function that returns the URL of an empty database: where SQLite has no file yet."""
    if request.param == "sqlite":
        (tmp_path / "home").mkdir(exist_ok=True)
        return lambda: f"sqlite:///{tmp_path / 'home' / 'asynsched.db'}"
    server = request.getfixturevalue("postgres_server")
    return lambda: server.new_database(migrated=False)


@pytest_asyncio.fixture(params=["sqlite", "inline", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An open database, new, of each kind. The key of its secrets is in a file beside it."""
    keys = keys_of(Settings(home=str(tmp_path)))
    if request.param == "inline":
        opened: Database = open_inline()
    elif request.param == "sqlite":
        opened = await open_database(f"sqlite:///{tmp_path / 'asynsched.db'}", synchronous="normal", keys=keys)
    else:
        opened = await open_database(request.getfixturevalue("postgres_url"), keys=keys)
    yield opened
    await opened.close()
