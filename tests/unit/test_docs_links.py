"""Links of the documentation, and the files of the code that it names, exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")


def prose(page):
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    targets = [target for target in LINK.findall(prose(page)) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_a_page_names_one_of_its_headings(page):
    links = [(target, anchor) for target, anchor in ANCHOR.findall(prose(page)) if "://" not in target]
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


ABOUT_CODE = [
    *(ROOT / "docs" / "discussion").glob("*.md"),
    *(ROOT / "docs" / "decisions").glob("*.md"),
    *ROOT.glob("*.md"),
]


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_code_that_a_page_names_exists(page):
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)", page.read_text(encoding="utf-8"))
    roots = (ROOT, ROOT / "asynsched", ROOT / "tests", ROOT / "tests" / "integration")
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


def test_every_test_that_a_page_names_exists():
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`(test_\w+)`", prose(page))}
    assert sorted((page, name) for page, name in named if name not in defined) == []


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "index.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("0*.md")} <= listed


def test_every_guide_is_in_the_index():
    docs = ROOT / "docs"
    listed = set(LINK.findall((docs / "index.md").read_text(encoding="utf-8")))
    assert {f"how-to/{page.name}" for page in (docs / "how-to").glob("*.md")} <= listed
