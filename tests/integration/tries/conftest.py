"""The bench that every test of tries works at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asynsched.protocol.messages import CodeVersion
from tests.integration.tries.bench import Bench
from tests.integration.tries.waiting_tasks import code_of


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end_processes()


@pytest.fixture
def code(bench: Bench) -> CodeVersion:
    """Return a version whose tasks wait; modules that need others have their own."""
    return code_of(bench)
