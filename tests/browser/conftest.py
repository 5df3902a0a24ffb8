"""A real browser, signed in at a real scheduler whose DAGs show everything that the page has."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.dags.names import LONG_NAME
from tests.browser.pages import CHROMIUM, FLAGS, Pages, link_of
from tests.support import warm_commands
from tests.support.up import Site, Up

DAGS = Path(__file__).parent / "dags"
SECONDS = 400
"""The first test also waits until the DAGs have run; a test of views opens all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where there is no browser, but for `.ci/run`, which has installed one."""
    of_browser = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in of_browser:
        item.add_marker(pytest.mark.timeout(SECONDS))
        if not Path(CHROMIUM).exists() and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason=f"there is no browser: install Chromium as {CHROMIUM}"))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A scheduler that has run the DAGs of tests/browser/dags, and goes on."""
    site = Site(
        tmp_path_factory.mktemp("site"),
        env={"ASYNSCHED_WEB__LISTEN": "127.0.0.1:0", "ASYNSCHED_WEB__EXPOSE_CONFIG": "true"},
    )
    shutil.copytree(DAGS, site.dags, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with warm_commands.serving(), site.up() as up:
        for dag_id in ("orders", "hostile", "release", "talks", LONG_NAME):
            site.wait_for_dag(dag_id)
            site.run("dags", "trigger", dag_id, "--run-id", "first")
        site.wait_for_dag("large")
        for run_id in ("first", "second"):
            site.run("dags", "trigger", "large", "--run-id", run_id)
        site.run("pools", "set", "warehouse", "4")
        site.run("users", "create", "ada", "--role", "operator", "--no-password")
        site.run("tokens", "create", "--user", "ada", "--label", "nightly report")
        site.run("variables", "set", "region", "<b>eu</b>")
        site.run("connections", "add", "shop", "--conn-type", "http", "--conn-password", "hunter22")
        site.until(lambda: site.runs("orders")[0]["state"] == "failed", "the run of orders has failed")
        site.until(lambda: site.runs("hostile")[0]["state"] == "success", "the run of hostile has succeeded")
        site.until(lambda: {run["state"] for run in site.runs("large")} == {"success"}, "the runs of large succeed")
        site.until(lambda: site.json("tasks", "awaiting"), "the question is asked")
        yield up


@pytest.fixture(scope="session")
def session(served: Up) -> Iterator[Pages]:
    """The browser, signed in by the link that `asynsched up` prints."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)  # a busy machine takes its time
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield Pages.signed_in(browser, link_of(served))
        browser.close()


@pytest.fixture
def pages(session: Pages) -> Iterator[Pages]:
    """The signed-in browser; what its pages have reported as errors fails the test."""
    session.errors.clear()
    yield session
    session.close_contexts()
    assert session.errors == []


def of_run(dag_id: str, *more: str) -> str:
    """Return the address of the run that the fixtures have triggered."""
    return "/".join(["", "dags", dag_id, "runs", "first", *(quote(part) for part in more)])


Go = Callable[[str], None]
