"""The reference says what the code does: every command, option, setting and public name."""

import pytest

from tests.support.reference import FOLDER, pages


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "authoring.md"])
def test_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run `python -m tests.support.reference`"
