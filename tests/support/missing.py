"""What a test does where something that it needs is missing."""

import os
from typing import NoReturn

import pytest


def skip_outside_ci(reason: str) -> NoReturn:
    """Skip the test; in CI, which installs whatever tests need, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
