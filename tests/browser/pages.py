"""Opens views of the page in Chromium: of a size, in a theme, signed in, with or without JavaScript."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import axe_playwright_python
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tests.support.up import Up

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
NARROW, WIDE = (390, 800), (1280, 800)
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
Theme = Literal["light", "dark"]
_LINK = re.compile(r"(http://\S+)/login\?key=\S+")


def link_of(up: Up) -> str:
    """Return the link that `asynsched up` has printed."""
    found = up.site.until(lambda: _LINK.search(up.log), "the link is printed")
    return found[0]


class Pages:
    """A browser that is signed in.

    Attributes:
        base: The address of the page.
        browser: All of them share it.
        errors: What scripts and the policy of contents have reported.
    """

    def __init__(self, browser: Browser, base: str, state: Any) -> None:
        self.base = base
        self.errors: list[str] = []
        self.browser = browser
        self._state = state
        self._contexts: list[BrowserContext] = []

    @classmethod
    def signed_in(cls, browser: Browser, link: str) -> Self:
        context = browser.new_context()
        context.new_page().goto(link)
        state = context.storage_state()
        context.close()
        return cls(browser, link.partition("/login")[0], state)

    def open(
        self, path: str, *, size: tuple[int, int] = WIDE, theme: Theme = "light", scripts: bool = True,
        signed_in: bool = True,
    ) -> Page:  # fmt: skip
        """Open a view in a tab of its own, and wait until it is loaded."""
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=theme,
            storage_state=self._state if signed_in else None,
            java_script_enabled=scripts, reduced_motion="reduce", base_url=self.base,
        )  # fmt: skip
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.errors.append(f"{path}: {error}"))
        page.on("console", lambda told: self._note(path, told))
        page.on("dialog", lambda dialog: self.errors.append(f"{path}: a dialog says {dialog.message}"))
        page.goto(path)
        return page

    def _note(self, path: str, told: ConsoleMessage) -> None:
        # A form that is refused, and an unknown address, are answers of which the browser tells, too.
        if told.type == "error" and "the server responded with a status of 4" not in told.text:
            self.errors.append(f"{path}: {told.text}")

    def close_contexts(self) -> None:
        for context in self._contexts:
            context.close()
        self._contexts.clear()


def violations(page: Page, rules: Sequence[str] = WCAG) -> list[str]:
    """Return what axe finds: the rule, and the elements."""
    page.evaluate(AXE.read_text())
    options = {"runOnly": {"type": "tag", "values": list(rules)}, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [f"{one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found["violations"]]
