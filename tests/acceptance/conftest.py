"""A site for a test: folder, home and database of its own, on each database that asynsched works on."""

from collections.abc import Callable, Iterator

import pytest

from tests.support import warm_commands
from tests.support.up import Site


@pytest.fixture(scope="package", autouse=True)
def warm() -> Iterator[None]:
    """Run commands as forks of a process that has imported them."""
    with warm_commands.serving():
        yield


@pytest.fixture(scope="module", autouse=True)
def cold_schedulers(request: pytest.FixtureRequest, warm: None) -> Iterator[None]:
    """Start each scheduler of a module in an interpreter of its own if the module is about its process: `COLD`."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "COLD", False):
            patch.setenv(warm_commands.COLD_VARIABLE, "1")
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module's tests on both databases, or on its `DATABASES`, if its subject is the same on the other one.

    The queries themselves have tests on both in `tests/store`.
    """
    has_own = any("backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "backend" in metafunc.fixturenames and not has_own:
        databases = getattr(metafunc.module, "DATABASES", ("sqlite", "postgresql"))
        metafunc.parametrize("backend", databases, scope="module")


@pytest.fixture(scope="module")
def new_site(backend: str, request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Callable[[], Site]]:
    """Return a function that makes a site; its processes are gone when the module has ended."""
    sites: list[Site] = []

    def make() -> Site:
        database = request.getfixturevalue("new_postgres_database")() if backend == "postgresql" else None
        sites.append(Site(tmp_path_factory.mktemp("site"), database))
        return sites[-1]

    yield make
    for site in sites:
        site.end_everything()
        if site.database is not None:
            request.getfixturevalue("postgres_server").drop(site.database)
