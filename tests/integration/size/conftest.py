"""Shared by tests of size: databases of both kinds, and the bench of tests in which real tries ask for much."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from tests.integration.tries.conftest import bench

__all__ = ["bench"]


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An open database, new, of each kind."""
    url = f"sqlite:///{tmp_path / 'asynsched.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    opened = await open_database(url, synchronous="normal")
    yield opened
    await opened.close()
