"""Celery's and Dask's workers on machines that share no disk, and reach the engine by the network that fails."""

from collections.abc import Iterator

import pytest

from tests.engines.brokers import BROKERS, Broker, require_broker
from tests.engines.dask_site import DaskSite
from tests.engines.sites import CelerySite
from tests.integration.remote.machines import MARKS, Site
from tests.integration.remote.test_separate_machines import (
    test_a_machine_without_a_shared_disk_gets_all_that_tries_need,
    test_a_slow_network_that_loses_packets_neither_loses_nor_doubles_a_try,
    test_a_try_on_a_machine_that_is_cut_off_ends_in_time_and_runs_again_only_then,
    test_a_try_outlasts_a_cut_shorter_than_its_lease_and_its_end_is_reported_late,
    write_files,
)
from tests.support.separation import Network, require_separation

__all__ = [
    "test_a_machine_without_a_shared_disk_gets_all_that_tries_need",
    "test_a_slow_network_that_loses_packets_neither_loses_nor_doubles_a_try",
    "test_a_try_on_a_machine_that_is_cut_off_ends_in_time_and_runs_again_only_then",
    "test_a_try_outlasts_a_cut_shorter_than_its_lease_and_its_end_is_reported_late",
]


@pytest.fixture(params=[*BROKERS, DaskSite], ids=["redis", "rabbitmq", "dask"])
def site(request: pytest.FixtureRequest, tmp_path, monkeypatch) -> Iterator[Site]:
    """A site whose engine is on the scheduler's machine, and has nothing to do."""
    require_separation()
    network = Network()
    broker = None
    if issubclass(request.param, Broker):
        require_broker(request.param)
        (tmp_path / "broker").mkdir()
        broker = request.param(tmp_path / "broker", network.address)
        site: CelerySite | DaskSite = CelerySite(tmp_path, broker)
    else:
        site = DaskSite(tmp_path)
    site.network = network
    monkeypatch.setenv(MARKS, str(site.marks))
    write_files(site)
    try:
        if broker is not None:
            broker.start()
        else:
            site.start_dask()
        yield site
    finally:
        site.close()
        if broker is not None:
            broker.kill()
