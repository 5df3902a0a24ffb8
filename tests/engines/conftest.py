"""Brokers for all tests here, and a site at each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.brokers import BROKERS, Broker, require_broker
from tests.engines.sites import CelerySite
from tests.integration.remote.machines import MARKS

TEST_SECONDS = 300
"""Longest that a test may take: some start Python dozens of times, beside others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session", params=BROKERS, ids=lambda broker: broker.name)
def running_broker(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Broker]:
    require_broker(request.param)
    broker = request.param(tmp_path_factory.mktemp(request.param.name))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def site(running_broker: Broker, tmp_path, monkeypatch) -> Iterator[CelerySite]:
    """A site whose broker has no messages."""
    running_broker.empty()
    site = CelerySite(tmp_path, running_broker)
    monkeypatch.setenv(MARKS, str(site.marks))
    yield site
    site.close()
