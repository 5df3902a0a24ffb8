"""What people do with the page: by keys, by forms, and while things change."""

import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from playwright.sync_api import Page, Route, expect

from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from tests.browser.conftest import of_run
from tests.browser.dags.large import N_REST, N_ROWS
from tests.browser.dags.names import LONG_NAME
from tests.browser.pages import Pages, link_of, violations
from tests.support.up import Site, Up


def test_the_keyboard_finds_dags_and_moves_between_views_and_rows(pages: Pages) -> None:
    page = pages.open("/")
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.type("orde")
    expect(page.locator("#palette-found a").first).to_have_text("orders")
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/dags/orders")
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/dags")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") > first == "hostile"
    page.keyboard.press("/")
    page.keyboard.insert_text("talk")  # at once: each search has an address
    expect(page.locator("#found tbody tr")).to_have_count(1)
    assert urlsplit(page.url).query.startswith("q=talk")
    page.go_back()
    page.wait_for_url("**/dags")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()


def test_runs_and_tasks_are_filtered_in_place_and_their_number_is_told(pages: Pages) -> None:
    page = pages.open("/tasks")
    row = "#found tbody tr"
    for view, chosen in (("tasks", "failed"), ("runs", "failed")):
        page.goto(f"/{view}")
        page.evaluate("window.isSame = true")
        told, all_rows = page.locator("#n-found"), page.locator(row).count()
        page.get_by_label("State").select_option(chosen)
        button = page.get_by_role("button", name="Filter")
        button.click()
        page.wait_for_url(f"**/{view}?*state={chosen}*")
        expect(page.locator(row)).not_to_have_count(all_rows)
        n_rows = page.locator(row).count()
        expect(told).to_have_text(re.compile(rf"^{n_rows} "))
        expect(button).to_be_focused()
        assert page.evaluate("window.isSame")
        assert violations(page) == []
        page.go_back()
        expect(page.locator(row)).to_have_count(all_rows)
        expect(page.get_by_label("State")).to_have_value("")


def test_a_filter_whose_answer_is_an_error_leads_to_that_answer(pages: Pages) -> None:
    page = pages.open("/runs")
    page.route("**/runs?*", lambda route: route.fulfill(status=503, body="The database is away."))
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("The database is away.")).to_be_visible()
    assert "state=failed" in page.url
    pages.errors.clear()  # the browser has reported the answers


def test_a_form_made_of_params_triggers_a_run(pages: Pages, served: Up) -> None:
    page = pages.open("/dags/orders/trigger")
    page.get_by_label("rows").fill("7")
    page.get_by_label("region").select_option("us")
    page.get_by_label("Day").fill("2026-02-03")
    page.get_by_label("dry").check()
    page.get_by_label("names").fill("x\ny z")
    page.get_by_label("extra").fill("{not json")
    page.get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("alert")).to_contain_text("do not fit")
    assert page.get_by_label("extra").input_value() == "{not json"
    assert page.get_by_label("rows").input_value() == "7"
    assert violations(page) == []
    page.get_by_label("extra").fill('{"b": [1]}')
    page.get_by_role("button", name="Trigger").click()
    page.wait_for_url("**/dags/orders/runs/manual__*")
    run_id = unquote(urlsplit(page.url).path.rpartition("/")[2])
    assert served.site.json("runs", "show", "orders", run_id)["conf"] == {
        "region": "us", "day": "2026-02-03", "rows": 7, "dry": True, "names": ["x", "y z"], "extra": {"b": [1]},
        "note": None,
    }  # fmt: skip
    page.get_by_role("link", name="Trigger again").click()
    assert page.get_by_label("rows").input_value() == "7"
    assert page.get_by_label("names").input_value() == "x\ny z"


def test_a_form_that_is_refused_is_seen_with_what_was_typed(pages: Pages, served: Up) -> None:
    page = pages.open("/connections")
    page.get_by_label("Name").last.fill("shop")
    page.get_by_label("Type").fill("http")
    page.get_by_label("Password").fill("hunter22")
    page.get_by_label("Extra").fill("[1]")
    page.get_by_role("button", name="Save").click()
    problem = page.get_by_role("alert")
    expect(problem).to_be_focused()
    expect(problem).to_contain_text("object")
    expect(page.get_by_label("Type")).to_have_value("http")
    assert violations(page) == []
    page.get_by_label("Extra").fill('{"a": 1}')
    page.get_by_label("Password").fill("hunter22")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_contain_text("The connection shop is set.")


def test_a_list_that_is_moved_by_keys_is_sent_once_it_is_chosen(pages: Pages, served: Up) -> None:
    page = pages.open("/assets/graph")
    chosen = page.get_by_label("Connected with")
    names = chosen.locator("option")
    chosen.focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert urlsplit(page.url).query == ""
    page.keyboard.press("Enter")
    page.wait_for_url("**/assets/graph?asset=*")
    assert chosen.input_value() == names.nth(2).get_attribute("value")
    chosen.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    page.wait_for_url("**/assets/graph?asset=")
    chosen.select_option(index=1)
    page.wait_for_url(lambda url: parse_qs(urlsplit(url).query) != {})


def test_a_view_follows_a_run_and_a_log_until_they_end(pages: Pages, served: Up, tmp_path: Path) -> None:
    until = tmp_path / "until"
    served.site.run("dags", "trigger", "talks", "--run-id", "followed", "--conf", f'{{"until": "{until}"}}')
    run = pages.open("/dags/talks/runs/followed")
    gantt = pages.open("/dags/talks/gantt?run_id=followed")
    log = pages.open("/preferences")
    log.route("**/log/follow*", lambda route: route.fulfill(status=404, body="of a proxy"), times=1)
    log.goto("/dags/talks/runs/followed/tasks/follow")
    expect(log.locator("#log")).to_contain_text("the first line")
    expect(log.locator(".log-state")).to_have_text("following")
    expect(run.locator("tbody")).to_contain_text("running")
    expect(gantt.get_by_role("link", name=re.compile("^follow: running"))).to_be_visible()
    until.touch()
    expect(log.locator("#log")).to_contain_text("the last line")
    expect(log.locator(".log-state")).to_have_text("ended")
    expect(run.locator(".facts")).to_contain_text("success")
    expect(gantt.get_by_role("link", name=re.compile("^follow: success"))).to_be_visible()
    assert "the first line" in log.locator("#log").inner_text()
    for part in (log.locator("#task-tries"), log.get_by_role("region", name="Why")):
        expect(part).to_contain_text("success")
    served.site.run("tasks", "clear", "talks", "followed", "follow", "--yes")
    expect(log.locator("#log-tries")).to_contain_text("Try 2")
    expect(log.get_by_label("Log of try 2")).to_contain_text("the last line")


def test_a_long_log_is_loaded_by_parts(pages: Pages) -> None:
    page = pages.open(of_run("talks", "tasks", "long"))
    log = page.locator("#log")
    expect(log).to_contain_text("line 19999 of many")
    assert "line 100 of many" not in log.inner_text()
    page.wait_for_function(
        """() => {
            const log = document.getElementById("log");
            log.scrollTop = 0;  // again and again, as a person does: each time, an earlier part comes
            return log.textContent.includes("line 100 of many");
        }"""
    )
    expect(log).to_contain_text("line 0 of many")
    numbers = page.evaluate(
        "[...document.getElementById('log').textContent.matchAll(/line (\\d+) of/g)].map((found) => Number(found[1]))"
    )
    assert numbers == list(range(20_000))
    page.goto(of_run("talks", "tasks", "long", "log", "find") + "?try_number=1&q=LINE+777+of")
    page.get_by_role("link", name="Show this line in the log").click()
    expect(page.locator("#log")).to_contain_text("line 777 of many")


N_LINES = 1_000_000
SCROLLED = """([edge, line]) => {
    const log = document.getElementById("log");
    log.scrollTop = edge === "top" ? 0 : log.scrollHeight;  // again and again: each time, the next part comes
    return log.textContent.includes(line);
}"""
OF_LOG = """() => {
    const text = document.getElementById("log").textContent, numbers = [...text.matchAll(/line (\\d+) of/g)];
    return [document.querySelectorAll("#log pre").length, numbers.map((found) => Number(found[1]))];
}"""


def test_a_log_of_a_million_lines_is_read_upwards_downwards_and_at_a_line(pages: Pages, served: Up) -> None:
    path = served.site.home / LOGS / log_path(TaskInstanceKey(LONG_NAME, "first", "short"), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number} of a log\n" for number in range(N_LINES)))
    page = pages.open(of_run(LONG_NAME, "tasks", "short"))
    expect(page.locator("#log")).to_contain_text(f"line {N_LINES - 1} of")
    for edge, number in (("top", N_LINES // 2), ("bottom", N_LINES - 1)):
        page.wait_for_function(SCROLLED, arg=[edge, f"line {number} of"], timeout=120_000)
        n_parts, numbers = page.evaluate(OF_LOG)
        assert n_parts <= 40, "a browser with more of them is slow"
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert (numbers[-1] == N_LINES - 1) == (edge == "bottom")
    for number in (0, N_LINES // 3):
        page.goto(of_run(LONG_NAME, "tasks", "short", "log", "find") + f"?try_number=1&q=LINE+{number}+of")
        page.get_by_role("link", name="Show this line in the log").click()
        expect(page.locator("#log")).to_contain_text(f"line {number} of")


def test_clearing_shows_what_it_touches_first(pages: Pages, served: Up) -> None:
    page = pages.open(of_run("orders", "tasks", "check"))
    page.locator("summary", has_text="Clear").click()
    page.get_by_role("link", name="With all downstream").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This changes 2 task instances")
    assert violations(page) == []
    dialog.get_by_role("link", name="Back").click()
    expect(dialog).to_have_count(0)
    page.locator("summary", has_text="Clear").click()
    page.get_by_role("link", name="This task").click()
    dialog.get_by_role("button", name="Clear check").click()
    expect(page.get_by_role("status")).to_contain_text("Clear check: 1 task instance")
    site = served.site
    site.until(lambda: site.json("tasks", "list", "orders", "first", "--all-tries"), "the tries are listed")


def test_home_fetches_the_reasons_and_keeps_them_when_it_follows_changes(pages: Pages, served: Up) -> None:
    site = served.site
    site.run("dags", "pause", "talks")
    site.run("dags", "trigger", "talks", "--run-id", "late")
    with closing(sqlite3.connect(site.home / "asynsched.db", isolation_level=None, timeout=60)) as database:
        database.execute(
            "UPDATE dag_run SET queued_at = queued_at - 3600000000, run_after = run_after - 3600000000"
            " WHERE run_id = 'late'"
        )
    page = pages.open("/late")

    def answered(path: str) -> str:
        return page.context.request.get(path).text()

    site.until(lambda: "The DAG is paused." in answered("/late"), "it is known to be late")
    site.until(lambda: 'hx-get="/late"' in answered("/"), "what is known is old")
    page.goto("/")
    reason = page.locator(".late:not([hx-get]) .reason")
    expect(reason).to_have_text("The DAG is paused.")
    expect(page).to_have_title("Home · asynsched")
    site.run("dags", "trigger", "talks", "--run-id", "later")
    expect(page.get_by_role("link", name="later", exact=True)).to_be_visible()
    expect(reason).to_have_text("The DAG is paused.")
    for run_id in ("late", "later"):
        site.run("runs", "cancel", "talks", run_id, "--yes")
    site.run("dags", "unpause", "talks")


def test_a_question_is_answered(pages: Pages, served: Up) -> None:
    page = pages.open("/answers")
    page.get_by_label("why").fill("they are right")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("has its answer: Approve")
    site = served.site
    site.until(lambda: site.runs("release")[0]["state"] == "success", "the task goes on")


def test_chosen_dags_are_paused_by_keys_after_a_preview(pages: Pages, served: Up) -> None:
    page = pages.open("/dags?tag=sales")
    assert page.locator("#many").is_hidden()
    page.get_by_label("Tag", exact=True).select_option("kept")
    expect(page.get_by_role("link", name="Without the tag kept")).to_be_visible()
    assert {*parse_qs(urlsplit(page.url).query)["tag"]} == {"kept", "sales"}
    page.get_by_label("Part of a name").fill("orders")
    expect(page.get_by_text("No such DAG.")).to_be_visible()
    page.get_by_label("Part of a name").fill("")
    expect(page.get_by_role("link", name="Without the tag kept")).to_be_visible()
    page.get_by_role("link", name="Without the tag sales").click()
    expect(page.locator("#found tbody tr")).to_have_count(2)
    assert urlsplit(page.url).query == "tag=kept"
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#many")).to_contain_text("1 chosen")
    assert violations(page) == []
    page.get_by_label("Choose all").check()
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is active now")
    assert violations(page) == []
    dialog.get_by_role("button", name="Pause 2 DAGs").click()
    expect(page.get_by_role("status").first).to_contain_text("Pause 2 DAGs: done.")
    assert urlsplit(page.url).query == "tag=kept"
    listed = {dag["dag_id"]: dag["paused"] for dag in served.site.json("dags", "list")}
    assert (listed["release"], listed["talks"]) == (True, True)
    for dag_id in ("release", "talks"):
        served.site.run("dags", "unpause", dag_id)


def test_a_group_folds_and_unfolds_in_the_graph_and_the_address_says_so(pages: Pages) -> None:
    page = pages.open("/dags/orders/graph?run_id=first")
    page.get_by_role("link", name="Fold the group stage").first.click()
    page.wait_for_url("**groups=open&but=stage")
    folded = page.get_by_role("link", name="Open the group stage of 1 tasks, success: 3 of 3")
    assert violations(page) == []
    folded.click()
    page.wait_for_url("**run_id=first&groups=open")
    expect(page.get_by_role("link", name="stage.extract")).to_be_visible()
    page.go_back()
    expect(folded).to_be_visible()
    page.get_by_role("link", name="Fold all").click()
    page.wait_for_url("**groups=folded")
    expect(folded).to_be_visible()


def test_a_group_folds_in_the_grid_in_place_by_mouse_and_keyboard(pages: Pages, served: Up) -> None:
    page = pages.open("/dags/orders")
    page.evaluate("window.isSame = true")
    group, task = (page.get_by_role("rowheader", name=name, exact=True) for name in ("stage", "extract [ ]"))
    name = group.get_by_role("link", name="stage", exact=True)
    expect(task).to_be_visible()
    name.click()
    expect(task).to_have_count(0)
    assert parse_qs(urlsplit(page.url).query) == {"runs": ["25"], "groups": ["open"], "but": ["stage"]}
    expect(name).to_have_attribute("aria-expanded", "false")
    expect(name).to_be_focused()
    expect(page.get_by_role("link", name="stage: success, 3 of 3").first).to_be_visible()
    assert violations(page) == []
    served.site.run("dags", "trigger", "orders", "--run-id", "while-folded")
    expect(page.get_by_role("columnheader", name="Run while-folded")).to_be_visible()
    expect(task).to_have_count(0)
    expect(name).to_be_focused()
    page.keyboard.press("Enter")
    expect(task).to_be_visible()
    assert page.evaluate("window.isSame")
    page.go_back()
    expect(task).to_have_count(0)
    sent = pages.open(urlsplit(page.url)._replace(scheme="", netloc="").geturl(), scripts=False)
    row = sent.get_by_role("rowheader", name="stage", exact=True)
    assert sent.get_by_role("rowheader", name="extract [ ]").count() == 0
    row.get_by_role("link").click()
    assert sent.get_by_role("rowheader", name="extract [ ]").is_visible()


def test_a_grid_that_becomes_large_when_a_group_opens_is_laid_out_too(pages: Pages) -> None:
    page = pages.open("/dags/large")
    rows = page.get_by_role("table").locator("tbody tr")
    expect(rows).to_have_count(N_ROWS - N_REST - 1)
    assert page.locator(".grid.large").count() == 0
    page.get_by_role("link", name="rest", exact=True).click()
    expect(rows).to_have_count(N_ROWS - 1)
    expect(page.locator(".grid.large")).to_have_count(1)
    page.wait_for_function(
        "row => row.firstChild.checkVisibility({contentVisibilityAuto: true})", arg=rows.last.element_handle()
    )


def test_assets_lead_from_dag_to_dag(pages: Pages) -> None:
    page = pages.open("/dags/orders")
    page.get_by_role("navigation", name="Views of the DAG").get_by_role("link", name="Assets").click()
    graph = page.get_by_role("region", name="Graph of assets and DAGs")
    expect(graph.get_by_role("link")).to_have_count(2)
    expect(graph.get_by_role("link", name=re.compile("orders: .* in 24 h"))).to_be_visible()
    graph.get_by_role("link", name="The DAG orders").click()
    page.wait_for_url("**/dags/orders")


def test_a_commit_is_previewed_at_an_address_for_a_pull_request(pages: Pages, served: Up) -> None:
    folder = served.site.dags
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    text = (folder / "orders.py").read_text()
    changed = text.replace("[staged, check()] >> publish()", "[staged, check()] >> publish.override(pool='none')()")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    # The commit is made beside the working tree, whose files stay as they are.
    stored = subprocess.run([*git, "hash-object", "-w", "--stdin"], input=changed, text=True, check=True, stdout=-1)
    entry = f"100644,{stored.stdout.strip()},orders.py"
    subprocess.run([*git, "update-index", "--cacheinfo", entry], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "two"], check=True)
    page = pages.open("/preview?where=HEAD&hours=0")
    effect = page.locator("#effect")
    expect(effect).to_contain_text("Pools that do not exist", timeout=60_000)
    expect(effect.get_by_role("region", name="DAGs")).to_contain_text('publish.pool: "default_pool" → "none"')
    expect(effect.get_by_role("region", name="Changed tasks of orders")).to_contain_text("publish")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto("/preview?where=no-such-branch")
    expect(page.get_by_role("alert")).to_contain_text("no-such-branch", timeout=60_000)
    plain = pages.open("/preview/effect?where=no-such-branch", scripts=False)
    assert "no-such-branch" in plain.locator(".sentence").inner_text()


def test_a_token_is_shown_once_and_ended(pages: Pages, served: Up) -> None:
    page = pages.open("/tokens")
    page.get_by_label("Purpose").fill("reports")
    page.get_by_label("Scope").select_option("view")
    page.get_by_label("Only for these DAGs").fill("orders")
    page.get_by_role("button", name="Create").click()
    secret = page.locator("#secret").inner_text()
    assert violations(page) == []
    page.goto("/tokens")
    assert secret not in page.content()
    headers = {"Authorization": f"Bearer {secret}"}
    asked = page.context.request
    assert asked.get("/api/v2/dags/orders", headers=headers).status == 200
    assert asked.get("/api/v2/dags/talks", headers=headers).status == 403
    assert asked.post("/tokens", headers=headers, form={"days": "1", "scope": "administer"}).status == 403
    page.on("dialog", lambda dialog: dialog.accept())
    row = page.get_by_role("row", name="reports")
    expect(row).to_contain_text("orders")
    row.get_by_role("button", name="End").click()
    expect(page.get_by_role("status").first).to_contain_text("The token reports has ended.")
    assert asked.get("/api/v2/dags/orders", headers=headers).status == 401
    pages.errors.clear()  # the question whether to end it
    assert "token.delete" in [act["action"] for act in served.site.json("audit", "list")]


def test_a_viewer_sees_no_buttons_and_is_refused_and_an_operator_is_not(pages: Pages, served: Up) -> None:
    for name, role, sees in (("vera", "viewer", 0), ("otto", "operator", 1)):
        command = served.site.command("users", "create", name, "--role", role, "--password-stdin")
        site = served.site
        subprocess.run(command, cwd=site.root, env=site.environment, input=b"a long password\n", check=True)
        page = pages.open("/dags/orders", signed_in=False)
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill("a long password")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/dags/orders")
        expect(page.locator("footer")).to_contain_text(name)
        assert page.get_by_role("link", name="Trigger").count() == sees
        for path in ("/dags", "/runs", "/tasks"):
            page.goto(path)
            assert (page.locator("[data-pick]").count() > 0) == bool(sees), path
            assert (page.locator("main form[method=post]").count() > 0) == bool(sees and path == "/dags"), path
        page.goto(of_run("orders"))
        assert page.get_by_text("Clear", exact=True).count() == sees
        own = {"Origin": pages.base}
        answer = page.context.request.post("/pools", headers=own, form={"name": name, "slots": "1"}, max_redirects=0)
        assert answer.status == (303 if sees else 403)
        secret = page.context.request.post("/connections", headers=own, form={"conn_id": "x", "conn_type": "http"})
        assert (secret.status, "needs the right to administer" in secret.text()) == (403, True)


def test_a_view_catches_up_without_a_reload_after_the_server_was_away(session: Pages, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    site = Site(tmp_path, env={"ASYNSCHED_WEB__LISTEN": address})
    site.write(
        "d.py",
        """
        from asynsched import DAG, EmptyOperator

        with DAG("d", schedule=None):
            EmptyOperator(task_id="t")
        """,
    )
    with site.up() as up:
        site.wait_for_dag("d")
        pages = Pages.signed_in(session.browser, link_of(up))
        page = pages.open("/runs")
        page.evaluate("window.isSame = true")
        expect(page.locator("main")).to_contain_text("No such run")
    expect(page.locator("#not-live")).to_be_visible()
    site.run("dags", "trigger", "d", "--run-id", "meanwhile")
    with site.up():
        expect(page.locator("main")).to_contain_text("meanwhile", timeout=60_000)
        expect(page.locator("#not-live")).to_be_hidden()
        site.run("dags", "trigger", "d", "--run-id", "later")
        expect(page.locator("main")).to_contain_text("later", timeout=20_000)
        assert page.evaluate("window.isSame")
    pages.close_contexts()


def test_tabs_share_one_stream_and_miss_no_change(pages: Pages, served: Up) -> None:
    trigger = partial(served.site.run, "dags", "trigger", LONG_NAME, "--wait", "--run-id")
    readers: list[Page] = []
    ran_first: Iterator[str] = iter(["before-the-stream", "between-streams"])

    def read_later(route: Route) -> None:
        readers.append(route.request.frame.page)
        trigger(next(ran_first))
        route.continue_()

    def load_late(route: Route) -> None:
        answer = route.fetch()
        trigger("while-loading")
        route.fulfill(response=answer)

    first = pages.open("/preferences")
    first.context.route("**/v1/events*", read_later)
    first.goto("/runs")
    expect(first.locator("main")).to_contain_text("before-the-stream", timeout=20_000)
    second = first.context.new_page()
    second.route("**/runs", load_late, times=1)
    second.goto(f"{pages.base}/runs")
    expect(second.locator("main")).to_contain_text("while-loading", timeout=20_000)
    trigger("shared")
    for page in (first, second):
        expect(page.locator("main")).to_contain_text("shared", timeout=20_000)
    assert readers == [first]
    first.close()
    expect(second.locator("main")).to_contain_text("between-streams", timeout=20_000)
    assert readers == [first, second]


def test_a_view_stays_as_it_is_while_its_address_gives_something_else(pages: Pages, served: Up) -> None:
    page = pages.open("/runs")
    rows = page.locator("table.rows tbody tr")
    expect(rows.first).to_be_visible()
    page.route("**/runs", lambda route: route.fulfill(status=404, content_type="text/html", body="<main>no</main>"))
    served.site.run("dags", "trigger", LONG_NAME, "--run-id", "unseen")
    expect(page.locator("#not-live")).to_be_visible(timeout=20_000)
    expect(rows.first).to_be_visible()
    page.unroute("**/runs")
    expect(page.locator("main")).to_contain_text("unseen", timeout=60_000)
    expect(page.locator("#not-live")).to_be_hidden()


ORDER = """
window.order = [];
const listen = document.addEventListener.bind(document);
document.addEventListener = (name, ...rest) => {
  if (name === "htmx:before:swap") window.order.push("the page listens");
  listen(name, ...rest);
};
let given;
Object.defineProperty(window, "htmx", {
  get: () => given,
  set: (value) => { window.order.push("htmx"); given = value; },
});
"""


def test_the_page_listens_before_htmx_can_swap_anything(pages: Pages) -> None:
    page = pages.open("/preferences")
    page.add_init_script(ORDER)
    page.goto(of_run("talks", "tasks", "long"))
    assert page.evaluate("window.order") == ["the page listens", "htmx"]


GIVEN = """
window.given = [];
document.addEventListener("htmx:after:process", ({ target }) => window.given.push(target.matches("[hx-get]")));
"""


def test_htmx_looks_only_at_the_elements_that_are_its_own(pages: Pages) -> None:
    page = pages.open("/preferences")
    page.add_init_script(GIVEN)
    page.goto("/dags/orders")
    page.get_by_role("link", name="stage", exact=True).click()
    expect(page.get_by_role("rowheader", name="extract [ ]", exact=True)).to_have_count(0)
    assert set(page.evaluate("window.given")) == {True}


def test_a_part_that_cannot_be_fetched_leaves_what_is_there(pages: Pages) -> None:
    page = pages.open("/preferences")
    page.route("**/why*", lambda route: route.fulfill(status=404, body="of a proxy"))
    with page.expect_response("**/why*"):
        page.goto(of_run("talks", "tasks", "long"))
    page.wait_for_function("document.querySelector('.htmx-request') === null")
    expect(page.locator(".why-box")).to_contain_text("Why is it in this state?")


def test_enter_in_the_palette_goes_to_what_was_typed_although_an_answer_is_late(pages: Pages) -> None:
    page = pages.open("/preferences")
    held: list[Route] = []
    page.route("**/palette*", lambda route: held.append(route))
    page.keyboard.press("Control+k")
    with page.expect_request("**/palette*"):
        page.keyboard.insert_text("talk")
    page.keyboard.press("Enter")
    for route in held:
        route.continue_()
    page.wait_for_url("**/dags/talks")


def test_all_tabs_say_that_the_stream_is_lost_until_another_tab_has_one(pages: Pages) -> None:
    first = pages.open("/preferences")
    first.route("**/v1/events*", lambda route: route.abort())
    first.goto("/runs")
    expect(first.locator("#not-live")).to_be_visible()
    second = first.context.new_page()
    second.goto(f"{pages.base}/runs")
    expect(second.locator("#not-live")).to_be_visible()
    first.close()
    expect(second.locator("#not-live")).to_be_hidden()
    pages.errors.clear()  # the browser has reported the loss, too


def test_a_hostile_dag_runs_no_script(pages: Pages) -> None:
    views = [
        "/", "/dags", "/runs", "/tasks", "/assets", "/assets/graph", "/variables", "/act/dags?do=trigger&dag=hostile",
        *(f"/dags/hostile{view}" for view in ("", "/graph?run_id=first", "/gantt", "/details", "/code", "/trigger",
                                             "/why")),
        of_run("hostile"), of_run("hostile", "gantt"), of_run("hostile", "details"),
        of_run("hostile", "tasks", "group.attack"),
        of_run("hostile", "tasks", "group.attack", "log", "find") + "?try_number=1&q=%3Cscript",
    ]  # fmt: skip
    for path in views:
        page = pages.open(path)
        page.wait_for_load_state("networkidle") if "/tasks/" in path else None
        smuggled = page.evaluate(
            "document.querySelectorAll('main script, img, main svg[onload], [onerror], [onclick],"
            ' a[href^="javascript:"], a[href^="data:"], header + script\').length'
        )
        assert smuggled == 0, path
    log = page.goto(of_run("hostile", "tasks", "group.attack")) and page.locator("#log").inner_text()
    assert "<script>alert(1)</script>" in log
    assert "\x1b" not in log
