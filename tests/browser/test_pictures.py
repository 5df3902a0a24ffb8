"""The pictures of the documentation can be drawn, and are small."""

from pathlib import Path

from tests.browser.pages import Pages
from tests.browser.pictures import MOST_BYTES, PICTURES, ROOT, draw


def test_the_pictures_of_the_docs_can_be_drawn_and_are_small(session: Pages, tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    draw(session.browser, drawn, tmp_path)
    for folder in (drawn, ROOT / "docs" / "pictures"):
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert {*sizes} == {*PICTURES}
        assert all(5_000 < size < MOST_BYTES for size in sizes.values()), sizes
