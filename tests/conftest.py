"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest
import structlog

from tests.support.postgres import new_postgres_database, postgres_server, postgres_url

__all__ = ["new_postgres_database", "postgres_server", "postgres_url"]


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """Undo what a command that a test ran in this process did to logging."""
    yield
    structlog.reset_defaults()
