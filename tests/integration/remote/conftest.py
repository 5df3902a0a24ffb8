"""Sites: with the local executor, and with workers on each kind of database."""

from collections.abc import Iterator

import pytest

from tests.integration.remote.dags import DAGS
from tests.integration.remote.machines import FAR, MARKS, Site


@pytest.fixture(params=["sqlite", "postgresql"])
def far_site(request: pytest.FixtureRequest, tmp_path, monkeypatch) -> Iterator[Site]:
    """A site with DAGs whose tries run on other machines, which are switched off at the end."""
    is_sqlite = request.param == "sqlite"
    database = f"sqlite:///{tmp_path}/asynsched.db" if is_sqlite else request.getfixturevalue("postgres_url")
    site = Site(tmp_path, database, FAR)
    site.program.write(DAGS)
    monkeypatch.setenv(MARKS, str(site.marks))
    yield site
    site.close()


@pytest.fixture(params=["local", "remote"])
def site(request: pytest.FixtureRequest, tmp_path, monkeypatch) -> Iterator[Site]:
    """A site with one of both executors."""
    site = Site(tmp_path, None, "local" if request.param == "local" else FAR)
    monkeypatch.setenv(MARKS, str(site.marks))
    yield site
    site.close()
