"""The pictures of the documentation: `python -m tests.browser.pictures` draws docs/pictures from examples/dags.

A test draws them too, and compares nothing but their sizes: their times and states differ each time.
"""

import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.browser.pages import CHROMIUM, FLAGS, Pages, Theme, link_of
from tests.support.up import Site

ROOT = Path(__file__).parents[2]
PICTURES: dict[str, tuple[str, Theme, tuple[int, int]]] = {
    "grid.png": ("/dags/sales_etl", "light", (1100, 480)),
    "home.png": ("/", "dark", (1100, 560)),
    "graph.png": ("/dags/sales_etl/graph?run_id=manual__2", "light", (1100, 400)),
    "log.png": ("/dags/retries/runs/manual__0/tasks/call_service?try_number=1", "light", (1100, 400)),
    "why.png": ("/dags/wait_for_file/runs/manual__0/tasks/measure/why", "light", (1100, 240)),
    "trigger.png": ("/dags/branching/trigger", "dark", (1100, 440)),
}
MOST_BYTES = 60_000
COLOURS = 128
"""Of a picture: the page has few, and a palette takes a third of the bytes."""


def draw(browser: Browser, folder: Path, root: Path) -> None:
    """Draw the pictures into a folder; `root` is for the scheduler."""
    site = Site(root, env={"ASYNSCHED_WEB__LISTEN": "127.0.0.1:0"})
    shutil.copytree(ROOT / "examples" / "dags", site.dags, dirs_exist_ok=True)
    with site.up() as up:
        site.wait_for_dag("sales_etl")
        for dag_id in ("wait_for_file", "retries", "branching"):
            site.wait_for_dag(dag_id)
        for number in range(3):
            site.run("dags", "trigger", "sales_etl", "--run-id", f"manual__{number}", "--wait")
        site.run("dags", "trigger", "retries", "--run-id", "manual__0", "--wait")
        site.run("dags", "trigger", "wait_for_file", "--run-id", "manual__0", "--conf", '{"path": "/srv/incoming.txt"}')
        site.until(lambda: site.task_states("wait_for_file", "manual__0").get("wait"), "the sensor has begun")
        pages = Pages.signed_in(browser, link_of(up))
        for name, (path, theme, size) in PICTURES.items():
            page = pages.open(path, theme=theme, size=size)
            if "/tasks/" in path:
                page.wait_for_load_state("networkidle")  # the log and the reasons come after the view
            page.screenshot(path=folder / name)
            with Image.open(folder / name) as picture:
                small = picture.convert("RGB").quantize(COLOURS)
            small.save(folder / name, optimize=True)
        pages.close_contexts()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        (ROOT / "docs" / "pictures").mkdir(exist_ok=True)
        draw(browser, ROOT / "docs" / "pictures", Path(found))
        browser.close()
