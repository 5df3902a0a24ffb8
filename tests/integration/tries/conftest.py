"""The bench that every test of tries works at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.tries.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end_processes()
