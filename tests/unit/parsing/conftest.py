"""A DAG folder with a dispatcher, without processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.parsing.dispatching import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.close()
