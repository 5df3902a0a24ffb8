"""Fixtures for all tests."""

import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.postgres import new_postgres_database, postgres_server, postgres_url

# What a shell starts in the background ignores Ctrl-C, and so would every process that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does, and no test asserts on speed.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

__all__ = ["new_postgres_database", "postgres_server", "postgres_url"]


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """Undo what a command that a test ran in this process did to logging."""
    yield
    structlog.reset_defaults()
