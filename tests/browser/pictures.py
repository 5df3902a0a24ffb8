"""The pictures of the documentation: `python -m tests.browser.pictures` draws docs/pictures from examples/dags.

A test draws them too, and compares nothing but their sizes: their times and states differ each time.
"""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.pages import CHROMIUM, FLAGS, Pages, Theme, link_of
from tests.support.up import Site

ROOT = Path(__file__).parents[2]
PICTURES: dict[str, tuple[str, Theme, tuple[int, int]]] = {
    "grid.png": ("/dags/sales_etl", "light", (1100, 480)),
    "home.png": ("/", "dark", (1100, 560)),
    "graph.png": ("/dags/sales_etl/graph?run_id=manual__2", "light", (1100, 400)),
}
MOST_BYTES = 100_000


def draw(browser: Browser, folder: Path, root: Path) -> None:
    """Draw the pictures into a folder; `root` is for the scheduler."""
    site = Site(root, env={"ASYNSCHED_WEB__LISTEN": "127.0.0.1:0"})
    shutil.copytree(ROOT / "examples" / "dags", site.dags, dirs_exist_ok=True)
    with site.up() as up:
        site.wait_for_dag("sales_etl")
        site.wait_for_dag("wait_for_file")
        for number in range(3):
            site.run("dags", "trigger", "sales_etl", "--run-id", f"manual__{number}", "--wait")
        site.run("dags", "trigger", "wait_for_file")
        pages = Pages.signed_in(browser, link_of(up))
        for name, (path, theme, size) in PICTURES.items():
            pages.open(path, theme=theme, size=size).screenshot(path=folder / name)
        pages.close_contexts()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        (ROOT / "docs" / "pictures").mkdir(exist_ok=True)
        draw(browser, ROOT / "docs" / "pictures", Path(found))
        browser.close()
