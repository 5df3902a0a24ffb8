"""Brokers for all tests here, and a site at each of them."""

from collections.abc import Iterator

import pytest

from tests.engines.brokers import BROKERS, Broker, require_broker
from tests.engines.sites import CelerySite
from tests.integration.remote.machines import MARKS


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
