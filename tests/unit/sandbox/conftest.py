"""The journal of tries of one home."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sandbox.supervision import attempts
from sandbox.supervision.attempts import JOURNAL, AttemptRecords


@pytest.fixture
def journal(tmp_path) -> Path:
    """The file that `opened` opens."""
    return tmp_path / JOURNAL


@pytest.fixture
def opened(tmp_path) -> Iterator[Callable[..., AttemptRecords]]:
    """A function that opens the journal as another keeper does."""
    with ExitStack() as stack:
        yield lambda folder=tmp_path: stack.enter_context(closing(AttemptRecords(folder)))


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """Its warnings. Its logger itself belongs to all tests of the process."""
    found: list[str] = []
    monkeypatch.setattr(attempts.log, "warning", lambda text, *values: found.append(text % values))
    return found
