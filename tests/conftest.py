"""Fixtures for all tests."""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.support.postgres import new_postgres_database, postgres_server, postgres_url

# A background process of a shell ignores Ctrl-C, and so would every process that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start thousands of processes; without compiled modules, each of them would compile what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The checkout is on `sys.path`, so that a new folder in it counts as a change of packages: the parse servers of a test
# would be replaced.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "asynsched-hypothesis")
# The time of an example depends on the machine's load, and no test asserts on speed; no example depends on the remains
# of an earlier one in a fixture. Examples are the same each time, so that only a change breaks a test;
# `--hypothesis-profile=explore` looks for new ones.
unhurried = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    "print_blob": True,
}
settings.register_profile("explore", **unhurried)
settings.register_profile("repeatable", **unhurried, derandomize=True)
settings.load_profile("repeatable")

__all__ = ["new_postgres_database", "postgres_server", "postgres_url"]


POSTGRES_FIXTURES = {"postgres_server", "postgres_url", "new_postgres_database"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need PostgreSQL: by a fixture, or as one of the databases that they run on."""
    for item in items:
        call = getattr(item, "callspec", None)
        databases = [] if call is None else list(call.params.values())
        if POSTGRES_FIXTURES & {*getattr(item, "fixturenames", ())} or "postgresql" in databases:
            item.add_marker(pytest.mark.postgresql)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the tests that a run leaves out: they are not skipped, so pytest does not report them."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        terminalreporter.write_line(
            "Not tried: the page in a browser, Airflow's clients and providers, Celery. tests/browser, tests/clients,"
            " tests/compatibility and tests/engines have commands of their own, which CONTRIBUTING.md lists.",
            yellow=True,
        )
    if os.geteuid() != 0:
        terminalreporter.write_line(
            "Not tried: DAG files that root parses, hostile ones too, machines without a shared disk, and power cuts."
            " Root's tests do.",
            yellow=True,
        )


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """Undo the changes to logging by a command that a test ran in this process."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    for handler in set(logging.root.handlers) - set(handlers):
        handler.close()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()
