"""A site for a test: folder, home and database of its own, on each database that asynsched works on."""

from collections.abc import Callable, Iterator

import pytest

from tests.support import warm_commands
from tests.support.up import Site


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Have commands that end by themselves be forks of a process that has imported them."""
    with warm_commands.serving():
        yield


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return the kind of database."""
    return request.param


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
