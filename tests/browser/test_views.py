"""Every view, in both themes, narrow and wide: axe finds nothing, and no script or policy reports an error."""

from unittest.mock import AsyncMock
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page

from asynsched.web.pages import PAGE
from tests.browser.conftest import of_run
from tests.browser.dags.large import LONGEST, N_REST, N_ROWS
from tests.browser.dags.names import LONG_NAME
from tests.browser.pages import NARROW, WIDE, Pages, violations

VIEWS = [
    "/", "/login", "/dags", "/dags?q=nothing", "/runs", "/tasks", "/assets", "/backfills?dag_id=orders", "/answers",
    "/pools", "/variables", "/connections", "/errors", "/schedulers", "/audit", "/preferences", "/dags/unknown",
    "/users", "/users/ada", "/plugins", "/providers", "/config",
    "/tokens", "/late", "/assets/graph", "/preview", "/preview/effect?where=no-such-branch",
    "/act/dags?do=pause&dag=orders&dag=hostile", "/act/runs?do=delete&run=1", "/act/tasks?do=clear&task=1&task=2",
    "/dags/orders/upcoming/simulated?hours=1",
    "/dags/orders/graph?groups=folded", "/dags/orders/nowhere", f"/dags/{LONG_NAME}", f"/dags/{LONG_NAME}/graph",
    f"/dags/{LONG_NAME}/gantt",
    *(f"/dags/orders{view}" for view in ("", "/graph?run_id=first", "/gantt?run_id=first", "/calendar", "/upcoming",
                                         "/code", "/details", "/trigger", "/why")),
    *(of_run("orders", *view) for view in ((), ("gantt",), ("details",), ("why",), ("tasks", "check"),
                                           ("tasks", "check", "why"))),
    of_run("orders", "tasks", "stage.extract") + "?map_index=1",
    of_run("orders", "act") + "?action=clear", of_run("orders", "note"),
    of_run("orders", "tasks", "check", "log", "find") + "?try_number=1&q=look",
    "/dags/hostile", "/dags/hostile/details", "/dags/hostile/graph?run_id=first", "/dags/hostile/trigger",
    of_run("hostile", "tasks", "group.attack"),
]  # fmt: skip
_OF_TASK = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}"
NO_VIEWS = {
    f"{_OF_TASK}/log": "a text", f"{_OF_TASK}/log/follow": "a stream", f"{_OF_TASK}/required_actions": "a redirection",
    "/palette": "a part of a dialog", "/static/{name}": "a file",
}  # fmt: skip


def test_axe_reads_each_view_that_the_page_has() -> None:
    routes = [route for route in PAGE.routes(AsyncMock()) if route.methods and "GET" in route.methods]
    shown = (unquote(urlsplit(view).path) for view in VIEWS)
    found = {next(route.path for route in routes if route.path_regex.match(view)) for view in shown}
    assert found == {route.path for route in routes} - {*NO_VIEWS}


# Colours depend on the theme alone, and sizes on the width alone: so axe reads each view once in each of them.
@pytest.mark.parametrize(
    ("theme", "sizes"), [("light", (WIDE, NARROW)), ("dark", (NARROW, WIDE))], ids=["light", "dark"]
)
def test_axe_finds_nothing_in_any_view_and_each_fits_the_window(pages: Pages, theme, sizes) -> None:
    found = {}
    for path in VIEWS:
        page = pages.open(path, theme=theme, size=sizes[0])
        page.wait_for_load_state("networkidle") if "/tasks/" in path else None
        problems = violations(page) + too_wide(page)
        page.set_viewport_size({"width": sizes[1][0], "height": sizes[1][1]})
        if problems := problems + too_wide(page):
            found[path] = problems
        pages.close_contexts()
    assert found == {}


def too_wide(page: Page) -> list[str]:
    """Return the problem that the window needs to be scrolled sideways, if it does."""
    is_too_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [f"it is wider than the window of {page.viewport_size}"] if is_too_wide else []


def test_every_view_reads_without_scripts(pages: Pages) -> None:
    page = pages.open("/", scripts=False)
    assert page.get_by_role("heading", name="Failed in the last 24 hours").is_visible()
    page.get_by_role("link", name="DAGs", exact=True).click()
    page.get_by_role("link", name="orders", exact=True).first.click()
    assert page.get_by_role("row", name="check").is_visible()
    page.get_by_role("link", name="Gantt", exact=True).click()
    page.get_by_label("Run").select_option("first")
    page.get_by_role("button", name="Show").click()
    assert page.get_by_role("link", name="check: failed").is_visible()
    page.goto("/tasks?task=check")
    page.get_by_label("Choose check").first.check()
    page.get_by_role("button", name="Mark as success").click()
    assert page.get_by_role("heading", name="Mark 1 task instance as success").is_visible()
    page.get_by_role("link", name="Back", exact=True).click()
    assert urlsplit(page.url).query == "task=check"
    page.goto(of_run("orders"))
    page.get_by_role("link", name="check", exact=True).click()
    assert "the table is locked" in page.locator("#log").inner_text()
    page.get_by_role("link", name="Why is it in this state?").click()
    assert "It ended as failed" in page.locator("#why").inner_text()


def test_the_theme_and_the_zone_are_kept(pages: Pages) -> None:
    page = pages.open("/preferences")
    page.get_by_label("dark").check()
    page.get_by_label("Zone of times").select_option("Asia/Tokyo")
    page.get_by_role("button", name="Save").click()
    page.goto("/runs")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert "Asia/Tokyo" in page.locator("footer").inner_text()
    shown = page.locator("tbody time").first
    stamp = shown.get_attribute("datetime")
    in_tokyo = page.evaluate("at => new Date(at).toLocaleString('sv', {timeZone: 'Asia/Tokyo'})", stamp)
    assert shown.inner_text() == in_tokyo


LARGE = "/dags/large?groups=open"
IS_LAID_OUT = "row => row.firstChild.checkVisibility({contentVisibilityAuto: true})"


def test_a_large_grid_draws_the_visible_rows_and_lays_out_the_others_later(pages: Pages) -> None:
    page = pages.open("/")
    page.add_init_script("window.requestIdleCallback = (then) => { window.goOn = then; };")
    page.goto(LARGE)
    rows = page.get_by_role("table").locator("tbody tr")
    assert [rows.nth(place).evaluate(IS_LAID_OUT) for place in (0, N_ROWS - 1)] == [True, False]
    page.evaluate("while (window.goOn) { const then = window.goOn; window.goOn = null; then(); }")
    assert rows.nth(N_ROWS - 1).evaluate(IS_LAID_OUT)
    grid = page.get_by_role("table")
    assert (grid.get_by_role("row").count(), grid.get_by_role("rowheader").count()) == (N_ROWS + 2, N_ROWS + 1)
    assert grid.get_by_role("columnheader", name="Run first: success").count() == 1
    assert rows.nth(N_ROWS - 1).get_by_role("cell").all_inner_texts() == ["✓", "✓"]
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    roles = [node["role"]["value"] for node in tree["nodes"]]
    assert (roles.count("rowheader"), roles.count("cell")) == (N_ROWS + 1, 2 * (N_ROWS + 1))


def test_the_cells_of_a_large_grid_are_links_for_the_pointer_and_the_arrow_keys(pages: Pages) -> None:
    page = pages.open(LARGE)
    page.get_by_role("rowheader", name="t3", exact=True).locator("xpath=following-sibling::td[1]").hover()
    link = page.get_by_role("link", name="t3: success")
    with page.context.expect_page() as opened:
        link.click(modifiers=["ControlOrMeta"])
    assert opened.value.url.endswith(of_run("large", "tasks", "t3"))
    for row, address in {"stage": of_run("large"), "mapped [ ]": of_run("large") + "?task_id=mapped"}.items():
        page.get_by_role("rowheader", name=row, exact=True).locator("xpath=following-sibling::td[1]").hover()
        assert page.get_by_role("link", name=f"{row}: success").get_attribute("href").endswith(address)
    page.get_by_role("columnheader", name="Run first: success").get_by_role("link").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.title") == f"{LONGEST}: success"
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**" + of_run("large", "tasks", f"stage.{LONGEST}"))


def test_a_large_grid_without_scripts_has_all_of_its_rows_laid_out(pages: Pages) -> None:
    page = pages.open(LARGE, scripts=False)
    assert page.get_by_role("table").locator("tbody tr").nth(N_ROWS - 1).evaluate(IS_LAID_OUT)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_the_columns_of_a_large_grid_are_below_their_heads_and_its_longest_name_fits(pages: Pages, size) -> None:
    page = pages.open(LARGE, size=size)
    name = page.get_by_role("rowheader", name=LONGEST)
    assert name.evaluate("name => name.scrollWidth <= name.clientWidth") == (size == WIDE)  # else it ends with dots
    heads = page.evaluate("[...document.querySelectorAll('.runs > *')].map((cell) => cell.getBoundingClientRect().x)")
    for row in (page.get_by_role("row", name=LONGEST), page.get_by_role("row", name=f"r{N_REST - 1}")):
        row.scroll_into_view_if_needed()
        # The browser lays a row out in a frame after the scroll; until then, its name is further left.
        page.wait_for_function(
            "([row, heads]) => [...row.children].every((cell, at) => cell.getBoundingClientRect().x === heads[at])",
            arg=[row.element_handle(), heads],
        )
        assert row.locator("> *").count() == len(heads)
    assert violations(page) == []
