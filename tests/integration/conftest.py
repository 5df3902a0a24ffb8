"""Fixtures for programs that embed a scheduler, and for those that count its work on either database."""

from collections.abc import Iterator

import pytest

from tests.support import warm_commands
from tests.support.embedding import HANGS, Program


@pytest.fixture
def program(tmp_path, monkeypatch) -> Program:
    """Return a program whose tasks know where to say that they hang."""
    embedding = Program(tmp_path)
    monkeypatch.setenv(HANGS, str(embedding.hangs))
    return embedding


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """Return the URL of a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'asynsched.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Start the `asynsched` processes of a site as forks of a process that has imported what they need."""
    with warm_commands.serving():
        yield
